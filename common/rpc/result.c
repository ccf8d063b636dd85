/*
 * result: converts the end of a call to a status and a text.
 *
 * A client sees three kinds of end: the server's own status (sent by name, see status_map.c), a
 * code that core generated because the connection or the deadline failed, and an action of this
 * side. Calls wait for their connection, so UNAVAILABLE means that an established one broke;
 * fail-fast calls also end with it when the next connection attempt fails. Runs on the queue's
 * thread; reads fields under call->lock that no longer change once ended.
 */
#include "common/rpc/call.h"

#include "common/base/clock.h"
#include "common/protobuf/unpack.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void set_result(struct rpc_result *r, enum status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void set_result(struct rpc_result *r, enum status status, const char *format, ...)
{
    va_list args;

    r->status = status;
    va_start(args, format);
    (void)vsnprintf(r->text, sizeof(r->text), format, args);
    va_end(args);
}

/* The peer's text as bounded, printable, valid UTF-8. */
static void copy_details(const grpc_slice *details, char *text, size_t size)
{
    size_t length = GRPC_SLICE_LENGTH(*details);

    if (length > size - 1)
        length = size - 1;
    length = text_valid_length(GRPC_SLICE_START_PTR(*details), length);
    memcpy(text, GRPC_SLICE_START_PTR(*details), length);
    text[length] = '\0';
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < ' ' && *c != '\n' && *c != '\t')
            *c = '?';
}

bool rpc_call_unreachable(const struct rpc_call *call)
{
    return call->code == GRPC_STATUS_DEADLINE_EXCEEDED && !call->sent_any &&
           grpc_channel_check_connectivity_state(call->channel, 0) != GRPC_CHANNEL_READY;
}

/* Core's reason without its preamble: "failed to connect to all addresses; last error: UNKNOWN:
 * ipv4:127.0.0.1:1: Failed to connect to remote host: Connection refused" from "ipv4:" on. */
static const char *strip_error_preamble(const char *text)
{
    const char *last = strstr(text, "last error: ");
    const char *address = last ? strstr(last, ": ipv") : NULL;

    if (last && !address)
        address = strstr(last, ": unix:");
    if (address)
        return address + strlen(": ");
    return last ? last + strlen("last error: ") : text;
}

static bool status_from_metadata(const grpc_metadata_array *trailing, enum status *ret)
{
    for (size_t i = 0; i < trailing->count; i++) {
        const grpc_metadata *m = &trailing->metadata[i];

        if (grpc_slice_str_cmp(m->key, RPC_STATUS_KEY) == 0)
            return rpc_status_from_name(GRPC_SLICE_START_PTR(m->value), GRPC_SLICE_LENGTH(m->value),
                                        ret) &&
                   *ret != STATUS_OK;
    }
    return false;
}

static void client_result(struct rpc_call *call, struct rpc_result *r)
{
    char text[512];
    int64_t waited_ms = (call->deadline_ns - call->opened_ns + 999999) / 1000000;
    enum status status;

    copy_details(&call->details, text, sizeof(text));
    if (call->failure.status != STATUS_OK) {
        set_result(r, call->failure.status, "%s", call->failure.text);
    } else if (call->code == GRPC_STATUS_OK) {
        r->status = STATUS_OK;
    } else if (status_from_metadata(&call->trailing, &status)) {
        r->status = status;
        r->by_peer = true;
        copy_details(&call->details, r->text, sizeof(r->text));
    } else if (call->code == GRPC_STATUS_CANCELLED && call->want_cancel) {
        set_result(r, STATUS_CANCELLED, "%s was cancelled", call->path);
    } else if (call->code == GRPC_STATUS_CANCELLED) {
        set_result(r, STATUS_CANCELLED, "%s was cancelled by %s", call->path, call->peer);
    } else if (call->unreachable) {
        set_result(r, STATUS_UNREACHABLE, "cannot reach %s within %lld ms: %s", call->peer,
                   (long long)waited_ms, strip_error_preamble(text));
    } else if (call->code == GRPC_STATUS_DEADLINE_EXCEEDED) {
        set_result(r, STATUS_TIMEOUT, "%s on %s did not end within %lld ms", call->path, call->peer,
                   (long long)waited_ms);
    } else if (call->code == GRPC_STATUS_UNAVAILABLE || call->code == GRPC_STATUS_UNKNOWN) {
        set_result(r, STATUS_PEER_LOST, "the connection to %s was lost: %s", call->peer, text);
    } else {
        set_result(r, rpc_status_from_code(call->code), "%s on %s failed: %s (gRPC code %d)",
                   call->path, call->peer, text, (int)call->code);
    }
}

static void server_result(const struct rpc_call *call, struct rpc_result *r)
{
    r->cancelled = call->peer_cancelled != 0;
    if (call->failure.status != STATUS_OK) {
        set_result(r, call->failure.status, "%s", call->failure.text);
    } else if (!r->cancelled) {
        set_result(r, call->finish_status, "%s", call->finish_text);
    } else if (call->want_cancel) {
        set_result(r, STATUS_CANCELLED, "%s from %s was cancelled", call->path, call->peer);
    } else if (clock_now_ns() >= call->deadline_ns) {
        set_result(r, STATUS_TIMEOUT, "the deadline of %s from %s passed", call->path, call->peer);
    } else {
        set_result(r, STATUS_PEER_LOST, "%s went away during %s", call->peer, call->path);
    }
}

void rpc_call_result(struct rpc_call *call, struct rpc_result *ret)
{
    memset(ret, 0, sizeof(*ret));
    if (call->is_client)
        client_result(call, ret);
    else
        server_result(call, ret);
}
