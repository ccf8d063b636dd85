/*
 * file: reads and writes whole files.  Reads are bounded; writes are atomic (a temporary file
 * beside the target, fsync, rename, fsync of the folder), so a full disk or a crash never leaves
 * a partial target file.
 */
#ifndef SPARRING_COMMON_BASE_FILE_H
#define SPARRING_COMMON_BASE_FILE_H

#include "common/base/error.h"
#include "common/base/strbuf.h"

#include <stddef.h>
#include <stdint.h>

/* Read the whole of `path`.  *ret_data is owned by the caller (free) and has a NUL byte after
 * *ret_size bytes.  A file of more than max_bytes is STATUS_DATA and is not read. */
enum status file_read(const char *path, size_t max_bytes, char **ret_data, size_t *ret_size,
                      struct error *err);

/* Write all bytes to fd, continuing after short writes; an error names `path`. */
enum status file_write_all(int fd, const char *path, const void *data, size_t size,
                           struct error *err);

/* An atomic write in progress: open, write in pieces, then commit or (on any failure) abandon. */
struct file_writer {
    char path[4096];
    char temporary[4096 + 32];
    int fd; /* -1 when closed */
};
enum status file_writer_open(struct file_writer *w, const char *path, struct error *err);
enum status file_writer_add(struct file_writer *w, const void *data, size_t size,
                            struct error *err);
enum status file_writer_commit(struct file_writer *w, struct error *err);
void file_writer_abandon(struct file_writer *w); /* removes the temporary file; safe after commit */

/* The three calls above for one buffer. */
enum status file_write_atomic(const char *path, const void *data, size_t size, struct error *err);

/* The same for a strbuf, which the caller keeps; STATUS_NO_MEMORY when it has failed. */
enum status file_write_text(const char *path, const struct strbuf *text, struct error *err);

/* file_write_atomic without fsync, which can take many seconds on a busy disk: for a file about
 * running processes (a port) that is useless after a power failure. */
enum status file_publish(const char *path, const void *data, size_t size, struct error *err);

/* mkdir -p. */
enum status file_make_folder(const char *path, struct error *err);

/* Take FOLDER/lock for this process until *ret_fd is closed (not inherited by programs it starts).
 * STATUS_EXISTS names the process that has it, as another `user` ("server"); STATUS_UNSUPPORTED:
 * the filesystem has no locks. */
enum status file_lock_folder(const char *folder, const char *user, int *ret_fd, struct error *err);

/* "folder/name" into text; STATUS_CONFIG when it does not fit. */
enum status file_join(char *text, size_t size, const char *folder, const char *name,
                      struct error *err);

#endif
