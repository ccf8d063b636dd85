/*
 * snapshot: the whole state of one server's shard as a safetensors file, which PyTorch and others
 * read.  Tensors:
 *   partitions, steps   I64 (parts)              index in the slab, optimizer steps or whole sums
 *   initialised         I64 (parts)              0: its initial values have not come
 *   clocks, seen        I64 (parts, world size)  last round of each rank; steps that it read last
 *   flags               I64 (parts, world size)  POLICY_SAVED_... of server/shard/policy.h
 *   checksums           I64 (parts, slabs + 1)   CRC-32 of the partition in each slab, and of its
 *                                                numbers in the tensors above
 *   values, ...         F32 (elements)           one per slab of the shard, named by the caller
 * Values are bits: NaN and infinities of a run that has diverged come back as they were.
 *
 * It is taken while the shard is in use, partition by partition: each is of one moment, and what
 * came between two of them stands in the journal.  The file appears under its name when it is
 * complete and on the disk.
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
struct snapshot_part {
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
    uint64_t *numbers; /* owned; the I64 tensors, one behind the other */
    uint64_t data_at;  /* where the tensors begin in the file */
    uint64_t bytes;    /* of the whole file */
};

/* Begin a file.  metadata: key, value, ...: 2 * pairs texts. */
enum status snapshot_begin(struct snapshot_writer *w, const char *path,
                           const struct snapshot_shape *shape, const char *const *metadata,
                           size_t pairs, struct error *err);

/* Write the partition in this slot, < parts; every slot once, in any order. */
enum status snapshot_put(struct snapshot_writer *w, size_t slot, const struct snapshot_part *part,
                         struct error *err);

/* The file is complete: sync it and give it its name. */
enum status snapshot_commit(struct snapshot_writer *w, struct error *err);

/* Leave nothing behind; safe after commit, or with a zeroed writer. */
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

/* What stands under a key of the metadata, or NULL. */
const char *snapshot_metadata(const struct snapshot *s, const char *key);

/*
 * The partition in this slot.  The caller says where it lies (ret->partition, offset, count, within
 * the shape); the rest is filled in, borrowed from s.  STATUS_DATA: the file has another partition
 * there, or its checksums do not hold.
 */
enum status snapshot_get(const struct snapshot *s, size_t slot, struct snapshot_part *ret,
                         struct error *err);

#endif
