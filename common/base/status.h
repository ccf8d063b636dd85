/*
 * status: the result type of the whole code base.  0 is success, failures are negative.
 * The X-macro generates the enum, the names and the process exit codes from one list.
 *
 * Library common/base: status and errors, memory, files, sockets, time, logging, signals, random
 * numbers and the description of the host.  It needs only libc, libm, libdl and threads; every
 * other library calls it.  Except for the log, the stop flag and the wait monitor it has no
 * globals.
 */
#ifndef SPARRING_COMMON_BASE_STATUS_H
#define SPARRING_COMMON_BASE_STATUS_H

/* name, value, text, exit code of a program that ends with it */
#define STATUS_LIST(X)                                                                             \
    X(OK, 0, "ok", 0)                                                                              \
    X(INVALID, -1, "invalid argument", 2)     /* a flag or option: the user's command line */      \
    X(CONFIG, -2, "invalid configuration", 3) /* a file, a model spec, an environment value */     \
    X(DATA, -3, "malformed data", 3)          /* bytes that break their format */                  \
    X(IO, -4, "input/output error", 1)        /* a system call failed */                           \
    X(NO_SPACE, -5, "no space left", 1)       /* full disk or quota */                             \
    X(NO_MEMORY, -6, "out of memory", 1)                                                           \
    X(TIMEOUT, -7, "timed out", 4)                /* a deadline passed */                          \
    X(UNREACHABLE, -8, "unreachable", 4)          /* a peer or rendezvous could not be reached */  \
    X(PEER_LOST, -9, "peer lost", 1)              /* a connected peer ended or failed */           \
    X(MISMATCH, -10, "mismatch between ranks", 3) /* ranks disagree on what they run */            \
    X(PROTOCOL, -11, "protocol violation", 1)     /* a peer sent what it must not */               \
    X(NOT_FOUND, -12, "not found", 1)                                                              \
    X(EXISTS, -13, "already exists", 1)                                                            \
    X(UNSUPPORTED, -14, "unsupported", 2) /* a pair that does not go together */                   \
    X(UNAVAILABLE, -15, "unavailable", 4) /* draining, or not ready */                             \
    X(CANCELLED, -16, "cancelled", 6)     /* a signal requested a stop */                          \
    X(INTERNAL, -17, "internal error", 1)                                                          \
    X(UNAUTHENTICATED, -18, "not authenticated", 3) /* no valid token was sent */                  \
    X(DENIED, -19, "permission denied", 3)          /* authenticated, not authorised */            \
    X(DISTURBED, -20, "disturbed", 8) /* this machine did not keep to the emulated network */

enum status {
#define X(name, value, text, exit_code) STATUS_##name = (value),
    STATUS_LIST(X)
#undef X
};

/* The number of statuses: -status is an index below it. */
enum {
    STATUS_COUNT = 0
#define X(name, value, text, exit_code) +1
    STATUS_LIST(X)
#undef X
};

/* The constant's name without prefix ("TIMEOUT"); "?" for a value outside the list. */
const char *status_name(enum status status);

/* A short lower-case text ("timed out"). */
const char *status_text(enum status status);

/* Exit code of a program that ends with `status`: 0 ok, 1 failed run, 2 usage, 3 configuration or
 * data, 4 peers not reached in time, 6 stopped by a signal (5 is `compare --fail-if`, 7 `launch`
 * whose other ranks ended well), 8 a run in an emulated network that this machine did not keep to.
 */
int status_exit_code(enum status status);

/* The status of an errno value from a file or socket call (ENOSPC, EDQUOT -> NO_SPACE; ENOENT ->
 * NOT_FOUND; ...). */
enum status status_from_errno(int error_number);

/* True when `value` is in the list: for a status read from a wire or a file. */
int status_is_known(int value);

#endif
