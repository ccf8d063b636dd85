/*
 * snapshot: the whole state of one server's shard as a safetensors file, which PyTorch and others
 * can read.  Tensors:
 *   partitions, steps   I64 (parts)              index in the slab; optimizer steps or whole sums
 *   initialised         I64 (parts)              0: no initial values yet
 *   clocks, seen        I64 (parts, world size)  last round of each rank; steps that it last read
 *   flags               I64 (parts, world size)  POLICY_SAVED_... of server/shard/policy.h
 *   checksums           I64 (parts, slabs + 1)   CRC-32 of the partition in each slab, and of its
 *                                                numbers in the tensors above
 *   values, ...         F32 (elements)           one per slab of the shard, named by the caller
 * Values are stored bit for bit, NaN and infinities included.
 *
 * A snapshot is written while the shard is in use, partition by partition: each partition is
 * consistent in itself, and the changes between two of them are in the journal.  The file gets its
 * name when it is complete and on the disk.  Called by: job_log.
 */
#ifndef SPARRING_SERVER_PERSISTENCE_SNAPSHOT_H
#define SPARRING_SERVER_PERSISTENCE_SNAPSHOT_H

#include "common/base/error.h"
#include "common/base/file.h"
#include "common/checkpoint/safetensors.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SNAPSHOT_SLABS_MAX 5u

struct snapshot_shape {
    size_t elements; /* of each slab */
    size_t parts;
    unsigned world_size;
    unsigned slabs;
    const char *names[SNAPSHOT_SLABS_MAX]; /* of the slabs; constants */
};

/* One partition. */
struct snapshot_partition {
    uint64_t partition; /* index in the whole slab */
    uint64_t step;
    bool initialised;
    const uint64_t *clocks, *seen, *flags; /* (world size) */
    size_t offset, count;                  /* elements, in every slab here */
    const float *data[SNAPSHOT_SLABS_MAX];
};

struct snapshot_writer {
    struct file_writer file;
    struct snapshot_shape shape;
    uint64_t *numbers;    /* owned; the I64 tensors, concatenated */
    uint64_t data_offset; /* of the first tensor in the file */
    uint64_t bytes;       /* of the whole file */
};

/* Create the file under a temporary name.  metadata: key, value, ...: 2 * pairs texts. */
enum status snapshot_begin(struct snapshot_writer *w, const char *path,
                           const struct snapshot_shape *shape, const char *const *metadata,
                           size_t pairs, struct error *err);

/* Write partition number `index` of the shard, < parts; each one once, in any order. */
enum status snapshot_write_partition(struct snapshot_writer *w, size_t index,
                                     const struct snapshot_partition *part, struct error *err);

/* Complete the file, sync it and give it its name. */
enum status snapshot_commit(struct snapshot_writer *w, struct error *err);

/* Remove the temporary file; does nothing after commit or with a zeroed writer. */
void snapshot_abandon(struct snapshot_writer *w);

/* ------------------------------------------------------------------ reading */

struct snapshot {
    struct safetensors file;
    struct snapshot_shape shape;
    const struct safetensors_entry *slabs[SNAPSHOT_SLABS_MAX]; /* borrowed from file */
    const uint64_t *numbers;                                   /* owned */
};

/* Read a file that must have this shape.  STATUS_DATA names what is wrong with it. */
enum status snapshot_read(struct snapshot *s, const char *path, const struct snapshot_shape *shape,
                          struct error *err);
void snapshot_release(struct snapshot *s); /* a zeroed one is allowed */

/* The metadata's value of a key, or NULL. */
const char *snapshot_metadata(const struct snapshot *s, const char *key);

/*
 * Read partition number `index` of the shard.  The caller sets ret->partition, offset and count
 * (within the shape); the rest is filled in, borrowed from s.  STATUS_DATA: the file has another
 * partition there, or a checksum is wrong.
 */
enum status snapshot_read_partition(const struct snapshot *s, size_t index,
                                    struct snapshot_partition *ret, struct error *err);

#endif
