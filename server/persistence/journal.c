/*
 * Writing of journals.
 *
 * Checksums are computed before the lock is taken; under it one writev appends head, clocks,
 * payload, flags and padding.  So the file consists of whole records and at most one that the death
 * of the process cut off.  A partial write that fails is truncated, so that earlier records stay
 * readable.
 */
#include "server/persistence/journal.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "server/persistence/journal_format.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>
#include <zlib.h>

#define RECORD_IOV_COUNT 5

static uint64_t padding(uint64_t bytes)
{
    return (JOURNAL_ALIGN - bytes % JOURNAL_ALIGN) % JOURNAL_ALIGN;
}

uint64_t journal_record_bytes(size_t clocks, size_t payload)
{
    uint64_t bytes = JOURNAL_RECORD_HEAD + clocks * (sizeof(uint64_t) + 1) + payload;

    return bytes + padding(bytes);
}

struct journal_file_head journal_make_head(const struct journal_head *h)
{
    struct journal_file_head head = {.version = JOURNAL_VERSION,
                                     .world_size = h->world_size,
                                     .digest = h->digest,
                                     .generation = h->generation};

    memcpy(head.magic, journal_magic, sizeof(head.magic));
    head.crc = (uint32_t)crc32(0, (const Bytef *)&head, offsetof(struct journal_file_head, crc));
    return head;
}

static enum status copy_path(char *to, size_t size, const char *path, struct error *err)
{
    int length = snprintf(to, size, "%s", path);

    if (length < 0 || (size_t)length >= size)
        return error_set(err, STATUS_CONFIG, "the path '%s' is too long", path);
    return STATUS_OK;
}

static enum status create_file(const char *path, const struct journal_head *h, int *ret_fd,
                               struct error *err)
{
    struct journal_file_head head = journal_make_head(h);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_APPEND, 0666);
    enum status status;

    if (fd < 0)
        return error_set_errno(err, errno, "cannot create journal '%s'", path);
    status = file_write_all(fd, path, &head, sizeof(head), err);
    if (status != STATUS_OK) {
        (void)close(fd);
        (void)unlink(path);
        return status;
    }
    *ret_fd = fd;
    return STATUS_OK;
}

static void init_journal(struct journal *j, const struct journal_head *head, int fd, uint64_t size)
{
    (void)pthread_mutex_init(&j->lock, NULL);
    j->head = *head;
    j->fd = fd;
    j->size = size;
    j->records = j->bytes = 0;
    j->append_ns = 0;
    j->failure = (struct error){0};
}

enum status journal_create(struct journal *j, const char *path, const struct journal_head *head,
                           struct error *err)
{
    enum status status = copy_path(j->path, sizeof(j->path), path, err);
    int fd = -1;

    assert(head->world_size > 0 && head->world_size <= JOURNAL_CLOCKS_MAX);
    if (status == STATUS_OK)
        status = create_file(path, head, &fd, err);
    if (status != STATUS_OK) {
        j->path[0] = '\0';
        return status;
    }
    init_journal(j, head, fd, JOURNAL_HEAD);
    return STATUS_OK;
}

enum status journal_reopen(struct journal *j, const char *path, const struct journal_head *head,
                           uint64_t size, struct error *err)
{
    enum status status = copy_path(j->path, sizeof(j->path), path, err);
    int fd;

    if (status != STATUS_OK)
        return status;
    j->path[0] = '\0';
    fd = open(path, O_WRONLY | O_CLOEXEC | O_APPEND);
    if (fd < 0)
        return error_set_errno(err, errno, "cannot open journal '%s'", path);
    if (ftruncate(fd, (off_t)size) != 0) {
        int saved = errno;

        (void)close(fd);
        return error_set_errno(err, saved, "cannot cut journal '%s' at %" PRIu64, path, size);
    }
    (void)copy_path(j->path, sizeof(j->path), path, err); /* it fits */
    init_journal(j, head, fd, size);
    return STATUS_OK;
}

/* Truncate a partly written record and keep the error for all further appends.  Lock held. */
static void fail_append(struct journal *j, int number)
{
    (void)error_set_errno(&j->failure, number, "cannot write journal '%s'", j->path);
    if (ftruncate(j->fd, (off_t)j->size) != 0)
        return; /* the reader cuts it off */
}

/* Append all parts of a record.  Lock held. */
static void write_record(struct journal *j, struct iovec *iov, int count, size_t bytes)
{
    size_t written = 0;

    while (written < bytes) {
        ssize_t written_now = writev(j->fd, iov, count);
        size_t skip;

        if (written_now < 0 && errno == EINTR)
            continue;
        if (written_now <= 0) {
            fail_append(j, written_now < 0 ? errno : EIO);
            return;
        }
        written += (size_t)written_now;
        for (skip = (size_t)written_now; count > 0 && skip >= iov->iov_len; count--)
            skip -= iov++->iov_len;
        if (count > 0) {
            iov->iov_base = (char *)iov->iov_base + skip;
            iov->iov_len -= skip;
        }
    }
    j->size += bytes;
    j->records++;
    j->bytes += bytes;
}

