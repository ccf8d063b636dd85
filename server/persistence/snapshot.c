/*
 * The I64 tensors stand first, so that everything behind the header is aligned as it is in memory;
 * they are kept until the end, the slabs are written in place as the partitions come.
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

/* The I64 tensors of a shape: columns of each, and where it begins, in numbers. */
struct layout {
    const char *name;
    size_t columns; /* 0: the tensor has one dimension */
    size_t at;
};
enum { PARTITIONS, STEPS, INITIALISED, CLOCKS, SEEN, FLAGS, CHECKSUMS, TENSORS };

/* Returns how many numbers there are in all. */
static size_t lay_out(const struct snapshot_shape *s, struct layout ret[TENSORS])
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
        ret[i].at = at;
        at += s->parts * (ret[i].columns ? ret[i].columns : 1);
    }
    return at;
}

/* The partition's row in a tensor of numbers. */
static size_t row(const struct layout *l, size_t slot)
{
    return l->at + slot * (l->columns ? l->columns : 1);
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

/* Append one tensor's entry; returns where its data ends. */
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

/* The header with its padding; returns the bytes of the data behind it. */
static uint64_t add_header(struct strbuf *out, const struct snapshot_shape *s,
                           const char *const *metadata, size_t pairs)
{
    struct layout layout[TENSORS];
    uint64_t at = 0;

    (void)lay_out(s, layout);
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
    status = mem_calloc(lay_out(shape, layout), sizeof(*w->numbers), "numbers of a snapshot",
                        &w->numbers, err);
    if (status == STATUS_OK) {
        w->bytes = add_header(&header, shape, metadata, pairs);
        w->data_at = sizeof(uint64_t) + header.length;
        w->bytes += w->data_at;
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
        ssize_t put = pwrite(w->file.fd, next, size, (off_t)offset);

        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return error_set_errno(err, put < 0 ? errno : EIO, "cannot write '%s'",
                                   w->file.temporary);
        next += put;
        offset += (uint64_t)put;
        size -= (size_t)put;
    }
    return STATUS_OK;
}

static uint64_t checksum(uint64_t crc, const void *data, size_t size)
{
    return crc32((uLong)crc, data, (uInt)size);
}

/* Of the partition's numbers, as they stand in `numbers`. */
static uint64_t numbers_checksum(const uint64_t *numbers, const struct layout layout[TENSORS],
                                 size_t slot)
{
    uint64_t crc = crc32(0, NULL, 0);

    for (unsigned i = 0; i < CHECKSUMS; i++) {
        size_t columns = layout[i].columns ? layout[i].columns : 1;

        crc = checksum(crc, numbers + row(&layout[i], slot), columns * sizeof(*numbers));
    }
    return crc;
}

enum status snapshot_put(struct snapshot_writer *w, size_t slot, const struct snapshot_part *part,
                         struct error *err)
{
    const struct snapshot_shape *s = &w->shape;
    struct layout layout[TENSORS];
    uint64_t slabs_at = w->data_at + lay_out(s, layout) * sizeof(uint64_t);
    uint64_t *sums = w->numbers + row(&layout[CHECKSUMS], slot);
    size_t ranks_bytes = s->world_size * sizeof(*w->numbers);
    enum status status = STATUS_OK;

    assert(slot < s->parts && part->offset + part->count <= s->elements);
    w->numbers[row(&layout[PARTITIONS], slot)] = part->partition;
    w->numbers[row(&layout[STEPS], slot)] = part->step;
    w->numbers[row(&layout[INITIALISED], slot)] = part->initialised;
    memcpy(w->numbers + row(&layout[CLOCKS], slot), part->clocks, ranks_bytes);
    memcpy(w->numbers + row(&layout[SEEN], slot), part->seen, ranks_bytes);
    memcpy(w->numbers + row(&layout[FLAGS], slot), part->flags, ranks_bytes);
    for (unsigned i = 0; i < s->slabs && status == STATUS_OK; i++) {
        uint64_t at = slabs_at + (i * s->elements + part->offset) * sizeof(float);

        sums[i] = checksum(crc32(0, NULL, 0), part->data[i], part->count * sizeof(float));
        status = write_at(w, at, part->data[i], part->count * sizeof(float), err);
    }
    sums[s->slabs] = numbers_checksum(w->numbers, layout, slot);
    return status;
}

enum status snapshot_commit(struct snapshot_writer *w, struct error *err)
{
    struct layout layout[TENSORS];
    size_t numbers = lay_out(&w->shape, layout);
    enum status status = write_at(w, w->data_at, w->numbers, numbers * sizeof(*w->numbers), err);

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
static enum status find_all(struct snapshot *s, uint64_t *numbers,
                            const struct layout layout[TENSORS], struct error *err)
{
    const struct snapshot_shape *shape = &s->shape;
    const struct safetensors_entry *e = NULL;
    enum status status = STATUS_OK;

    for (unsigned i = 0; i < TENSORS && status == STATUS_OK; i++) {
        status = find_tensor(s, layout[i].name, "I64", shape->parts, layout[i].columns, &e, err);
        if (status == STATUS_OK && e && e->bytes > 0)
            memcpy(numbers + layout[i].at, e->data, e->bytes);
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
    size_t count = lay_out(shape, layout);
    uint64_t *numbers = NULL;
    enum status status;

    *s = (struct snapshot){.shape = *shape};
    status = safetensors_read(path, SIZE_MAX - 1, &s->file, err);
    if (status == STATUS_OK)
        status = mem_calloc(count, sizeof(*numbers), "numbers of a snapshot", &numbers, err);
    if (status == STATUS_OK) {
        s->numbers = numbers;
        status = find_all(s, numbers, layout, err);
    }
    if (status != STATUS_OK)
        snapshot_release(s);
    return status;
}

void snapshot_release(struct snapshot *s)
{
    uint64_t *numbers;

    memcpy(&numbers, &s->numbers, sizeof(numbers)); /* const for everybody else */
    free(numbers);
    safetensors_release(&s->file);
    s->numbers = NULL;
}

const char *snapshot_metadata(const struct snapshot *s, const char *key)
{
    return safetensors_metadata(&s->file, key);
}

static enum status damaged(const struct snapshot *s, const struct snapshot_part *part,
                           const char *what, struct error *err)
{
    return error_set(err, STATUS_DATA, "'%s': partition %" PRIu64 " is damaged (%s)", s->file.path,
                     part->partition, what);
}

enum status snapshot_get(const struct snapshot *s, size_t slot, struct snapshot_part *ret,
                         struct error *err)
{
    struct layout layout[TENSORS];
    const uint64_t *sums;

    (void)lay_out(&s->shape, layout);
    assert(slot < s->shape.parts && ret->offset + ret->count <= s->shape.elements);
    sums = s->numbers + row(&layout[CHECKSUMS], slot);
    if (sums[s->shape.slabs] != numbers_checksum(s->numbers, layout, slot))
        return damaged(s, ret, "its numbers", err);
    if (s->numbers[row(&layout[PARTITIONS], slot)] != ret->partition)
        return error_set(err, STATUS_DATA,
                         "'%s' has partition %" PRIu64 " where partition %" PRIu64 " belongs",
                         s->file.path, s->numbers[row(&layout[PARTITIONS], slot)], ret->partition);
    ret->step = s->numbers[row(&layout[STEPS], slot)];
    ret->clocks = s->numbers + row(&layout[CLOCKS], slot);
    ret->initialised = s->numbers[row(&layout[INITIALISED], slot)] != 0;
    ret->seen = s->numbers + row(&layout[SEEN], slot);
    ret->flags = s->numbers + row(&layout[FLAGS], slot);
    for (unsigned i = 0; i < s->shape.slabs; i++) {
        const unsigned char *data = s->slabs[i]->data + ret->offset * sizeof(float);

        if (sums[i] != checksum(crc32(0, NULL, 0), data, ret->count * sizeof(float)))
            return damaged(s, ret, s->shape.names[i], err);
        ret->data[i] = (const float *)(const void *)data;
    }
    return STATUS_OK;
}
