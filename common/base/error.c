/*
 * Fills struct error.  The text is cut when it is longer than the buffer.  Nothing is allocated, so
 * an out-of-memory error can always be reported.  No state.
 */
#include "common/base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum status error_set(struct error *err, enum status status, const char *format, ...)
{
    va_list args;

    if (!err)
        return status;
    err->status = status;
    va_start(args, format);
    (void)vsnprintf(err->text, sizeof(err->text), format, args);
    va_end(args);
    return status;
}

enum status error_set_errno(struct error *err, int error_number, const char *format, ...)
{
    enum status status = status_from_errno(error_number);
    va_list args;
    size_t used;

    if (!err)
        return status;
    err->status = status;
    va_start(args, format);
    (void)vsnprintf(err->text, sizeof(err->text), format, args);
    va_end(args);
    used = strlen(err->text);
    (void)snprintf(err->text + used, sizeof(err->text) - used, ": %s", strerror(error_number));
    return status;
}

enum status error_prefix(struct error *err, const char *format, ...)
{
    char text[sizeof(err->text)];
    va_list args;
    size_t used;

    if (!err)
        return STATUS_INTERNAL;
    memcpy(text, err->text, sizeof(text));
    va_start(args, format);
    (void)vsnprintf(err->text, sizeof(err->text), format, args);
    va_end(args);
    used = strlen(err->text);
    (void)snprintf(err->text + used, sizeof(err->text) - used, "%s", text);
    return err->status;
}