static struct journal_record_head make_record_head(const struct journal_record *r, size_t clocks)
{
    struct journal_record_head head = {.magic = journal_record_magic,
                                       .kind = r->kind,
                                       .partition = r->partition,
                                       .clocks = (uint32_t)clocks,
                                       .step = r->step,
                                       .rate = r->rate,
                                       .payload_bytes = r->size};
    uLong crc = crc32(0, NULL, 0);

    if (clocks > 0)
        crc = crc32(crc, (const Bytef *)r->clocks, (uInt)(clocks * sizeof(uint64_t)));
    if (r->size > 0)
        crc = crc32(crc, r->payload, (uInt)r->size);
    if (clocks > 0)
        crc = crc32(crc, r->flags, (uInt)clocks);
    head.body_crc = (uint32_t)crc;
    head.crc = (uint32_t)crc32(0, (const Bytef *)&head, offsetof(struct journal_record_head, crc));
    return head;
}

/* struct iovec has no const pointers; writev does not write to them. */
static void *drop_const(const void *data)
{
    void *plain;

    memcpy(&plain, &data, sizeof(plain));
    return plain;
}

enum status journal_append(struct journal *j, const struct journal_record *r, struct error *err)
{
    static const char zeros[JOURNAL_ALIGN] = {0};
    int64_t start_ns = clock_now_ns();
    size_t clocks = r->clocks ? j->head.world_size : 0; /* constant */
    uint64_t bytes = journal_record_bytes(clocks, r->size);
    struct journal_record_head head;
    struct iovec iov[RECORD_IOV_COUNT];
    enum status status = STATUS_OK;

    assert(r->size <= JOURNAL_PAYLOAD_MAX && !r->clocks == !r->flags);
    head = make_record_head(r, clocks);
    iov[0] = (struct iovec){.iov_base = &head, .iov_len = sizeof(head)};
    iov[1] =
        (struct iovec){.iov_base = drop_const(r->clocks), .iov_len = clocks * sizeof(uint64_t)};
    iov[2] = (struct iovec){.iov_base = drop_const(r->payload), .iov_len = r->size};
    iov[3] = (struct iovec){.iov_base = drop_const(r->flags), .iov_len = clocks};
    iov[4] =
        (struct iovec){.iov_base = drop_const(zeros), .iov_len = (size_t)padding(r->size + clocks)};
    (void)pthread_mutex_lock(&j->lock);
    if (j->failure.status == STATUS_OK)
        write_record(j, iov, RECORD_IOV_COUNT, (size_t)bytes);
    if (j->failure.status != STATUS_OK)
        status = error_set(err, j->failure.status, "%s", j->failure.text);
    j->append_ns += clock_now_ns() - start_ns;
    (void)pthread_mutex_unlock(&j->lock);
    return status;
}

enum status journal_rotate(struct journal *j, const char *path, struct error *err)
{
    struct journal_head head = j->head; /* changed here only */
    char new_path[sizeof(j->path)];
    enum status status = copy_path(new_path, sizeof(new_path), path, err);
    int fd = -1, old;

    head.generation++;
    if (status == STATUS_OK)
        status = create_file(path, &head, &fd, err);
    if (status != STATUS_OK)
        return status;
    (void)pthread_mutex_lock(&j->lock);
    old = j->fd;
    memcpy(j->path, new_path, sizeof(new_path));
    j->fd = fd;
    j->head.generation = head.generation; /* appends read the rest without the lock */
    j->size = JOURNAL_HEAD;
    (void)pthread_mutex_unlock(&j->lock);
    (void)close(old);
    return STATUS_OK;
}

void journal_count(struct journal *j, uint64_t *ret_records, uint64_t *ret_bytes,
                   int64_t *ret_append_ns)
{
    (void)pthread_mutex_lock(&j->lock);
    *ret_records = j->records;
    *ret_bytes = j->bytes;
    *ret_append_ns = j->append_ns;
    (void)pthread_mutex_unlock(&j->lock);
}

void journal_length(struct journal *j, uint64_t *ret_generation, uint64_t *ret_size)
{
    (void)pthread_mutex_lock(&j->lock);
    *ret_generation = j->head.generation;
    *ret_size = j->size;
    (void)pthread_mutex_unlock(&j->lock);
}

void journal_close(struct journal *j)
{
    if (j->path[0] == '\0')
        return;
    (void)close(j->fd);
    (void)pthread_mutex_destroy(&j->lock);
    memset(j, 0, sizeof(*j));
}
