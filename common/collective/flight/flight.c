/*
 * The recorder's writer: a mapped file, or memory, laid out as flight_layout.h says.
 *
 * The operation with index i (1, 2, ...) takes cell (i - 1) % entries, so the ring always holds the
 * newest ones.  Indices are handed out atomically; a cell is changed under its sequence lock, which
 * is a try-lock here: two writers meet in one cell only when an operation is still under way while
 * a whole ring of newer ones went by, and then the older one has lost its cell anyway.
 * Pages are reserved and touched when the file is opened: a full disk fails the open, not a store.
 */
#include "common/collective/flight/flight.h"

#include "common/base/clock.h"
#include "common/base/memory.h"
#include "common/collective/flight/flight_layout.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct flight {
    struct flight_header *header; /* owned mapping */
    struct flight_cell *cells;    /* in it */
    uint64_t entries;
    size_t size; /* bytes of the mapping */
};

/* ---- lifetime ---- */

static enum status make_file(const char *path, size_t size, int *ret_fd, struct error *err)
{
    int fd;
    int failed;

    if (unlink(path) != 0 && errno != ENOENT)
        return error_set_errno(err, errno, "cannot replace the flight recorder's '%s'", path);
    fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return error_set_errno(err, errno, "cannot create the flight recorder's '%s'", path);
    failed = posix_fallocate(fd, 0, (off_t)size);
    if (failed != 0) {
        (void)close(fd);
        (void)unlink(path);
        return error_set_errno(err, failed, "no %zu bytes for the flight recorder's '%s'", size,
                               path);
    }
    *ret_fd = fd;
    return STATUS_OK;
}

static enum status map_recorder(struct flight *f, const char *path, struct error *err)
{
    int fd = -1;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    void *base;

    if (path) {
        enum status status = make_file(path, f->size, &fd, err);

        if (status != STATUS_OK)
            return status;
        flags = MAP_SHARED | MAP_POPULATE;
    }
    base = mmap(NULL, f->size, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (fd >= 0)
        (void)close(fd);
    if (base == MAP_FAILED)
        return error_set_errno(err, errno, "cannot map %zu bytes for the flight recorder", f->size);
    f->header = base;
    f->cells = (struct flight_cell *)(void *)((char *)base + FLIGHT_HEADER_BYTES);
    return STATUS_OK;
}

static void fill_header(struct flight *f, const struct flight_config *config)
{
    struct flight_header *h = f->header;
    uint64_t magic;

    h->version = FLIGHT_VERSION;
    h->byte_order = FLIGHT_BYTE_ORDER;
    h->header_bytes = FLIGHT_HEADER_BYTES;
    h->cell_bytes = sizeof(struct flight_cell);
    h->entries = f->entries;
    h->rank = config->rank;
    h->world_size = config->world_size;
    h->pid = getpid();
    h->opened_wall = clock_wall_seconds();
    h->opened_ns = clock_now_ns();
    h->culprit = -1;
    memcpy(&magic, FLIGHT_MAGIC, sizeof(magic));
    atomic_store_explicit(&h->magic_word, magic, memory_order_release);
}

enum status flight_open(const struct flight_config *config, struct flight **ret, struct error *err)
{
    uint64_t entries = config->entries > 0 ? config->entries : FLIGHT_ENTRIES;
    struct flight *f;
    enum status status;

