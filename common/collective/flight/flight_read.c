/*
 * The recorder's reader.  The file is read, never mapped: one that is cut off while we look must
 * give an error, not a signal.  Whole entries of a living writer come from reading a cell until two
 * readings in a row are the same with an even lock; a cell whose lock stays odd belongs to a writer
 * that was killed or pre-empted there, and is taken as it is (see flight_layout.h).
 * Nothing in the file is trusted: every number that indexes or is shown as a name is checked.
 */
#include "common/base/file.h"
#include "common/base/memory.h"
#include "common/collective/flight/flight_layout.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILE_BYTES_MAX (FLIGHT_HEADER_BYTES + FLIGHT_ENTRIES_MAX * sizeof(struct flight_cell))
#define READINGS_MAX   100

/* A cell as plain words. */
struct words {
    uint64_t at[FLIGHT_CELL_WORDS];
};

/* ---- decoding ---- */

static enum status check_header(const char *name, const struct flight_header *h, size_t size,
                                struct error *err)
{
    if (size < FLIGHT_HEADER_BYTES || memcmp(h->magic, FLIGHT_MAGIC, sizeof(h->magic)) != 0)
        return error_set(err, STATUS_DATA, "'%s' is no flight recorder's file, or not a whole one",
                         name);
    if (h->byte_order != FLIGHT_BYTE_ORDER)
        return error_set(err, STATUS_DATA, "'%s' was recorded by a host of another byte order",
                         name);
    if (h->version != FLIGHT_VERSION || h->header_bytes != FLIGHT_HEADER_BYTES ||
        h->cell_bytes != sizeof(struct flight_cell))
        return error_set(err, STATUS_DATA, "'%s' has version %u of the flight recorder, not %u",
                         name, h->version, FLIGHT_VERSION);
    if (h->entries == 0 || h->entries > FLIGHT_ENTRIES_MAX)
        return error_set(err, STATUS_DATA, "'%s' says that it has %ju entries", name,
                         (uintmax_t)h->entries);
    if ((size - FLIGHT_HEADER_BYTES) / sizeof(struct flight_cell) < h->entries)
        return error_set(
            err, STATUS_DATA, "'%s' is cut off: %zu bytes of %ju", name, size,
            (uintmax_t)(FLIGHT_HEADER_BYTES + h->entries * sizeof(struct flight_cell)));
    return STATUS_OK;
}

/* Texts of a file that may be damaged are shown on terminals. */
static void copy_text(char *to, size_t size, const void *from)
{
    memcpy(to, from, size);
    to[size - 1] = '\0';
    for (char *p = to; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7f)
            *p = '?';
}

static bool is_valid_entry(const struct flight_entry *e)
{
    const struct signature *s = &e->signature;

    return (unsigned)s->call >= COLLECTIVE_ALL_REDUCE &&
           (unsigned)s->call < COLLECTIVE_CALL_COUNT && (unsigned)s->dtype < DTYPE_COUNT &&
           (unsigned)s->op < REDUCE_OP_COUNT && (unsigned)s->order <= REDUCE_REPRODUCIBLE &&
           (unsigned)e->state > FLIGHT_EMPTY && (unsigned)e->state <= FLIGHT_FAILED &&
           e->queued_ns >= 0 && e->started_ns >= 0 && e->ended_ns >= 0 && e->bucket >= 0 &&
           e->buckets >= 0;
}

static void decode_cell(const struct words *words, struct flight_entry *ret)
{
    const uint64_t *w = words->at;

    *ret = (struct flight_entry){
        .index = w[FLIGHT_INDEX],
        .signature = {.call = (enum collective_call)(w[FLIGHT_WHAT] & 0xff),
                      .dtype = (enum dtype)(w[FLIGHT_WHAT] >> 8 & 0xff),
                      .op = (enum reduce_op)(w[FLIGHT_WHAT] >> 16 & 0xff),
                      .order = (enum reduce_order)(w[FLIGHT_WHAT] >> 24 & 0xff),
                      .group = w[FLIGHT_GROUP],
                      .generation = (uint32_t)(w[FLIGHT_WHAT] >> 32),
                      .sequence = w[FLIGHT_SEQUENCE],
                      .count = w[FLIGHT_COUNT],
                      .root = (uint32_t)w[FLIGHT_ROOT]},
        .step = w[FLIGHT_STEP],
        .bucket = (int32_t)(uint32_t)w[FLIGHT_BUCKET],
        .buckets = (int32_t)(uint32_t)(w[FLIGHT_BUCKET] >> 32),
        .state =
            w[FLIGHT_STATE] <= FLIGHT_FAILED ? (enum flight_state)w[FLIGHT_STATE] : FLIGHT_EMPTY,
        .queued_ns = (int64_t)w[FLIGHT_QUEUED_NS],
        .started_ns = (int64_t)w[FLIGHT_STARTED_NS],
        .ended_ns = (int64_t)w[FLIGHT_ENDED_NS],
        .done_bytes = w[FLIGHT_DONE_BYTES],
        .total_bytes = w[FLIGHT_TOTAL_BYTES],
    };
    copy_text(ret->group, sizeof(ret->group), &w[FLIGHT_NAME]);
}

