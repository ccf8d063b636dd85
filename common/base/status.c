/*
 * Tables generated from STATUS_LIST, and the mapping from errno values.  Pure, no state.
 */
#include "common/base/status.h"

#include <errno.h>
#include <stddef.h>

struct status_row {
    enum status status;
    const char *name;
    const char *text;
    int exit_code;
};

static const struct status_row rows[] = {
#define X(name, value, text, exit_code) {STATUS_##name, #name, text, exit_code},
    STATUS_LIST(X)
#undef X
};

static const struct status_row *find_row(int value)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if ((int)rows[i].status == value)
            return &rows[i];
    return NULL;
}

const char *status_name(enum status status)
{
    const struct status_row *row = find_row((int)status);

    return row ? row->name : "?";
}

const char *status_text(enum status status)
{
    const struct status_row *row = find_row((int)status);

    return row ? row->text : "unknown status";
}

int status_exit_code(enum status status)
{
    const struct status_row *row = find_row((int)status);

    return row ? row->exit_code : 1;
}

int status_is_known(int value)
{
    return find_row(value) != NULL;
}

enum status status_from_errno(int error_number)
{
    switch (error_number) {
    case 0:
        return STATUS_OK;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
        return STATUS_NO_SPACE;
    case ENOMEM:
        return STATUS_NO_MEMORY;
    case ENOENT:
        return STATUS_NOT_FOUND;
    case EEXIST:
        return STATUS_EXISTS;
    case ETIMEDOUT:
        return STATUS_TIMEOUT;
    case ECONNREFUSED:
    case EHOSTUNREACH:
    case ENETUNREACH:
        return STATUS_UNREACHABLE;
    case ECONNRESET:
    case EPIPE:
        return STATUS_PEER_LOST;
    default:
        return STATUS_IO;
    }
}