    if (entries > FLIGHT_ENTRIES_MAX)
        return error_set(err, STATUS_INVALID, "a flight recorder of %zu entries: at most %ju",
                         config->entries, (uintmax_t)FLIGHT_ENTRIES_MAX);
    status = mem_calloc(1, sizeof(*f), "flight recorder", &f, err);
    if (status != STATUS_OK)
        return status;
    f->entries = entries;
    f->size = FLIGHT_HEADER_BYTES + entries * sizeof(struct flight_cell);
    status = map_recorder(f, config->path, err);
    if (status != STATUS_OK) {
        free(f);
        return status;
    }
    fill_header(f, config);
    *ret = f;
    return STATUS_OK;
}

void flight_close(struct flight *f)
{
    if (!f)
        return;
    (void)munmap(f->header, f->size);
    free(f);
}

/* ---- cells ---- */

/* Release order: a reader that sees a word also sees all earlier stores, the odd lock first. */
static void store_word(struct flight_cell *cell, enum flight_word word, uint64_t value)
{
    atomic_store_explicit(&cell->words[word], value, memory_order_release);
}

static uint64_t load_word(const struct flight_cell *cell, enum flight_word word)
{
    return atomic_load_explicit(&cell->words[word], memory_order_relaxed);
}

/* False when another writer is in the cell. */
static bool lock_cell(struct flight_cell *cell)
{
    uint64_t lock = load_word(cell, FLIGHT_LOCK);

    if (lock & 1 ||
        !atomic_compare_exchange_strong_explicit(&cell->words[FLIGHT_LOCK], &lock, lock + 1,
                                                 memory_order_acquire, memory_order_relaxed))
        return false;
    return true;
}

static void unlock_cell(struct flight_cell *cell)
{
    atomic_store_explicit(&cell->words[FLIGHT_LOCK], load_word(cell, FLIGHT_LOCK) + 1,
                          memory_order_release);
}

static struct flight_cell *cell_of(struct flight *f, uint64_t index)
{
    return &f->cells[(index - 1) % f->entries];
}

static void put_entry(struct flight_cell *cell, const struct flight_entry *entry, uint64_t index)
{
    const struct signature *s = &entry->signature;
    uint64_t words[FLIGHT_NAME_MAX / sizeof(uint64_t)];

    memcpy(words, entry->group, sizeof(words));
    store_word(cell, FLIGHT_INDEX, 0);
    store_word(cell, FLIGHT_STATE, FLIGHT_QUEUED);
    store_word(cell, FLIGHT_WHAT,
               (uint64_t)s->generation << 32 | (uint64_t)s->order << 24 | (uint64_t)s->op << 16 |
                   (uint64_t)s->dtype << 8 | (uint64_t)s->call);
    store_word(cell, FLIGHT_GROUP, s->group);
    store_word(cell, FLIGHT_SEQUENCE, s->sequence);
    store_word(cell, FLIGHT_COUNT, s->count);
    store_word(cell, FLIGHT_ROOT, s->root);
    store_word(cell, FLIGHT_STEP, entry->step);
    store_word(cell, FLIGHT_BUCKET,
               (uint64_t)(uint32_t)entry->buckets << 32 | (uint32_t)entry->bucket);
    store_word(cell, FLIGHT_QUEUED_NS, (uint64_t)entry->queued_ns);
    store_word(cell, FLIGHT_STARTED_NS, 0);
    store_word(cell, FLIGHT_ENDED_NS, 0);
    store_word(cell, FLIGHT_DONE_BYTES, 0);
    store_word(cell, FLIGHT_TOTAL_BYTES, 0);
    for (unsigned i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        store_word(cell, FLIGHT_NAME + i, words[i]);
    store_word(cell, FLIGHT_INDEX, index);
}

size_t flight_queue(struct flight *f, const struct flight_entry *entry)
{
    uint64_t index = atomic_fetch_add_explicit(&f->header->recorded, 1, memory_order_relaxed) + 1;
    struct flight_cell *cell = cell_of(f, index);

    if (lock_cell(cell)) {
        put_entry(cell, entry, index);
        unlock_cell(cell);
    }
    return (size_t)index;
}

/* Lock the cell if it still holds that operation. */
static struct flight_cell *lock_entry_cell(struct flight *f, size_t index)
{
    struct flight_cell *cell = cell_of(f, index);

    if (!lock_cell(cell))
        return NULL;
    if (load_word(cell, FLIGHT_INDEX) == index)
        return cell;
    unlock_cell(cell);
    return NULL;
}

void flight_start(struct flight *f, size_t index, int64_t now_ns)
{
    struct flight_cell *cell = lock_entry_cell(f, index);

    if (!cell)
        return;
    store_word(cell, FLIGHT_STARTED_NS, (uint64_t)now_ns);
    store_word(cell, FLIGHT_STATE, FLIGHT_RUNNING);
    unlock_cell(cell);
}

void flight_progress(struct flight *f, size_t index, uint64_t done_bytes, uint64_t total_bytes)
{
    struct flight_cell *cell = cell_of(f, index);

    if (load_word(cell, FLIGHT_INDEX) != index)
        return;
    store_word(cell, FLIGHT_DONE_BYTES, done_bytes);
    if (load_word(cell, FLIGHT_TOTAL_BYTES) != total_bytes)
        store_word(cell, FLIGHT_TOTAL_BYTES, total_bytes);
}

void flight_end(struct flight *f, size_t index, bool ok, uint64_t done_bytes, uint64_t total_bytes,
                int64_t now_ns)
{
    struct flight_cell *cell = lock_entry_cell(f, index);

    if (!cell)
        return;
    store_word(cell, FLIGHT_ENDED_NS, (uint64_t)now_ns);
    store_word(cell, FLIGHT_DONE_BYTES, done_bytes);
    store_word(cell, FLIGHT_TOTAL_BYTES, total_bytes);
    store_word(cell, FLIGHT_STATE, ok ? FLIGHT_DONE : FLIGHT_FAILED);
    unlock_cell(cell);
}

void flight_fail(struct flight *f, enum fault fault, int culprit, const char *reason)
{
    struct flight_header *h = f->header;
    uint32_t none = FLIGHT_NO_NOTICE;

    if (!atomic_compare_exchange_strong(&h->notice, &none, FLIGHT_NOTICE_COMING))
        return;
    h->fault = (int32_t)fault;
    h->culprit = culprit;
    (void)snprintf(h->reason, sizeof(h->reason), "%s", reason);
    atomic_store_explicit(&h->notice, FLIGHT_NOTICE, memory_order_release);
}

void flight_rearm(struct flight *f)
{
    f->header->culprit = -1;
    f->header->fault = FAULT_NONE;
    atomic_store_explicit(&f->header->notice, FLIGHT_NO_NOTICE, memory_order_release);
}