static int compare_index(const void *a, const void *b)
{
    uint64_t x = ((const struct flight_entry *)a)->index;
    uint64_t y = ((const struct flight_entry *)b)->index;

    return (x > y) - (x < y);
}

static void read_cells(const struct flight_header *h, const char *cells, struct flight_log *log)
{
    for (uint64_t i = 0; i < h->entries; i++) {
        struct flight_entry *entry = &log->entries[log->length];
        struct words words;

        memcpy(&words, cells + i * sizeof(words), sizeof(words));
        if (words.at[FLIGHT_INDEX] == 0)
            continue;
        decode_cell(&words, entry);
        if ((entry->index - 1) % h->entries == i && is_valid_entry(entry))
            log->length++;
        else
            log->damaged++;
    }
    qsort(log->entries, log->length, sizeof(*log->entries), compare_index);
}

enum status flight_parse(const char *name, const void *bytes, size_t size, struct flight_log *ret,
                         struct error *err)
{
    struct flight_header h = {0};
    struct flight_log log = {.culprit = -1};
    enum status status;

    if (size > 0)
        memcpy(&h, bytes, size < sizeof(h) ? size : sizeof(h));
    status = check_header(name, &h, size, err);
    if (status == STATUS_OK)
        status =
            mem_calloc(h.entries, sizeof(*log.entries), "recorded operations", &log.entries, err);
    if (status != STATUS_OK)
        return status;
    log.rank = h.rank;
    log.world_size = h.world_size;
    log.pid = h.pid;
    log.opened_wall = h.opened_wall;
    log.opened_ns = h.opened_ns;
    log.recorded = h.recorded;
    if (h.notice != FLIGHT_NO_NOTICE) {
        log.fault = h.fault >= 0 && h.fault < FAULT_COUNT ? (enum fault)h.fault : FAULT_FAILED;
        log.culprit = h.culprit >= 0 ? h.culprit : -1;
        copy_text(log.reason, sizeof(log.reason), h.reason);
    }
    read_cells(&h, (const char *)bytes + FLIGHT_HEADER_BYTES, &log);
    *ret = log;
    return STATUS_OK;
}

/* ---- the file of a writer that may be alive ---- */

/* Read the cell again until it holds still; false when the file ends before it. */
static bool read_stable_cell(int fd, off_t offset, struct words *cell)
{
    for (int i = 0; i < READINGS_MAX; i++) {
        struct words again;
        bool same;

        if (pread(fd, &again, sizeof(again), offset) != (ssize_t)sizeof(again))
            return false;
        same = memcmp(&again, cell, sizeof(again)) == 0;
        *cell = again;
        if (same && (again.at[FLIGHT_LOCK] % 2 == 0 || i == READINGS_MAX - 1))
            break;
    }
    return true;
}

static void read_stable_cells(int fd, char *bytes, size_t size)
{
    for (size_t at = FLIGHT_HEADER_BYTES; at + sizeof(struct words) <= size;
         at += sizeof(struct words)) {
        struct words cell;

        memcpy(&cell, bytes + at, sizeof(cell));
        if (!read_stable_cell(fd, (off_t)at, &cell))
            return;
        memcpy(bytes + at, &cell, sizeof(cell));
    }
}

enum status flight_read(const char *path, struct flight_log *ret, struct error *err)
{
    char *bytes = NULL;
    size_t size = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    enum status status;

    if (fd < 0)
        return error_set_errno(err, errno, "cannot open '%s'", path);
    status = file_read(path, FILE_BYTES_MAX, &bytes, &size, err);
    if (status == STATUS_OK) {
        read_stable_cells(fd, bytes, size);
        status = flight_parse(path, bytes, size, ret, err);
    }
    (void)close(fd);
    free(bytes);
    return status;
}

void flight_log_release(struct flight_log *log)
{
    if (!log)
        return;
    free(log->entries);
    *log = (struct flight_log){0};
}

double flight_wall(const struct flight_log *log, int64_t moment_ns)
{
    return log->opened_wall + (double)(moment_ns - log->opened_ns) * 1e-9;
}
