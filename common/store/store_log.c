/*
 * The append-only file of a file store.
 *
 * The lock is an open-file-description lock (fcntl F_OFD_SETLK): it belongs to the handle, not to
 * the process, so two handles of one process exclude each other, and the kernel releases it when
 * the process dies.  A record is committed by writing the committed size (8 bytes) after it; a
 * writer that is killed before that leaves bytes that are never read. Nothing is compacted: a file
 * that reaches STORE_LOG_BYTES_MAX accepts no more records. No fsync: a rendezvous does not outlive
 * its hosts.
 */
#include "common/store/store_log.h"

#include "common/base/memory.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

enum { header_size = 32, committed_offset = 16, record_head_size = 20 };

static const char file_magic[16] = "sparring store 1"; /* without its NUL */
static const uint32_t record_magic = 0x52505353;       /* "SSPR" */

struct record_head {
    uint32_t magic;
    uint32_t kind;
    uint32_t key_size;
    uint32_t value_size;
    uint32_t crc; /* of kind, sizes, key and value */
};

static uint32_t record_crc(const struct record_head *head, const void *key, const void *value)
{
    uLong crc = crc32(0, (const Bytef *)&head->kind, 3 * sizeof(uint32_t));

    crc = crc32(crc, key, le32toh(head->key_size));
    if (head->value_size != 0)
        crc = crc32(crc, value, le32toh(head->value_size));
    return htole32((uint32_t)crc);
}

static enum status read_at(const struct store_log *log, void *data, size_t size, uint64_t offset,
                           struct error *err)
{
    char *next = data;

    while (size > 0) {
        ssize_t got = pread(log->fd, next, size, (off_t)offset);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return error_set_errno(err, errno, "cannot read store file '%s'", log->path);
        if (got == 0)
            return error_set(err, STATUS_DATA, "store file '%s' ends at byte %" PRIu64, log->path,
                             offset);
        next += got;
        offset += (uint64_t)got;
        size -= (size_t)got;
    }
    return STATUS_OK;
}

static enum status write_at(const struct store_log *log, const void *data, size_t size,
                            uint64_t offset, struct error *err)
{
    const char *next = data;

    while (size > 0) {
        ssize_t put = pwrite(log->fd, next, size, (off_t)offset);

        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return error_set_errno(err, errno, "cannot write store file '%s'", log->path);
        next += put;
        offset += (uint64_t)put;
        size -= (size_t)put;
    }
    return STATUS_OK;
}

/* ---- opening and locking */

static enum status open_file(struct store_log *log, struct error *err)
{
    struct stat info;
    int fd = open(log->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666);

    if (fd < 0)
        return error_set_errno(err, errno, "cannot open store file '%s'", log->path);
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        (void)close(fd);
        return error_set(err, STATUS_CONFIG, "store file '%s' is not a regular file", log->path);
    }
    if (log->fd >= 0)
        (void)close(log->fd);
    log->fd = fd;
    return STATUS_OK;
}

enum status store_log_open(struct store_log *log, const char *path, struct error *err)
{
    enum status status;

    *log = (struct store_log){.fd = -1};
    status = mem_strdup(path, &log->path, err);
    if (status == STATUS_OK)
        status = store_table_open(STORE_BYTES_MAX, &log->table, err);
    if (status == STATUS_OK)
        status = open_file(log, err);
    if (status != STATUS_OK)
        store_log_release(log);
    return status;
}

void store_log_release(struct store_log *log)
{
    if (log->fd >= 0)
        (void)close(log->fd); /* drops the lock, too */
    store_table_close(log->table);
    free(log->path);
    *log = (struct store_log){.fd = -1};
}

enum status store_log_try_lock(struct store_log *log, bool exclusive, bool *ret_locked,
                               struct error *err)
{
    struct flock lock = {.l_type = exclusive ? F_WRLCK : F_RDLCK, .l_whence = SEEK_SET};
    struct stat info;

