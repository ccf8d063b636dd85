/*
 * Reading of journals.  Every byte may be wrong: sizes are checked before they are used, and the
 * memory is that of the largest allowed record.
 *
 * A damaged record is a torn tail if no valid record head follows it; else the file is damaged.
 * If the damaged record's own head is valid, it gives the offset of the next one; else every
 * aligned offset is searched.  A head with a correct checksum proves a further record.
 */
#include "server/persistence/journal.h"

#include "common/base/memory.h"
#include "server/persistence/journal_format.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#define SCAN_BYTES ((size_t)64 << 10)

struct reader {
    int fd;
    const char *name;
    const struct journal_head *wanted;
    uint64_t end;        /* bytes of the file */
    unsigned char *body; /* owned; clocks, payload and flags of the largest record */
};

/* Read exactly size bytes, which are in the file. */
static enum status read_at(const struct reader *r, void *data, size_t size, uint64_t offset,
                           struct error *err)
{
    char *next = data;

    while (size > 0) {
        ssize_t got = pread(r->fd, next, size, (off_t)offset);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return error_set_errno(err, errno, "cannot read journal '%s'", r->name);
        if (got == 0)
            return error_set(err, STATUS_IO, "journal '%s' became shorter while it was read",
                             r->name);
        next += got;
        offset += (uint64_t)got;
        size -= (size_t)got;
    }
    return STATUS_OK;
}

static enum status check_head(const struct reader *r, struct error *err)
{
    struct journal_file_head head, wanted = journal_make_head(r->wanted);
    enum status status = read_at(r, &head, sizeof(head), 0, err);

    if (status != STATUS_OK)
        return status;
    if (memcmp(head.magic, wanted.magic, sizeof(head.magic)) != 0)
        return error_set(err, STATUS_DATA, "'%s' is not a journal", r->name);
    if (head.version != JOURNAL_VERSION)
        return error_set(err, STATUS_DATA,
                         "journal '%s' has version %" PRIu32 ", this program writes %u", r->name,
                         head.version, JOURNAL_VERSION);
    if (head.crc !=
        (uint32_t)crc32(0, (const Bytef *)&head, offsetof(struct journal_file_head, crc)))
        return error_set(err, STATUS_DATA, "journal '%s' is damaged at byte 0 (its head)", r->name);
    if (memcmp(&head, &wanted, sizeof(head)) != 0)
        return error_set(err, STATUS_DATA,
                         "journal '%s' belongs to another job (%" PRIu32 " ranks, terms %016" PRIx64
                         ", generation %" PRIu64 "; wanted: %" PRIu32 ", %016" PRIx64 ", %" PRIu64
                         ")",
                         r->name, head.world_size, head.digest, head.generation, wanted.world_size,
                         wanted.digest, wanted.generation);
    return STATUS_OK;
}

/* Could this be the head of a record of this journal? */
static bool is_record_head(const struct reader *r, const struct journal_record_head *h)
{
    return h->magic == journal_record_magic &&
           h->crc ==
               (uint32_t)crc32(0, (const Bytef *)h, offsetof(struct journal_record_head, crc)) &&
           (h->clocks == 0 || h->clocks == r->wanted->world_size) &&
           h->payload_bytes <= JOURNAL_PAYLOAD_MAX;
}

/* Search for a valid record head from `offset` on, which is a multiple of JOURNAL_ALIGN. */
static enum status find_record_head(const struct reader *r, uint64_t offset, bool *ret_found,
                                    struct error *err)
{
    unsigned char *window = r->body; /* at least SCAN_BYTES */
    struct journal_record_head head;

    *ret_found = false;
    while (r->end - offset >= sizeof(head)) {
        uint64_t left = r->end - offset;
        size_t size = left < SCAN_BYTES ? (size_t)left : SCAN_BYTES, at;
        enum status status = read_at(r, window, size, offset, err);

        if (status != STATUS_OK)
            return status;
        for (at = 0; size - at >= sizeof(head); at += JOURNAL_ALIGN) {
            memcpy(&head, window + at, sizeof(head));
            *ret_found = is_record_head(r, &head);
            if (*ret_found)
                return STATUS_OK;
        }
        offset += at;
    }
    return STATUS_OK;
}

