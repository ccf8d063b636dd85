/*
 * error: a status and a text in the caller's memory.  A function that can fail takes
 * `struct error *err` last, leaves it untouched on success, and returns the status that it stored.
 * err may be NULL.  Texts are lower case, begin with what failed, and quote the subject:
 *   return error_set(err, STATUS_IO, "cannot open '%s': %s", path, strerror(errno));
 */
#ifndef SPARRING_COMMON_BASE_ERROR_H
#define SPARRING_COMMON_BASE_ERROR_H

#include "common/base/status.h"

#ifdef __cplusplus /* the CUDA module and the Gloo shim */
extern "C" {
#endif

struct error {
    enum status status;
    char text[2048]; /* NUL-terminated, cut at the end when longer */
};

/* Fill err (when not NULL) and return `status`, for use in a return statement. */
enum status error_set(struct error *err, enum status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* As error_set for a failed system call: appends ": <strerror>" and takes the status from
 * `error_number`. */
enum status error_set_errno(struct error *err, int error_number, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Prepend context to the existing text ("loading 'x': " + text).  Returns err's status, or
 * STATUS_INTERNAL when err is NULL: return the callee's own status where err may be NULL. */
enum status error_prefix(struct error *err, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#ifdef __cplusplus
}
#endif

#endif
