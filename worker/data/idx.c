/*
 * A `struct source` reads the bytes in order, plain or through inflate, so header and elements
 * share the code.  The size in the header is not trusted: before any allocation it is compared with
 * what a file of this length can contain at all (deflate expands at most 1032 times), which also
 * bounds the cost of a decompression bomb.  No shared state, no locking.
 */
#include "worker/data/idx.h"

#include "common/base/file.h"
#include "common/base/memory.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#define ZLIB_CONST /* next_in points at const bytes */
#include <zlib.h>

#define BYTES_MAX         ((size_t)1 << 31)
#define DEFLATE_RATIO_MAX 1032
#define TYPE_U8           0x08
#define WINDOW_BITS_GZIP  (15 + 16) /* zlib: adding 16 to windowBits selects gzip */

struct source {
    const char *name;
    const unsigned char *data; /* the whole file */
    size_t size;
    size_t bytes_read; /* uncompressed bytes read so far */
    bool gzip;
    bool ended; /* gzip: inflate has reached the end */
    z_stream stream;
};

static enum status source_open(struct source *s, const char *name, const unsigned char *data,
                               size_t size, struct error *err)
{
    *s = (struct source){.name = name, .data = data, .size = size};
    s->gzip = size >= 2 && data[0] == 0x1f && data[1] == 0x8b;
    if (size > BYTES_MAX)
        return error_set(err, STATUS_DATA, "'%s' has %zu bytes, more than the %zu allowed", name,
                         size, BYTES_MAX);
    if (!s->gzip)
        return STATUS_OK;
    s->stream.next_in = data;
    s->stream.avail_in = (uInt)size;
    if (inflateInit2(&s->stream, WINDOW_BITS_GZIP) != Z_OK)
        return error_set(err, STATUS_NO_MEMORY, "'%s': cannot start zlib", name);
    return STATUS_OK;
}

static void source_close(struct source *s)
{
    if (s->gzip)
        (void)inflateEnd(&s->stream);
}

/* Read up to `requested` bytes; fewer only at the end. */
static enum status read_gzip(struct source *s, unsigned char *out, size_t requested,
                             size_t *ret_got, struct error *err)
{
    int result = Z_OK;

    s->stream.next_out = out;
    s->stream.avail_out = (uInt)requested;
    while (s->stream.avail_out > 0 && !s->ended && result == Z_OK) {
        result = inflate(&s->stream, Z_NO_FLUSH);
        s->ended = result == Z_STREAM_END;
    }
    if (result == Z_MEM_ERROR)
        return error_set(err, STATUS_NO_MEMORY, "'%s': no memory to decompress", s->name);
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR)
        return error_set(err, STATUS_DATA, "'%s': broken gzip data: %s", s->name,
                         s->stream.msg ? s->stream.msg : zError(result));
    *ret_got = requested - s->stream.avail_out;
    return STATUS_OK;
}

static enum status read_some(struct source *s, unsigned char *out, size_t requested,
                             size_t *ret_got, struct error *err)
{
    if (s->gzip)
        return read_gzip(s, out, requested, ret_got, err);
    *ret_got = requested < s->size - s->bytes_read ? requested : s->size - s->bytes_read;
    if (*ret_got > 0)
        memcpy(out, s->data + s->bytes_read, *ret_got);
    return STATUS_OK;
}

static enum status read_exact(struct source *s, unsigned char *out, size_t requested,
                              struct error *err)
{
    size_t got = 0;
    enum status status = read_some(s, out, requested, &got, err);

    if (status != STATUS_OK)
        return status;
    s->bytes_read += got;
    if (got < requested)
        return error_set(err, STATUS_DATA, "'%s' is cut off: %zu bytes%s, %zu are needed", s->name,
                         s->bytes_read, s->gzip ? " after decompression" : "",
                         s->bytes_read - got + requested);
    return STATUS_OK;
}

/* No byte may follow: neither in the array nor after the gzip stream. */
static enum status check_end(struct source *s, struct error *err)
{
    unsigned char more;
    size_t got = 0;
    enum status status = read_some(s, &more, 1, &got, err);

