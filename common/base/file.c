/*
 * Bounded whole-file reads and atomic writes, without locks: a path has one writer at a time.  The
 * temporary name contains the process id, so two processes that write one target do not share a
 * temporary file.
 */
#include "common/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static enum status read_fd(int fd, const char *path, size_t max_bytes, char **ret_data,
                           size_t *ret_size, struct error *err)
{
    size_t capacity = 4096;
    size_t size = 0;
    char *data = NULL;
    struct stat info;

    if (fstat(fd, &info) != 0)
        return error_set_errno(err, errno, "cannot stat '%s'", path);
    if (S_ISDIR(info.st_mode))
        return error_set(err, STATUS_IO, "cannot read '%s': it is a folder", path);
    if (info.st_size > 0 && (uint64_t)info.st_size > max_bytes)
        return error_set(err, STATUS_DATA, "'%s' has %jd bytes, more than the %zu allowed", path,
                         (intmax_t)info.st_size, max_bytes);
    if (info.st_size > 0)
        capacity = (size_t)info.st_size + 1;
    data = malloc(capacity + 1);
    while (data) {
        ssize_t got = read(fd, data + size, capacity - size);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            int saved = errno;

            free(data);
            return error_set_errno(err, saved, "cannot read '%s'", path);
        }
        if (got == 0)
            break;
        size += (size_t)got;
        if (size > max_bytes) {
            free(data);
            return error_set(err, STATUS_DATA, "'%s' has more than the %zu bytes allowed", path,
                             max_bytes);
        }
        if (size == capacity) {
            char *grown = realloc(data, capacity * 2 + 1);

            if (!grown)
                free(data);
            data = grown;
            capacity *= 2;
        }
    }
    if (!data)
        return error_set(err, STATUS_NO_MEMORY, "no memory to read '%s'", path);
    data[size] = '\0';
    *ret_data = data;
    *ret_size = size;
    return STATUS_OK;
}

enum status file_read(const char *path, size_t max_bytes, char **ret_data, size_t *ret_size,
                      struct error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    enum status status;

    if (fd < 0)
        return error_set_errno(err, errno, "cannot open '%s'", path);
    status = read_fd(fd, path, max_bytes, ret_data, ret_size, err);
    (void)close(fd);
    return status;
}

enum status file_write_all(int fd, const char *path, const void *data, size_t size,
                           struct error *err)
{
    const char *next = data;

    while (size > 0) {
        ssize_t put = write(fd, next, size);

        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return error_set_errno(err, errno, "cannot write '%s'", path);
        next += put;
        size -= (size_t)put;
    }
    return STATUS_OK;
}

enum status file_writer_open(struct file_writer *w, const char *path, struct error *err)
{
    w->fd = -1;
    if (strlen(path) >= sizeof(w->path))
        return error_set(err, STATUS_CONFIG, "path of %zu bytes is too long", strlen(path));
    (void)snprintf(w->path, sizeof(w->path), "%s", path);
    (void)snprintf(w->temporary, sizeof(w->temporary), "%s.tmp-%ld", path, (long)getpid());
    w->fd = open(w->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (w->fd < 0)
        return error_set_errno(err, errno, "cannot create '%s'", w->temporary);
    return STATUS_OK;
}

enum status file_writer_add(struct file_writer *w, const void *data, size_t size, struct error *err)
{
    return file_write_all(w->fd, w->temporary, data, size, err);
}

/* Make the rename itself durable. */
static void sync_folder_of(const char *path)
{
    char folder[4096];
    char *slash;
    int fd;

    (void)snprintf(folder, sizeof(folder), "%s", path);
    slash = strrchr(folder, '/');
    if (slash == folder)
        slash[1] = '\0';
    else if (slash)
        *slash = '\0';
    else
        (void)snprintf(folder, sizeof(folder), ".");
    fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return;
    (void)fsync(fd);
    (void)close(fd);
}

static enum status commit_file(struct file_writer *w, bool durable, struct error *err)
{
    int failed = durable && fsync(w->fd) != 0 && errno != EINVAL; /* EINVAL: a pipe or device */
    int saved = errno;

