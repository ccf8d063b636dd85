/*
 * unix_path: the right to serve on the path of a Unix socket.
 *
 * A path says nothing about who serves there: binding replaces whatever socket file is found, also
 * one that a living server listens on.  So a server first takes a lock on "<path>.lock", which the
 * kernel gives back when its process ends, however that happens; a socket file without a lock is
 * left over and may be replaced.  The folder must belong to this user or root and be closed to
 * writes by anybody else, or another user could put a server of his own in the way of the workers.
 */
#ifndef SPARRING_COMMON_BASE_UNIX_PATH_H
#define SPARRING_COMMON_BASE_UNIX_PATH_H

#include "common/base/error.h"

#define UNIX_PATH_MAX 108 /* bytes with the NUL, sizeof sockaddr_un.sun_path */

/* A zeroed struct holds nothing. */
struct unix_path {
    char path[UNIX_PATH_MAX]; /* "": nothing is held */
    int lock_fd;
};

/* Is the folder of `path` one that only this user and root can write to?  STATUS_CONFIG says why
 * not, STATUS_NOT_FOUND that it is not there; `origin` is where the path came from ("--listen"). */
enum status unix_path_check_folder(const char *path, const char *origin, struct error *err);

/* Check the folder and take the lock.  STATUS_EXISTS: a server holds it (its pid is named), listens
 * there without a lock, or something that is no socket stands at the path. */
enum status unix_path_claim(const char *path, const char *origin, struct unix_path *ret,
                            struct error *err);

/* Remove the socket file and the lock file; nothing happens when nothing is held. */
void unix_path_release(struct unix_path *claim);

#endif
