/*
 * unix_path: exclusive ownership of the path of a Unix socket.
 *
 * The path alone does not show an owner: core's bind replaces any socket file, also that of a live
 * server.  So a server first takes a lock on "<path>.lock", which the kernel releases when the
 * process ends for any reason; a socket file without a lock is stale and may be replaced.  The
 * folder must belong to this user or root and must not be writable by others: otherwise another
 * user could put a server of their own in the workers' way.
 */
#ifndef SPARRING_COMMON_BASE_UNIX_PATH_H
#define SPARRING_COMMON_BASE_UNIX_PATH_H

#include "common/base/error.h"

#define UNIX_PATH_MAX 108 /* bytes with the NUL, sizeof sockaddr_un.sun_path */

/* A zeroed struct owns no path. */
struct unix_path {
    char path[UNIX_PATH_MAX]; /* "": none */
    int lock_fd;
};

/* Check that only this user and root can write to the folder of `path`.  STATUS_CONFIG: others can
 * (the text explains), STATUS_NOT_FOUND: no such folder; `origin` is the option that set the path
 * ("--listen"). */
enum status unix_path_check_folder(const char *path, const char *origin, struct error *err);

/* Check the folder and take the lock.  STATUS_EXISTS: a server holds the lock (the text has its
 * pid) or listens there without one, or the path is not a socket. */
enum status unix_path_claim(const char *path, const char *origin, struct unix_path *ret,
                            struct error *err);

/* Remove the socket file and the lock file; no-op when nothing is owned. */
void unix_path_release(struct unix_path *claim);

#endif
