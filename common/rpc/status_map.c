/*
 * status_map: converts between enum status and gRPC's codes.
 *
 * Between our programs the name of the status is sent as trailing metadata, so nothing is lost; the
 * codes are for stock clients and for errors that core itself reports.  Two codes need the state of
 * the connection and are converted in result.c: UNAVAILABLE and DEADLINE_EXCEEDED.  Pure, no locks.
 */
#include "common/rpc/rpc_internal.h"

#include <string.h>

grpc_status_code rpc_code_from_status(enum status status)
{
    switch (status) {
    case STATUS_OK:
        return GRPC_STATUS_OK;
    case STATUS_INVALID:
    case STATUS_CONFIG:
    case STATUS_DATA:
    case STATUS_PROTOCOL:
        return GRPC_STATUS_INVALID_ARGUMENT;
    case STATUS_NO_SPACE:
    case STATUS_NO_MEMORY:
        return GRPC_STATUS_RESOURCE_EXHAUSTED;
    case STATUS_TIMEOUT:
        return GRPC_STATUS_DEADLINE_EXCEEDED;
    case STATUS_UNREACHABLE:
    case STATUS_UNAVAILABLE:
        return GRPC_STATUS_UNAVAILABLE;
    case STATUS_PEER_LOST:
        return GRPC_STATUS_ABORTED;
    case STATUS_MISMATCH:
        return GRPC_STATUS_FAILED_PRECONDITION;
    case STATUS_NOT_FOUND:
        return GRPC_STATUS_NOT_FOUND;
    case STATUS_EXISTS:
        return GRPC_STATUS_ALREADY_EXISTS;
    case STATUS_UNSUPPORTED:
        return GRPC_STATUS_UNIMPLEMENTED;
    case STATUS_CANCELLED:
        return GRPC_STATUS_CANCELLED;
    case STATUS_UNAUTHENTICATED:
        return GRPC_STATUS_UNAUTHENTICATED;
    case STATUS_DENIED:
        return GRPC_STATUS_PERMISSION_DENIED;
    case STATUS_IO:
    case STATUS_DISTURBED:
    case STATUS_INTERNAL:
        break;
    }
    return GRPC_STATUS_INTERNAL;
}

enum status rpc_status_from_code(grpc_status_code code)
{
    switch (code) {
    case GRPC_STATUS_OK:
        return STATUS_OK;
    case GRPC_STATUS_CANCELLED:
        return STATUS_CANCELLED;
    case GRPC_STATUS_INVALID_ARGUMENT:
    case GRPC_STATUS_OUT_OF_RANGE:
        return STATUS_INVALID;
    case GRPC_STATUS_DEADLINE_EXCEEDED:
        return STATUS_TIMEOUT;
    case GRPC_STATUS_NOT_FOUND:
        return STATUS_NOT_FOUND;
    case GRPC_STATUS_ALREADY_EXISTS:
        return STATUS_EXISTS;
    case GRPC_STATUS_PERMISSION_DENIED:
        return STATUS_DENIED;
    case GRPC_STATUS_UNAUTHENTICATED:
        return STATUS_UNAUTHENTICATED;
    case GRPC_STATUS_RESOURCE_EXHAUSTED: /* from core: a message above the receiver's limit */
        return STATUS_PROTOCOL;
    case GRPC_STATUS_FAILED_PRECONDITION:
        return STATUS_MISMATCH;
    case GRPC_STATUS_ABORTED:
        return STATUS_PEER_LOST;
    case GRPC_STATUS_UNIMPLEMENTED:
        return STATUS_UNSUPPORTED;
    case GRPC_STATUS_UNAVAILABLE:
        return STATUS_UNAVAILABLE;
    case GRPC_STATUS_DATA_LOSS:
        return STATUS_DATA;
    default:
        return STATUS_INTERNAL;
    }
}

bool rpc_status_from_name(const uint8_t *name, size_t size, enum status *ret)
{
    static const enum status all[] = {
#define X(constant, value, text, exit_code) STATUS_##constant,
        STATUS_LIST(X)
#undef X
    };

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        const char *known = status_name(all[i]);

        if (strlen(known) == size && memcmp(known, name, size) == 0) {
            *ret = all[i];
            return true;
        }
    }
    return false;
}