/* The record at `offset` has a wrong head or body, and the next would begin at or after `next`:
 * STATUS_OK if it is a torn tail, STATUS_DATA if a valid record follows. */
static enum status check_torn_tail(const struct reader *r, uint64_t offset, uint64_t next,
                                   struct error *err)
{
    bool found = false;
    enum status status = STATUS_OK;

    if (next < r->end)
        status = find_record_head(r, next, &found, err);
    if (status == STATUS_OK && found)
        return error_set(err, STATUS_DATA,
                         "journal '%s' is damaged at byte %" PRIu64
                         ", and there are records behind it",
                         r->name, offset);
    return status;
}

/* Read the record at `offset`; *ret_next stays 0 when there is no whole one. */
static enum status read_record(const struct reader *r, uint64_t offset, struct journal_record *ret,
                               uint64_t *ret_next, struct error *err)
{
    struct journal_record_head head;
    size_t body;
    uint64_t next;
    enum status status;

    if (r->end - offset < sizeof(head))
        return STATUS_OK;
    status = read_at(r, &head, sizeof(head), offset, err);
    if (status != STATUS_OK)
        return status;
    if (!is_record_head(r, &head))
        return check_torn_tail(r, offset, offset + JOURNAL_ALIGN, err);
    next = offset + journal_record_bytes(head.clocks, (size_t)head.payload_bytes);
    body = head.clocks * (sizeof(uint64_t) + 1) + (size_t)head.payload_bytes;
    if (next > r->end)
        return STATUS_OK; /* no record can follow it */
    status = read_at(r, r->body, body, offset + sizeof(head), err);
    if (status != STATUS_OK)
        return status;
    if (head.body_crc != (uint32_t)crc32(crc32(0, NULL, 0), r->body, (uInt)body))
        return check_torn_tail(r, offset, next, err);
    *ret = (struct journal_record){.kind = head.kind,
                                   .partition = head.partition,
                                   .step = head.step,
                                   .rate = head.rate,
                                   .size = (size_t)head.payload_bytes};
    if (head.clocks > 0) {
        ret->clocks = (const uint64_t *)(const void *)r->body;
        ret->flags = r->body + body - head.clocks;
    }
    if (ret->size > 0)
        ret->payload = r->body + head.clocks * sizeof(uint64_t);
    *ret_next = next;
    return STATUS_OK;
}

static enum status read_records(const struct reader *r, journal_record_fn apply, void *user,
                                struct journal_read_result *out, struct error *err)
{
    out->size = JOURNAL_HEAD;
    while (out->size < r->end) {
        struct journal_record record = {0};
        uint64_t next = 0;
        enum status status = read_record(r, out->size, &record, &next, err);

        if (status != STATUS_OK)
            return status;
        if (next == 0)
            break;
        status = apply(user, &record, err);
        if (status != STATUS_OK) {
            (void)error_prefix(err, "journal '%s', record at byte %" PRIu64 ": ", r->name,
                               out->size);
            return status;
        }
        out->size = next;
        out->records++;
    }
    out->torn_bytes = r->end - out->size;
    return STATUS_OK;
}

enum status journal_read(int fd, const char *name, const struct journal_head *wanted,
                         journal_record_fn apply, void *user, struct journal_read_result *ret,
                         struct error *err)
{
    struct reader r = {.fd = fd, .name = name, .wanted = wanted};
    struct journal_read_result out = {0};
    struct stat info;
    enum status status;

    if (fstat(fd, &info) != 0)
        return error_set_errno(err, errno, "cannot stat journal '%s'", name);
    r.end = (uint64_t)info.st_size;
    if (r.end < JOURNAL_HEAD) {
        out.torn_bytes = r.end;
    } else {
        status = check_head(&r, err);
        if (status == STATUS_OK)
            status = mem_calloc(JOURNAL_CLOCKS_MAX * (sizeof(uint64_t) + 1) + JOURNAL_PAYLOAD_MAX,
                                1, "a record of the journal", &r.body, err);
        if (status == STATUS_OK)
            status = read_records(&r, apply, user, &out, err);
        free(r.body);
        if (status != STATUS_OK)
            return status;
    }
    if (ret)
        *ret = out;
    return STATUS_OK;
}
