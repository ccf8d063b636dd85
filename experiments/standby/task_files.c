/*
 * task_files: walks over a task's folder; links are neither followed nor sent.
 */
#include "experiments/standby/task.h"

#include "common/base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

struct file_sender {
    char *roots[2]; /* owned; for fts */
    size_t skipped; /* bytes of a path up to the name below the folder */
    FTS *walk;
    int fd; /* of the file under way; -1: none */
    char name[WIRE_STANDBY_NAME_MAX];
    uint64_t offset;
    uint8_t data[WIRE_STANDBY_DATA_MAX];
};

enum status file_sender_open(const char *folder, struct file_sender **ret, struct error *err)
{
    struct file_sender *f = NULL;
    enum status status = mem_calloc(1, sizeof(*f), "a sender of files", &f, err);

    *ret = f;
    if (status != STATUS_OK)
        return status;
    f->fd = -1;
    f->skipped = strlen(folder) + 1;
    status = mem_strdup(folder, &f->roots[0], err);
    if (status != STATUS_OK)
        return status;
    f->walk = fts_open(f->roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    return f->walk ? STATUS_OK : error_set_errno(err, errno, "cannot read '%s'", folder);
}

/* The next regular file, into fd and name; fd is -1 behind the last. */
static enum status open_next(struct file_sender *f, struct error *err)
{
    const FTSENT *entry;

    while ((entry = fts_read(f->walk))) {
        if (entry->fts_info != FTS_F)
            continue;
        if (strlen(entry->fts_path + f->skipped) >= sizeof(f->name))
            return error_set(err, STATUS_UNSUPPORTED, "the name '%s' is too long",
                             entry->fts_path + f->skipped);
        (void)snprintf(f->name, sizeof(f->name), "%s", entry->fts_path + f->skipped);
        f->fd = open(entry->fts_path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        f->offset = 0;
        return f->fd >= 0 ? STATUS_OK : error_set_errno(err, errno, "cannot read '%s'", f->name);
    }
    return STATUS_OK;
}

static ssize_t read_piece(struct file_sender *f)
{
    ssize_t got;

    do {
        got = read(f->fd, f->data, sizeof(f->data));
    } while (got < 0 && errno == EINTR);
    return got;
}

static enum status fail_to_read(const struct file_sender *f, struct error *err)
{
    return error_set_errno(err, errno, "cannot read '%s'", f->name);
}

enum status file_sender_next(struct file_sender *f, struct standby_reply *ret, struct error *err)
{
    enum status status;
    ssize_t got = 0;

    *ret = (struct standby_reply){0};
    if (f->fd >= 0) {
        got = read_piece(f);
        if (got < 0)
            return fail_to_read(f, err);
        if (got == 0) {
            (void)close(f->fd);
            f->fd = -1;
        }
    }
    if (f->fd < 0) { /* the first piece of the next file may be empty */
        status = open_next(f, err);
        if (status != STATUS_OK || f->fd < 0)
            return status;
        got = read_piece(f);
        if (got < 0)
            return fail_to_read(f, err);
    }
    *ret = (struct standby_reply){.kind = STANDBY_FILE,
                                  .offset = f->offset,
                                  .crc = (uint32_t)crc32(0, f->data, (uInt)got),
                                  .data = f->data,
                                  .size = (size_t)got};
    (void)snprintf(ret->name, sizeof(ret->name), "%s", f->name);
    f->offset += (uint64_t)got;
    return STATUS_OK;
}

void file_sender_close(struct file_sender *f)
{
    if (!f)
        return;
    if (f->fd >= 0)
        (void)close(f->fd);
    if (f->walk)
        (void)fts_close(f->walk);
    free(f->roots[0]);
    free(f);
}
