/*
 * Writing and reading of snapshots.
 *
 * The I64 tensors come first in the file, so that all tensors are aligned as in memory.  They are
 * collected in memory and written at commit; the slabs are written in place, partition by
 * partition.  A reader copies the I64 tensors and borrows the slabs from the safetensors file.  No
 * locks; one thread per writer.
 */
#include "server/persistence/snapshot.h"

#include "common/base/memory.h"
#include "common/base/strbuf.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "numbers are written as they lie in memory, and the format is little-endian");

/* An I64 tensor. */
struct layout {
    const char *name;
    size_t columns; /* 0: the tensor has one dimension */
    size_t offset;  /* in the concatenated I64 tensors, in elements */
};
enum { PARTITIONS, STEPS, INITIALISED, CLOCKS, SEEN, FLAGS, CHECKSUMS, TENSORS };

/* Returns the number of I64 elements of all tensors. */
static size_t compute_layout(const struct snapshot_shape *s, struct layout ret[TENSORS])
{
    size_t at = 0;

    ret[PARTITIONS] = (struct layout){.name = "partitions"};
    ret[STEPS] = (struct layout){.name = "steps"};
    ret[INITIALISED] = (struct layout){.name = "initialised"};
    ret[CLOCKS] = (struct layout){.name = "clocks", .columns = s->world_size};
    ret[SEEN] = (struct layout){.name = "seen", .columns = s->world_size};
    ret[FLAGS] = (struct layout){.name = "flags", .columns = s->world_size};
    ret[CHECKSUMS] = (struct layout){.name = "checksums", .columns = s->slabs + 1};
    for (unsigned i = 0; i < TENSORS; i++) {
        ret[i].offset = at;
        at += s->parts * (ret[i].columns ? ret[i].columns : 1);
    }
    return at;
}

/* The partition's row in an I64 tensor. */
static size_t row_offset(const struct layout *l, size_t index)
{
    return l->offset + index * (l->columns ? l->columns : 1);
}

/* ------------------------------------------------------------------ writing */

static void add_metadata(struct strbuf *out, const char *const *metadata, size_t pairs)
{
    strbuf_add(out, "\"__metadata__\":{");
    for (size_t i = 0; i < pairs; i++) {
        strbuf_add(out, i > 0 ? "," : "");
        strbuf_add_json(out, metadata[2 * i]);
        strbuf_add(out, ":");
        strbuf_add_json(out, metadata[2 * i + 1]);
    }
    strbuf_add(out, "}");
}