    if (status != STATUS_OK)
        return status;
    if (got > 0)
        return error_set(err, STATUS_DATA, "'%s' goes on after the %zu bytes that its header needs",
                         s->name, s->bytes_read);
    if (s->gzip && !s->ended)
        return error_set(err, STATUS_DATA, "'%s' is cut off inside its gzip checksum", s->name);
    if (s->gzip && s->stream.avail_in > 0)
        return error_set(err, STATUS_DATA, "'%s': %u bytes follow the gzip data", s->name,
                         s->stream.avail_in);
    return STATUS_OK;
}

static enum status parse_magic(struct source *s, unsigned *ret_dims, struct error *err)
{
    unsigned char magic[4];
    enum status status = read_exact(s, magic, sizeof(magic), err);

    if (status != STATUS_OK)
        return status;
    if (magic[0] != 0 || magic[1] != 0)
        return error_set(err, STATUS_DATA,
                         "'%s' is not an IDX file: it begins %02x %02x, not 00 00", s->name,
                         magic[0], magic[1]);
    if (magic[2] != TYPE_U8)
        return error_set(err, STATUS_UNSUPPORTED,
                         "'%s' has IDX type 0x%02x; only unsigned bytes (0x08) are read", s->name,
                         magic[2]);
    if (magic[3] < 1 || magic[3] > IDX_DIMS_MAX)
        return error_set(err, STATUS_UNSUPPORTED, "'%s' has %u dimensions; 1 to %d are read",
                         s->name, magic[3], IDX_DIMS_MAX);
    *ret_dims = magic[3];
    return STATUS_OK;
}

static enum status parse_shape(struct source *s, struct idx *i, struct error *err)
{
    unsigned char bytes[4 * IDX_DIMS_MAX];
    enum status status = read_exact(s, bytes, (size_t)4 * i->dims, err);

    if (status != STATUS_OK)
        return status;
    i->count = 1;
    for (unsigned d = 0; d < i->dims; d++) {
        const unsigned char *b = bytes + (size_t)4 * d;

        i->shape[d] = (size_t)b[0] << 24 | (size_t)b[1] << 16 | (size_t)b[2] << 8 | b[3];
        if (!size_multiply(i->count, i->shape[d], &i->count))
            return error_set(err, STATUS_DATA, "'%s': the product of its dimensions overflows",
                             s->name);
    }
    if (i->count > BYTES_MAX)
        return error_set(err, STATUS_DATA, "'%s' promises %zu bytes, more than the %zu allowed",
                         s->name, i->count, BYTES_MAX);
    if (i->count / (s->gzip ? DEFLATE_RATIO_MAX : 1) > s->size)
        return error_set(err, STATUS_DATA,
                         "'%s' is cut off: its header promises %zu bytes, and %zu are there%s",
                         s->name, i->count, s->size, s->gzip ? " compressed" : "");
    return STATUS_OK;
}

static enum status parse_source(struct source *s, struct idx *i, struct error *err)
{
    enum status status = parse_magic(s, &i->dims, err);

    if (status == STATUS_OK)
        status = parse_shape(s, i, err);
    if (status == STATUS_OK)
        status = mem_calloc(i->count, 1, s->name, &i->values, err);
    if (status == STATUS_OK)
        status = read_exact(s, i->values, i->count, err);
    if (status == STATUS_OK)
        status = check_end(s, err);
    return status;
}

enum status idx_parse(const char *name, const void *data, size_t size, struct idx *ret,
                      struct error *err)
{
    struct source source;
    struct idx i = {0};
    enum status status = source_open(&source, name, data, size, err);

    if (status != STATUS_OK)
        return status;
    status = parse_source(&source, &i, err);
    source_close(&source);
    if (status != STATUS_OK) {
        idx_release(&i);
        return status;
    }
    *ret = i;
    return STATUS_OK;
}

enum status idx_read(const char *path, struct idx *ret, struct error *err)
{
    char *data;
    size_t size;
    enum status status = file_read(path, BYTES_MAX, &data, &size, err);

    if (status != STATUS_OK)
        return status;
    status = idx_parse(path, data, size, ret, err);
    free(data);
    return status;
}

void idx_release(struct idx *i)
{
    if (!i)
        return;
    free(i->values);
    *i = (struct idx){0};
}
