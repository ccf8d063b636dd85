/*
 * The holder removes the lock file, so a process that has locked one checks that it is still the
 * file at the path, and otherwise opens the new one.  Locks are flock(2): they belong to the open
 * file, so two servers of one process exclude each other too.  No state but the caller's.
 */
#include "common/base/unix_path.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define LOCK_PATH_MAX (UNIX_PATH_MAX + 8)

enum status unix_path_check_folder(const char *path, const char *origin, struct error *err)
{
    const char *slash = strrchr(path, '/');
    int length = slash == path ? 1 : (int)(slash - path);
    char folder[UNIX_PATH_MAX];
    struct stat info;

    (void)snprintf(folder, sizeof(folder), "%.*s", length, path);
    if (stat(folder, &info) != 0)
        return error_set_errno(err, errno, "socket '%s' (%s): cannot use folder '%s'", path, origin,
                               folder);
    if (!S_ISDIR(info.st_mode))
        return error_set(err, STATUS_CONFIG, "socket '%s' (%s): '%s' is not a folder", path, origin,
                         folder);
    if (info.st_uid != geteuid() && info.st_uid != 0)
        return error_set(err, STATUS_CONFIG,
                         "socket '%s' (%s): folder '%s' belongs to user %u, who could serve there "
                         "in our place; use one of your own",
                         path, origin, folder, (unsigned)info.st_uid);
    if (info.st_mode & (S_IWGRP | S_IWOTH))
        return error_set(err, STATUS_CONFIG,
                         "socket '%s' (%s): other users may write to folder '%s' (mode %04o) and "
                         "could serve there in our place; use one of mode 0700",
                         path, origin, folder, (unsigned)info.st_mode & 07777U);
    return STATUS_OK;
}

static void lock_path(const char *path, char *text)
{
    (void)snprintf(text, LOCK_PATH_MAX, "%s.lock", path);
}

static enum status lock_held_error(const char *path, const char *origin, int fd, struct error *err)
{
    char holder[24] = "";
    ssize_t got = pread(fd, holder, sizeof(holder) - 1, 0);

    holder[got > 0 ? got : 0] = '\0';
    holder[strspn(holder, "0123456789")] = '\0';
    return error_set(err, STATUS_EXISTS, "cannot listen on 'unix:%s' (%s): it is in use by %s%s",
                     path, origin, holder[0] ? "pid " : "another server", holder);
}

/* Is the open file still the one at this path? */
static bool is_file_at(int fd, const char *path)
{
    struct stat open_file, named;

    return fstat(fd, &open_file) == 0 && stat(path, &named) == 0 &&
           open_file.st_dev == named.st_dev && open_file.st_ino == named.st_ino;
}

static enum status take_lock(const char *path, const char *origin, int *ret_fd, struct error *err)
{
    char name[LOCK_PATH_MAX], pid[24];
    int length = snprintf(pid, sizeof(pid), "%ld\n", (long)getpid());

    lock_path(path, name);
    for (;;) {
        int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        enum status status;

        if (fd < 0)
            return error_set_errno(err, errno, "cannot open lock file '%s' (%s)", name, origin);
        if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
            status = errno == EWOULDBLOCK
                         ? lock_held_error(path, origin, fd, err)
                         : error_set_errno(err, errno, "cannot lock '%s' (%s)", name, origin);
            (void)close(fd);
            return status;
        }
        if (!is_file_at(fd, name)) { /* its holder removed it after our open */
            (void)close(fd);
            continue;
        }
        /* The pid is only used in the error text above. */
        if (ftruncate(fd, 0) != 0 || pwrite(fd, pid, (size_t)length, 0) != length)
            (void)ftruncate(fd, 0);
        *ret_fd = fd;
        return STATUS_OK;
    }
}

/* Does a process accept connections there?  A stale socket file refuses them. */
static bool is_served(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool served;

    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    if (fd < 0)
        return false;
    served = connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0 ||
             errno == EAGAIN; /* its queue of connections is full */
    (void)close(fd);
    return served;
}

/* OK when there is no file, or a socket without a listener. */
static enum status check_socket_path(const char *path, const char *origin, struct error *err)
{
    struct stat info;

    if (lstat(path, &info) != 0)
        return errno == ENOENT
                   ? STATUS_OK
                   : error_set_errno(err, errno, "cannot look at '%s' (%s)", path, origin);
    if (!S_ISSOCK(info.st_mode))
        return error_set(err, STATUS_EXISTS,
                         "cannot listen on 'unix:%s' (%s): there is something that is no socket",
                         path, origin);
    if (is_served(path))
        return error_set(err, STATUS_EXISTS,
                         "cannot listen on 'unix:%s' (%s): another program listens there", path,
                         origin);
    return STATUS_OK;
}

enum status unix_path_claim(const char *path, const char *origin, struct unix_path *ret,
                            struct error *err)
{
    struct unix_path claim = {.lock_fd = -1};
    enum status status = unix_path_check_folder(path, origin, err);

    if (status == STATUS_OK)
        status = take_lock(path, origin, &claim.lock_fd, err);
    if (status != STATUS_OK)
        return status;
    status = check_socket_path(path, origin, err);
    if (status != STATUS_OK) {
        char name[LOCK_PATH_MAX];

        lock_path(path, name);
        (void)unlink(name);
        (void)close(claim.lock_fd);
        return status;
    }
    (void)snprintf(claim.path, sizeof(claim.path), "%s", path);
    *ret = claim;
    return STATUS_OK;
}

void unix_path_release(struct unix_path *claim)
{
    char name[LOCK_PATH_MAX];

    if (claim->path[0] == '\0')
        return;
    lock_path(claim->path, name);
    (void)unlink(claim->path);
    (void)unlink(name); /* before the lock is released: see is_file_at */
    (void)close(claim->lock_fd);
    *claim = (struct unix_path){.lock_fd = -1};
}