/* Append one tensor's entry; returns the end of its data. */
static uint64_t add_tensor(struct strbuf *out, const char *name, const char *dtype, size_t rows,
                           size_t columns, uint64_t begin, uint64_t bytes)
{
    strbuf_add(out, ",");
    strbuf_add_json(out, name);
    strbuf_addf(out, ":{\"dtype\":\"%s\",\"shape\":[%zu", dtype, rows);
    if (columns > 0)
        strbuf_addf(out, ",%zu", columns);
    strbuf_addf(out, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", begin, begin + bytes);
    return begin + bytes;
}

/* Append the header with its padding; returns the bytes of the data that follow it. */
static uint64_t add_header(struct strbuf *out, const struct snapshot_shape *s,
                           const char *const *metadata, size_t pairs)
{
    struct layout layout[TENSORS];
    uint64_t at = 0;

    (void)compute_layout(s, layout);
    strbuf_add(out, "{");
    add_metadata(out, metadata, pairs);
    for (unsigned i = 0; i < TENSORS; i++) {
        size_t columns = layout[i].columns;

        at = add_tensor(out, layout[i].name, "I64", s->parts, columns, at,
                        s->parts * (columns ? columns : 1) * sizeof(uint64_t));
    }
    for (unsigned i = 0; i < s->slabs; i++)
        at = add_tensor(out, s->names[i], "F32", s->elements, 0, at, s->elements * sizeof(float));
    strbuf_add(out, "}");
    while (out->length % 8 != 0 && strbuf_ok(out))
        strbuf_add(out, " ");
    return at;
}

static enum status write_header(struct snapshot_writer *w, const struct strbuf *header,
                                struct error *err)
{
    uint64_t bytes = header->length;
    enum status status = file_writer_add(&w->file, &bytes, sizeof(bytes), err);

    if (status == STATUS_OK)
        status = file_writer_add(&w->file, header->text, header->length, err);
    return status;
}

enum status snapshot_begin(struct snapshot_writer *w, const char *path,
                           const struct snapshot_shape *shape, const char *const *metadata,
                           size_t pairs, struct error *err)
{
    struct layout layout[TENSORS];
    struct strbuf header = STRBUF_INIT;
    enum status status;

    *w = (struct snapshot_writer){.shape = *shape, .file = {.fd = -1}};
    status = mem_calloc(compute_layout(shape, layout), sizeof(*w->numbers), "numbers of a snapshot",
                        &w->numbers, err);
    if (status == STATUS_OK) {
        w->bytes = add_header(&header, shape, metadata, pairs);
        w->data_offset = sizeof(uint64_t) + header.length;
        w->bytes += w->data_offset;
        if (!strbuf_ok(&header))
            status = error_set(err, STATUS_NO_MEMORY, "no memory for the header of '%s'", path);
    }
    if (status == STATUS_OK)
        status = file_writer_open(&w->file, path, err);
    if (status == STATUS_OK)
        status = write_header(w, &header, err);
    strbuf_release(&header);
    if (status != STATUS_OK)
        snapshot_abandon(w);
    return status;
}

static enum status write_at(struct snapshot_writer *w, uint64_t offset, const void *data,
                            size_t size, struct error *err)
{
    const char *next = data;

    while (size > 0) {
        ssize_t written = pwrite(w->file.fd, next, size, (off_t)offset);

        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return error_set_errno(err, written < 0 ? errno : EIO, "cannot write '%s'",
                                   w->file.temporary);
        next += written;
        offset += (uint64_t)written;
        size -= (size_t)written;
    }
    return STATUS_OK;
}

static uint64_t checksum(uint64_t crc, const void *data, size_t size)
{
    return crc32((uLong)crc, data, (uInt)size);
}

/* Of the partition's rows in `numbers`. */
static uint64_t numbers_checksum(const uint64_t *numbers, const struct layout layout[TENSORS],
                                 size_t index)
{
    uint64_t crc = crc32(0, NULL, 0);

    for (unsigned i = 0; i < CHECKSUMS; i++) {
        size_t columns = layout[i].columns ? layout[i].columns : 1;

        crc = checksum(crc, numbers + row_offset(&layout[i], index), columns * sizeof(*numbers));
    }
    return crc;
}

enum status snapshot_write_partition(struct snapshot_writer *w, size_t index,
                                     const struct snapshot_partition *part, struct error *err)
{
    const struct snapshot_shape *s = &w->shape;
    struct layout layout[TENSORS];
    uint64_t slabs_at = w->data_offset + compute_layout(s, layout) * sizeof(uint64_t);
    uint64_t *sums = w->numbers + row_offset(&layout[CHECKSUMS], index);
    size_t ranks_bytes = s->world_size * sizeof(*w->numbers);
    enum status status = STATUS_OK;

    assert(index < s->parts && part->offset + part->count <= s->elements);
    w->numbers[row_offset(&layout[PARTITIONS], index)] = part->partition;
    w->numbers[row_offset(&layout[STEPS], index)] = part->step;
    w->numbers[row_offset(&layout[INITIALISED], index)] = part->initialised;
    memcpy(w->numbers + row_offset(&layout[CLOCKS], index), part->clocks, ranks_bytes);
    memcpy(w->numbers + row_offset(&layout[SEEN], index), part->seen, ranks_bytes);
    memcpy(w->numbers + row_offset(&layout[FLAGS], index), part->flags, ranks_bytes);
    for (unsigned i = 0; i < s->slabs && status == STATUS_OK; i++) {
        uint64_t at = slabs_at + (i * s->elements + part->offset) * sizeof(float);

        sums[i] = checksum(crc32(0, NULL, 0), part->data[i], part->count * sizeof(float));
        status = write_at(w, at, part->data[i], part->count * sizeof(float), err);
    }
    sums[s->slabs] = numbers_checksum(w->numbers, layout, index);
    return status;
}

enum status snapshot_commit(struct snapshot_writer *w, struct error *err)
{
    struct layout layout[TENSORS];
    size_t numbers = compute_layout(&w->shape, layout);
    enum status status =
        write_at(w, w->data_offset, w->numbers, numbers * sizeof(*w->numbers), err);

    if (status == STATUS_OK)
        status = file_writer_commit(&w->file, err);
    snapshot_abandon(w);
    return status;
}

void snapshot_abandon(struct snapshot_writer *w)
{
    if (!w->numbers)
        return;
    file_writer_abandon(&w->file);
    free(w->numbers);
    w->numbers = NULL;
}

/* ------------------------------------------------------------------ reading */

static enum status find_tensor(const struct snapshot *s, const char *name, const char *dtype,
                               size_t rows, size_t columns, const struct safetensors_entry **ret,
                               struct error *err)
{
    const struct safetensors_entry *e = safetensors_find(&s->file, name);
    unsigned dims = columns > 0 ? 2 : 1;

    if (!e)
        return error_set(err, STATUS_DATA, "'%s': tensor '%s' is missing", s->file.path, name);
    if (strcmp(e->dtype, dtype) != 0 || e->dims != dims || e->shape[0] != rows ||
        (columns > 0 && e->shape[1] != columns))
        return error_set(err, STATUS_DATA,
                         "'%s': tensor '%s' is not %s of %zu rows and %zu columns (a snapshot of "
                         "another job?)",
                         s->file.path, name, dtype, rows, columns ? columns : 1);
    *ret = e;
    return STATUS_OK;
}

/* Copy the I64 tensors, which may be unaligned, and find the slabs. */
static enum status find_tensors(struct snapshot *s, uint64_t *numbers,
                                const struct layout layout[TENSORS], struct error *err)
{
    const struct snapshot_shape *shape = &s->shape;
    const struct safetensors_entry *e = NULL;
    enum status status = STATUS_OK;

    for (unsigned i = 0; i < TENSORS && status == STATUS_OK; i++) {
        status = find_tensor(s, layout[i].name, "I64", shape->parts, layout[i].columns, &e, err);
        if (status == STATUS_OK && e && e->bytes > 0)
            memcpy(numbers + layout[i].offset, e->data, e->bytes);
    }
    for (unsigned i = 0; i < shape->slabs && status == STATUS_OK; i++) {
        status = find_tensor(s, shape->names[i], "F32", shape->elements, 0, &s->slabs[i], err);
        if (status == STATUS_OK && (uintptr_t)s->slabs[i]->data % sizeof(float) != 0)
            status = error_set(err, STATUS_DATA, "'%s': tensor '%s' is not aligned", s->file.path,
                               shape->names[i]);
    }
    return status;
}

enum status snapshot_read(struct snapshot *s, const char *path, const struct snapshot_shape *shape,
                          struct error *err)
{
    struct layout layout[TENSORS];
    size_t count = compute_layout(shape, layout);
    uint64_t *numbers = NULL;
    enum status status;

    *s = (struct snapshot){.shape = *shape};
    status = safetensors_read(path, SIZE_MAX - 1, &s->file, err);
    if (status == STATUS_OK)
        status = mem_calloc(count, sizeof(*numbers), "numbers of a snapshot", &numbers, err);
    if (status == STATUS_OK) {
        s->numbers = numbers;
        status = find_tensors(s, numbers, layout, err);
    }
    if (status != STATUS_OK)
        snapshot_release(s);
    return status;
}

void snapshot_release(struct snapshot *s)
{
    uint64_t *numbers;

    memcpy(&numbers, &s->numbers, sizeof(numbers)); /* drops const */
    free(numbers);
    safetensors_release(&s->file);
    s->numbers = NULL;
}

const char *snapshot_metadata(const struct snapshot *s, const char *key)
{
    return safetensors_metadata(&s->file, key);
}

static enum status damage_error(const struct snapshot *s, const struct snapshot_partition *part,
                                const char *what, struct error *err)
{
    return error_set(err, STATUS_DATA, "'%s': partition %" PRIu64 " is damaged (%s)", s->file.path,
                     part->partition, what);
}

enum status snapshot_read_partition(const struct snapshot *s, size_t index,
                                    struct snapshot_partition *ret, struct error *err)
{
    struct layout layout[TENSORS];
    const uint64_t *sums;

    (void)compute_layout(&s->shape, layout);
    assert(index < s->shape.parts && ret->offset + ret->count <= s->shape.elements);
    sums = s->numbers + row_offset(&layout[CHECKSUMS], index);
    if (sums[s->shape.slabs] != numbers_checksum(s->numbers, layout, index))
        return damage_error(s, ret, "its numbers", err);
    if (s->numbers[row_offset(&layout[PARTITIONS], index)] != ret->partition)
        return error_set(
            err, STATUS_DATA, "'%s' has partition %" PRIu64 " where partition %" PRIu64 " belongs",
            s->file.path, s->numbers[row_offset(&layout[PARTITIONS], index)], ret->partition);
    ret->step = s->numbers[row_offset(&layout[STEPS], index)];
    ret->clocks = s->numbers + row_offset(&layout[CLOCKS], index);
    ret->initialised = s->numbers[row_offset(&layout[INITIALISED], index)] != 0;
    ret->seen = s->numbers + row_offset(&layout[SEEN], index);
    ret->flags = s->numbers + row_offset(&layout[FLAGS], index);
    for (unsigned i = 0; i < s->shape.slabs; i++) {
        const unsigned char *data = s->slabs[i]->data + ret->offset * sizeof(float);

        if (sums[i] != checksum(crc32(0, NULL, 0), data, ret->count * sizeof(float)))
            return damage_error(s, ret, s->shape.names[i], err);
        ret->data[i] = (const float *)(const void *)data;
    }
    return STATUS_OK;
}