    *ret_locked = false;
    if (fcntl(log->fd, F_OFD_SETLK, &lock) != 0) {
        if (errno == EAGAIN || errno == EACCES || errno == EINTR)
            return STATUS_OK;
        return error_set_errno(err, errno, "cannot lock store file '%s'", log->path);
    }
    if (fstat(log->fd, &info) == 0 && info.st_nlink == 0) {
        /* The last rank of an earlier job has removed it since our open. */
        if (!log->has_written) {
            store_table_clear(log->table);
            log->applied = 0;
            return open_file(log, err); /* unlocked: the caller tries again */
        }
        store_log_unlock(log);
        return error_set(err, STATUS_IO, "store file '%s' was removed while it was in use",
                         log->path);
    }
    *ret_locked = true;
    return STATUS_OK;
}

void store_log_unlock(struct store_log *log)
{
    struct flock lock = {.l_type = F_UNLCK, .l_whence = SEEK_SET};

    (void)fcntl(log->fd, F_OFD_SETLK, &lock);
}

/* ---- reading */

static enum status read_header(const struct store_log *log, uint64_t size, uint64_t *ret_committed,
                               struct error *err)
{
    char header[header_size];
    uint64_t committed;
    enum status status;

    if (size < header_size && log->applied > 0)
        return error_set(err, STATUS_DATA, "store file '%s' was cut off to %" PRIu64 " bytes",
                         log->path, size);
    if (size < header_size)
        return error_set(err, STATUS_DATA,
                         "'%s' of %" PRIu64 " bytes is not a store file: it must not exist, be "
                         "empty, or be one of ours",
                         log->path, size);
    status = read_at(log, header, header_size, 0, err);
    if (status != STATUS_OK)
        return status;
    if (memcmp(header, file_magic, sizeof(file_magic)) != 0)
        return error_set(err, STATUS_DATA,
                         "'%s' is not a store file: it must not exist, be empty, or be one of ours",
                         log->path);
    memcpy(&committed, header + committed_offset, sizeof(committed));
    committed = le64toh(committed);
    if (committed < header_size || committed > STORE_LOG_BYTES_MAX)
        return error_set(err, STATUS_DATA, "store file '%s' is damaged: its size field is %" PRIu64,
                         log->path, committed);
    if (committed > size)
        return error_set(err, STATUS_DATA,
                         "store file '%s' is cut off: %" PRIu64 " of %" PRIu64 " bytes are there",
                         log->path, size, committed);
    if (committed < log->applied)
        return error_set(err, STATUS_DATA, "store file '%s' was overwritten while it was in use",
                         log->path);
    *ret_committed = committed;
    return STATUS_OK;
}

static enum status damaged_error(const struct store_log *log, struct error *err)
{
    return error_set(err, STATUS_DATA, "store file '%s' is damaged: bad record at byte %" PRIu64,
                     log->path, log->applied);
}

static enum status apply_record(struct store_log *log, enum store_record kind, const char *key,
                                const void *value, size_t size, struct error *err)
{
    if (kind != STORE_DELETE)
        return store_table_set(log->table, key, value, size, kind == STORE_PUT_COUNTER, err);
    (void)store_table_delete(log->table, key);
    return STATUS_OK;
}

/* Apply the record at log->applied, which must end by `committed`. */
static enum status read_record(struct store_log *log, uint64_t committed, struct error *err)
{
    struct record_head head;
    size_t key_size;
    size_t value_size;
    char *body = NULL;
    char key[STORE_KEY_MAX + 1];
    enum status status;

    if (committed - log->applied < record_head_size)
        return damaged_error(log, err);
    status = read_at(log, &head, record_head_size, log->applied, err);
    if (status != STATUS_OK)
        return status;
    key_size = le32toh(head.key_size);
    value_size = le32toh(head.value_size);
    if (le32toh(head.magic) != record_magic || key_size == 0 || key_size > STORE_KEY_MAX ||
        value_size > STORE_VALUE_MAX ||
        committed - log->applied - record_head_size < key_size + value_size)
        return damaged_error(log, err);
    status = mem_calloc(key_size + value_size, 1, "a store record", &body, err);
    if (status == STATUS_OK)
        status = read_at(log, body, key_size + value_size, log->applied + record_head_size, err);
    if (status == STATUS_OK &&
        (record_crc(&head, body, body + key_size) != head.crc || memchr(body, '\0', key_size) ||
         le32toh(head.kind) < STORE_PUT || le32toh(head.kind) > STORE_DELETE))
        status = damaged_error(log, err);
    if (status == STATUS_OK) {
        memcpy(key, body, key_size);
        key[key_size] = '\0';
        status = apply_record(log, (enum store_record)le32toh(head.kind), key, body + key_size,
                              value_size, err);
    }
    if (status == STATUS_OK)
        log->applied += record_head_size + key_size + value_size;
    free(body);
    return status;
}

