/*
 * journal: an append-only file of a shard's mutations.  After journal_append a record is in the
 * kernel's page cache: it survives the process, not the host.
 *
 * Format, little-endian.  A file head of JOURNAL_HEAD bytes: "sparring journal", version, world
 * size, digest of the job's terms, generation, CRC-32 of all that.  Then records, each aligned to 8
 * bytes: a head (magic, kind, partition, number of clocks, step, rate, payload bytes, CRC-32 of the
 * body, CRC-32 of the head), then the body: the clocks, the payload, one byte of flags per clock;
 * then zeros up to a multiple of 8.
 *
 * Damage.  A process that is killed may leave a record that the end of the file cuts off; it was
 * never acknowledged, and the reader reports its bytes as torn.  It does so too for a last record
 * with wrong bytes, as a power failure leaves one.  Any other damage is an error that names the
 * file and the offset.
 *
 * The file store's log (common/store/store_log.h) has another format, because several processes
 * write and read it at the same time.
 *
 * Threads: append, count and length from any, serialised by the lock; create, reopen, rotate and
 * close from one.
 */
#ifndef SPARRING_SERVER_PERSISTENCE_JOURNAL_H
#define SPARRING_SERVER_PERSISTENCE_JOURNAL_H

#include "common/base/error.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define JOURNAL_PAYLOAD_MAX ((size_t)4 << 20) /* bytes: a partition, or the membership */
#define JOURNAL_CLOCKS_MAX  1024u
#define JOURNAL_HEAD        48u
#define JOURNAL_RECORD_HEAD 48u

/* What a journal belongs to; reading one with other values is STATUS_DATA. */
struct journal_head {
    uint32_t world_size; /* 1 to JOURNAL_CLOCKS_MAX */
    uint64_t digest;     /* of the job's terms */
    uint64_t generation; /* of the snapshot that it continues */
};

struct journal_record {
    uint32_t kind;
    uint32_t partition;
    uint64_t step;
    double rate;            /* learning rate of the step */
    const uint64_t *clocks; /* world_size of them, or NULL; borrowed */
    const uint8_t *flags;   /* the same; NULL where clocks is */
    const void *payload;    /* borrowed; NULL when size is 0 */
    size_t size;            /* bytes, at most JOURNAL_PAYLOAD_MAX */
};

struct journal {
    pthread_mutex_t lock; /* guards what follows */
    int fd;
    char path[4096];
    struct journal_head head;
    uint64_t size;        /* bytes of the file */
    uint64_t records;     /* appended by this process, to every generation */
    uint64_t bytes;       /* of them */
    int64_t append_ns;    /* spent on them: checksums, waiting for the lock, writing */
    struct error failure; /* the first; nothing is written after it */
};

/* Create the file.  STATUS_EXISTS: it exists. */
enum status journal_create(struct journal *j, const char *path, const struct journal_head *head,
                           struct error *err);

/* Append after the first `size` bytes, which journal_read has accepted; truncates the rest. */
enum status journal_reopen(struct journal *j, const char *path, const struct journal_head *head,
                           uint64_t size, struct error *err);

/* Append a record: one system call, no allocation.  On failure (STATUS_NO_SPACE, STATUS_IO; the
 * text names the file) the file is as before, and every further append fails in the same way. */
enum status journal_append(struct journal *j, const struct journal_record *record,
                           struct error *err);

/* Append to a new file of the next generation from now on and close the old one.  On failure the
 * old one stays in use. */
enum status journal_rotate(struct journal *j, const char *path, struct error *err);

/* Totals of this process. */
void journal_count(struct journal *j, uint64_t *ret_records, uint64_t *ret_bytes,
                   int64_t *ret_append_ns);

/* Generation and bytes of the current file. */
void journal_length(struct journal *j, uint64_t *ret_generation, uint64_t *ret_size);

void journal_close(struct journal *j); /* a zeroed one is allowed */

/* ------------------------------------------------------------------ reading */

/* Called with each record in order; its pointers are valid until it returns.  A failure ends the
 * reading. */
typedef enum status (*journal_record_fn)(void *user, const struct journal_record *record,
                                         struct error *err);

struct journal_read_result {
    uint64_t size;       /* bytes up to the end of the last whole record */
    uint64_t records;    /* whole ones */
    uint64_t torn_bytes; /* after the last whole record */
};

/*
 * Read the file from its beginning; `name` is used in messages.
 *   wanted   the expected head
 *   ret      may be NULL
 * STATUS_DATA: damaged (with the offset), or of another job, generation or version; STATUS_IO;
 * what `apply` returns, prefixed with the file and the record's offset.  A file shorter than its
 * head has no record (size 0): the process died while it created the file.
 */
enum status journal_read(int fd, const char *name, const struct journal_head *wanted,
                         journal_record_fn apply, void *user, struct journal_read_result *ret,
                         struct error *err);

/* Bytes in the file of a record with this many clocks (and flags) and payload bytes. */
uint64_t journal_record_bytes(size_t clocks, size_t payload);

#endif
