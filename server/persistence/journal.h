/*
 * journal: an append-only file of what a shard must not forget.  A record is in the file (in the
 * kernel's page cache: it survives the process, not the host) before anybody is told of it.
 *
 * Data, little-endian.  A head of JOURNAL_HEAD bytes: "sparring journal", version, world size,
 * digest of the job's terms, generation, CRC-32 of all that.  Then records, each on 8 bytes: a head
 * (magic, kind, partition, number of clocks, step, rate, payload bytes, CRC-32 of the rest, CRC-32
 * of the head itself), the clocks, the payload, a byte of flags for each clock, zeros up to the
 * next 8.
 *
 * Damage.  A process that is killed leaves a record that the end of the file cuts off: it was never
 * acknowledged, and the reader cuts it away.  So it does with a last record that has wrong bytes,
 * as a host that lost its power leaves one.  Anything else is refused, with the file and the
 * offset.
 *
 * Threads: appends from any, one after the other; open, switch and close from one.
 */
#ifndef SPARRING_SERVER_PERSISTENCE_JOURNAL_H
#define SPARRING_SERVER_PERSISTENCE_JOURNAL_H

#include "common/base/error.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define JOURNAL_PAYLOAD_MAX ((size_t)4 << 20) /* bytes: a partition, or who is in the job */
#define JOURNAL_CLOCKS_MAX  1024u
#define JOURNAL_HEAD        48u
#define JOURNAL_RECORD_HEAD 48u

/* What a journal belongs to; one that says otherwise is refused. */
struct journal_head {
    uint32_t world_size; /* 1 to JOURNAL_CLOCKS_MAX */
    uint64_t digest;     /* of the job's terms */
    uint64_t generation; /* of the snapshot that it stands behind */
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
    uint64_t size;       /* bytes of the file */
    uint64_t records;    /* appended by this process, to every generation */
    uint64_t bytes;      /* of them */
    int64_t append_ns;   /* spent on them: checksums, waiting for each other, writing */
    struct error failed; /* the first failure: nothing more is written behind it */
};

/* Create the file; one that exists already is STATUS_EXISTS. */
enum status journal_create(struct journal *j, const char *path, const struct journal_head *head,
                           struct error *err);

/* Go on behind the first `size` bytes, which journal_read has accepted; the rest is cut off. */
enum status journal_reopen(struct journal *j, const char *path, const struct journal_head *head,
                           uint64_t size, struct error *err);

/* Add a record: one system call, nothing allocated.  On failure (STATUS_NO_SPACE, STATUS_IO; the
 * text names the file) the file is as before, and every further append fails in the same way. */
enum status journal_append(struct journal *j, const struct journal_record *record,
                           struct error *err);

/* From here on appends go to a new file of the next generation; the old one is closed.  On failure
 * they go on in the old one. */
enum status journal_switch(struct journal *j, const char *path, struct error *err);

/* What this process has appended so far. */
void journal_count(struct journal *j, uint64_t *ret_records, uint64_t *ret_bytes,
                   int64_t *ret_append_ns);

/* The file that appends go to, and its bytes. */
void journal_length(struct journal *j, uint64_t *ret_generation, uint64_t *ret_size);

void journal_close(struct journal *j); /* a zeroed one is allowed */

/* ------------------------------------------------------------------ reading */

/* Gets each record in order; its pointers last until it returns.  A failure ends the reading. */
typedef enum status (*journal_take)(void *user, const struct journal_record *record,
                                    struct error *err);

struct journal_outcome {
    uint64_t size;    /* bytes up to the end of the last whole record */
    uint64_t records; /* whole ones */
    uint64_t cut;     /* bytes behind them that belong to none */
};

/*
 * Read the file behind fd from its beginning; `name` stands in messages.
 *   wanted   what its head must say
 *   ret      may be NULL
 * STATUS_DATA: damaged (with the offset), or of another job, generation or version; STATUS_IO;
 * what `take` returns, with the file and the record's offset put in front.  A file shorter than its
 * head has no record (size 0): its process died while it made it.
 */
enum status journal_read(int fd, const char *name, const struct journal_head *wanted,
                         journal_take take, void *user, struct journal_outcome *ret,
                         struct error *err);

/* Bytes that a record of this many clocks (and flags) and payload bytes takes. */
uint64_t journal_record_bytes(size_t clocks, size_t payload);

#endif