enum status store_log_catch_up(struct store_log *log, struct error *err)
{
    struct stat info;
    uint64_t committed = 0;
    enum status status;

    if (fstat(log->fd, &info) != 0)
        return error_set_errno(err, errno, "cannot stat store file '%s'", log->path);
    if (info.st_size == 0 && log->applied == 0)
        return STATUS_OK; /* nothing has been written yet */
    status = read_header(log, (uint64_t)info.st_size, &committed, err);
    if (status != STATUS_OK)
        return status;
    if (log->applied == 0)
        log->applied = header_size;
    while (status == STATUS_OK && log->applied < committed)
        status = read_record(log, committed, err);
    return status;
}

/* ---- writing */

static enum status write_committed(const struct store_log *log, uint64_t committed,
                                   struct error *err)
{
    const uint64_t field = htole64(committed);

    return write_at(log, &field, sizeof(field), committed_offset, err);
}

static enum status write_header(struct store_log *log, struct error *err)
{
    char header[header_size] = {0};
    const uint64_t committed = htole64(header_size);
    enum status status;

    memcpy(header, file_magic, sizeof(file_magic));
    memcpy(header + committed_offset, &committed, sizeof(committed));
    status = write_at(log, header, header_size, 0, err);
    if (status == STATUS_OK)
        log->applied = header_size;
    else if (ftruncate(log->fd, 0) != 0)
        return error_prefix(err, "(and cannot empty the file) ");
    return status;
}

static enum status append_record(struct store_log *log, enum store_record kind, const char *key,
                                 const void *value, size_t size, struct error *err)
{
    const size_t key_size = strnlen(key, STORE_KEY_MAX);
    const size_t total = record_head_size + key_size + size;
    struct record_head head = {.magic = htole32(record_magic),
                               .kind = htole32((uint32_t)kind),
                               .key_size = htole32((uint32_t)key_size),
                               .value_size = htole32((uint32_t)size)};
    char *bytes = NULL;
    enum status status = STATUS_OK;

    if (log->applied == 0)
        status = write_header(log, err);
    if (status == STATUS_OK && log->applied + total > STORE_LOG_BYTES_MAX)
        status = error_set(err, STATUS_NO_SPACE, "store file '%s' is full: %u bytes are allowed",
                           log->path, STORE_LOG_BYTES_MAX);
    if (status == STATUS_OK)
        status = mem_calloc(total, 1, "a store record", &bytes, err);
    if (status != STATUS_OK)
        return status;
    head.crc = record_crc(&head, key, value);
    memcpy(bytes, &head, record_head_size);
    memcpy(bytes + record_head_size, key, key_size);
    if (size > 0)
        memcpy(bytes + record_head_size + key_size, value, size);
    status = write_at(log, bytes, total, log->applied, err);
    if (status == STATUS_OK)
        status = write_committed(log, log->applied + total, err);
    if (status == STATUS_OK)
        log->applied += total;
    free(bytes);
    return status;
}

enum status store_log_append(struct store_log *log, enum store_record kind, const char *key,
                             const void *value, size_t size, struct error *err)
{
    enum status status = append_record(log, kind, key, value, size, err);

    if (status == STATUS_OK) {
        log->has_written = true;
        return STATUS_OK;
    }
    store_table_clear(log->table); /* it contains a change that the file lacks */
    log->applied = 0;
    return status;
}

enum status store_log_remove(struct store_log *log, struct error *err)
{
    if (unlink(log->path) != 0 && errno != ENOENT)
        return error_set_errno(err, errno, "cannot remove store file '%s'", log->path);
    return STATUS_OK;
}