    if (close(w->fd) != 0 && !failed) {
        failed = 1;
        saved = errno;
    }
    w->fd = -1;
    if (failed) {
        (void)unlink(w->temporary);
        return error_set_errno(err, saved, "cannot write '%s'", w->temporary);
    }
    if (rename(w->temporary, w->path) != 0) {
        saved = errno;
        (void)unlink(w->temporary);
        return error_set_errno(err, saved, "cannot rename '%s' to '%s'", w->temporary, w->path);
    }
    if (durable)
        sync_folder_of(w->path);
    return STATUS_OK;
}

enum status file_writer_commit(struct file_writer *w, struct error *err)
{
    return commit_file(w, true, err);
}

void file_writer_abandon(struct file_writer *w)
{
    if (w->fd < 0)
        return;
    (void)close(w->fd);
    (void)unlink(w->temporary);
    w->fd = -1;
}

static enum status write_file(const char *path, const void *data, size_t size, bool durable,
                              struct error *err)
{
    struct file_writer w;
    enum status status = file_writer_open(&w, path, err);

    if (status != STATUS_OK)
        return status;
    status = file_writer_add(&w, data, size, err);
    if (status != STATUS_OK) {
        file_writer_abandon(&w);
        return status;
    }
    return commit_file(&w, durable, err);
}

enum status file_write_atomic(const char *path, const void *data, size_t size, struct error *err)
{
    return write_file(path, data, size, true, err);
}

enum status file_write_text(const char *path, const struct strbuf *text, struct error *err)
{
    if (!strbuf_ok(text))
        return error_set(err, STATUS_NO_MEMORY, "no memory for '%s'", path);
    return file_write_atomic(path, text->text, text->length, err);
}

enum status file_publish(const char *path, const void *data, size_t size, struct error *err)
{
    return write_file(path, data, size, false, err);
}

enum status file_make_folder(const char *path, struct error *err)
{
    char part[4096];
    size_t length = strlen(path);

    if (length == 0 || length >= sizeof(part))
        return error_set(err, STATUS_CONFIG, "cannot make folder '%s': bad length", path);
    for (size_t i = 1; i <= length; i++) {
        if (path[i] != '/' && path[i] != '\0')
            continue;
        memcpy(part, path, i);
        part[i] = '\0';
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            return error_set_errno(err, errno, "cannot make folder '%s'", part);
    }
    return STATUS_OK;
}

/* The error with the process id in the file, which may still be empty. */
static enum status refuse_lock(int fd, const char *folder, const char *user, struct error *err)
{
    char pid[32] = "";
    ssize_t length = pread(fd, pid, sizeof(pid) - 1, 0);

    pid[length > 0 ? length : 0] = '\0';
    pid[strspn(pid, "0123456789")] = '\0';
    return error_set(err, STATUS_EXISTS, "the folder '%s' is used by another %s (pid %s)", folder,
                     user, pid[0] ? pid : "unknown");
}

/* flock's, which the kernel releases when the process dies. */
enum status file_lock_folder(const char *folder, const char *user, int *ret_fd, struct error *err)
{
    char path[4096], pid[32];
    int length = snprintf(pid, sizeof(pid), "%ld\n", (long)getpid());
    enum status status = file_join(path, sizeof(path), folder, "lock", err);
    int fd;

    if (status != STATUS_OK)
        return status;
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        return error_set_errno(err, errno, "cannot open '%s'", path);
    if (flock(fd, LOCK_EX | LOCK_NB) != 0)
        status = errno == EWOULDBLOCK
                     ? refuse_lock(fd, folder, user, err)
                     : error_set(err, errno == EINTR ? STATUS_IO : STATUS_UNSUPPORTED,
                                 "cannot lock '%s': %s", path, strerror(errno));
    else if (ftruncate(fd, 0) != 0)
        status = error_set_errno(err, errno, "cannot write '%s'", path);
    else
        status = file_write_all(fd, path, pid, (size_t)length, err);
    if (status == STATUS_OK)
        *ret_fd = fd;
    else
        (void)close(fd);
    return status;
}

enum status file_join(char *text, size_t size, const char *folder, const char *name,
                      struct error *err)
{
    int length = snprintf(text, size, "%s/%s", folder, name);

    if (length < 0 || (size_t)length >= size)
        return error_set(err, STATUS_CONFIG, "path '%s/%s' is too long", folder, name);
    return STATUS_OK;
}
