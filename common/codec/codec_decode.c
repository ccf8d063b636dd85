/*
 * Decoding, piece by piece.  Every format is a sequence of units of a fixed size (an element, a
 * record, eight signs); a unit that spans two pieces is assembled in `carry` first.  The number of
 * units is known beforehand, so no input can cause a write past the array.  No locks.
 */
#include "common/codec/codec_internal.h"

#include "common/tensor/tensor.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* Bytes of the next unit. */
static size_t unit_size(const struct codec_decoder *d)
{
    switch (d->codec.kind) {
    case CODEC_FP16:
    case CODEC_BF16:
        return 2;
    case CODEC_TOP_K:
        return TOP_K_RECORD;
    case CODEC_ONE_BIT:
        return d->has_header ? 1 : ONE_BIT_HEAD;
    case CODEC_ROWS:
    case CODEC_SELECTED_ROWS:
        return d->has_header ? 4 : ROWS_HEAD;
    default:
        return sizeof(float);
    }
}

/* The number of units of that size that may follow. */
static size_t units_left(const struct codec_decoder *d)
{
    if (d->codec.kind == CODEC_TOP_K)
        return codec_top_k(&d->codec, d->count) - d->done;
    if (d->codec.kind == CODEC_ONE_BIT)
        return d->has_header ? (d->count - d->done + 7) / 8 : 1;
    if (codec_has_variable_size(&d->codec)) /* the header; elements; or the next row's number */
        return !d->has_header ? 1 : d->row_left > 0 ? d->row_left : d->rows_left > 0;
    return d->count - d->done;
}

static void decode_floats(struct codec_decoder *d, const uint8_t *bytes, size_t units)
{
    if (d->mode == CODEC_ADD)
        vector_add_bytes(d->dst + d->done, bytes, units);
    else
        memcpy(d->dst + d->done, bytes, units * sizeof(float));
}

static void decode_halves(struct codec_decoder *d, const uint8_t *bytes, size_t units)
{
    const struct codec_kernels *k = codec_kernels();

    if (d->codec.kind == CODEC_FP16)
        (d->mode == CODEC_ADD ? k->add_float16 : k->copy_float16)(d->dst + d->done, bytes, units);
    else
        (d->mode == CODEC_ADD ? k->add_bfloat16 : k->copy_bfloat16)(d->dst + d->done, bytes, units);
}

static enum status decode_records(struct codec_decoder *d, const uint8_t *bytes, size_t units,
                                  struct error *err)
{
    for (size_t i = 0; i < units; i++) {
        uint32_t index;
        float value;

        memcpy(&index, bytes + i * TOP_K_RECORD, sizeof(index));
        memcpy(&value, bytes + i * TOP_K_RECORD + sizeof(index), sizeof(value));
        if (index >= d->count)
            return error_set(err, STATUS_DATA, "topk names element %u of %zu", (unsigned)index,
                             d->count);
        if (index < d->least)
            return error_set(err, STATUS_DATA, "topk names element %u after element %u",
                             (unsigned)index, (unsigned)d->least - 1);
        d->least = (uint64_t)index + 1;
        if (d->mode == CODEC_ADD)
            d->dst[index] += value;
        else
            d->dst[index] = value;
    }
    return STATUS_OK;
}

static enum status decode_means(struct codec_decoder *d, const uint8_t *bytes, struct error *err)
{
    memcpy(d->means, bytes, sizeof(d->means));
    for (size_t i = 0; i < 2; i++)
        if (!isfinite(d->means[i]) || signbit(d->means[i]))
            return error_set(err, STATUS_DATA, "onebit with a mean magnitude of %g",
                             (double)d->means[i]);
    d->means[1] = -d->means[1];
    d->has_header = true;
    return STATUS_OK;
}

static enum status decode_signs(struct codec_decoder *d, const uint8_t *bytes, size_t units,
                                struct error *err)
{
    const struct codec_kernels *k = codec_kernels();
    size_t length = d->count - d->done < units * 8 ? d->count - d->done : units * 8;

    if (length % 8 != 0 && bytes[units - 1] >> length % 8 != 0)
        return error_set(err, STATUS_DATA, "onebit has signs behind the last of %zu elements",
                         d->count);
    (d->mode == CODEC_ADD ? k->add_signs : k->copy_signs)(d->dst + d->done, bytes, d->means,
                                                          length);
    d->done += length;
    return STATUS_OK;
}

static enum status decode_rows_header(struct codec_decoder *d, const uint8_t *bytes,
                                      struct error *err)
{
    memcpy(&d->width, bytes, sizeof(d->width));
    memcpy(&d->rows_left, bytes + sizeof(d->width), sizeof(d->rows_left));
    if (d->width == 0 || d->rows_left > (d->count + d->width - 1) / d->width)
        return error_set(err, STATUS_DATA, "%u rows of %u elements in %zu", (unsigned)d->rows_left,
                         (unsigned)d->width, d->count);
    d->has_header = true;
    return STATUS_OK;
}

static enum status decode_row_number(struct codec_decoder *d, const uint8_t *bytes,
                                     struct error *err)
{
    size_t rows = (d->count + d->width - 1) / d->width;
    uint32_t row;

    memcpy(&row, bytes, sizeof(row));
    if (row >= rows)
        return error_set(err, STATUS_DATA, "row %u of %zu is named", (unsigned)row, rows);
    if (row < d->least)
        return error_set(err, STATUS_DATA, "row %u is named after row %u", (unsigned)row,
                         (unsigned)d->least - 1);
    d->least = (uint64_t)row + 1;
    d->rows_left--;
    d->done = (size_t)row * d->width;
    d->row_left = d->count - d->done < d->width ? d->count - d->done : d->width;
    return STATUS_OK;
}

static enum status decode_row_unit(struct codec_decoder *d, const uint8_t *bytes, size_t units,
                                   struct error *err)
{
    if (!d->has_header)
        return decode_rows_header(d, bytes, err);
    if (d->row_left == 0)
        return decode_row_number(d, bytes, err);
    decode_floats(d, bytes, units);
    d->done += units;
    d->row_left -= units;
    return STATUS_OK;
}

/* Decode `units` whole units, at least 1 and at most units_left. */
static enum status decode_units(struct codec_decoder *d, const uint8_t *bytes, size_t units,
                                struct error *err)
{
    enum status status = STATUS_OK;

    switch (d->codec.kind) {
    case CODEC_ONE_BIT:
        return d->has_header ? decode_signs(d, bytes, units, err) : decode_means(d, bytes, err);
    case CODEC_ROWS:
    case CODEC_SELECTED_ROWS:
        return decode_row_unit(d, bytes, units, err);
    case CODEC_TOP_K:
        status = decode_records(d, bytes, units, err);
        break;
    case CODEC_FP16:
    case CODEC_BF16:
        decode_halves(d, bytes, units);
        break;
    default:
        decode_floats(d, bytes, units);
    }
    d->done += units;
    return status;
}

void codec_decode_start(struct codec_decoder *d, const struct codec *c, float *dst, size_t count,
                        enum codec_mode mode)
{
    bool sparse = c->kind == CODEC_TOP_K || codec_has_variable_size(c);

    assert(count <= UINT32_MAX);
    *d = (struct codec_decoder){.codec = *c, .dst = dst, .count = count, .mode = mode};
    if (c->kind == CODEC_TOP_K && codec_top_k(c, count) == count)
        d->codec.kind = CODEC_NONE;
    else if (sparse && mode == CODEC_REPLACE)
        memset(dst, 0, count * sizeof(float));
}

enum status codec_decode_feed(struct codec_decoder *d, const void *piece, size_t size,
                              struct error *err)
{
    const uint8_t *bytes = piece;
    enum status status = STATUS_OK;

    while (size > 0 && status == STATUS_OK) {
        size_t unit = unit_size(d);
        size_t left = units_left(d);

        if (left == 0)
            return error_set(err, STATUS_DATA, "%s of %zu elements has more bytes than belong",
                             codec_name(d->codec.kind), d->count);
        if (d->carried > 0 || size < unit) {
            size_t step = unit - d->carried < size ? unit - d->carried : size;

            memcpy(d->carry + d->carried, bytes, step);
            d->carried += step;
            bytes += step;
            size -= step;
            if (d->carried < unit)
                return STATUS_OK;
            d->carried = 0;
            status = decode_units(d, d->carry, 1, err);
        } else {
            size_t units = size / unit < left ? size / unit : left;

            status = decode_units(d, bytes, units, err);
            bytes += units * unit;
            size -= units * unit;
        }
    }
    return status;
}

enum status codec_decode_end(const struct codec_decoder *d, struct error *err)
{
    if (d->carried > 0 || units_left(d) > 0)
        return error_set(err, STATUS_DATA, "%s of %zu elements has fewer bytes than belong",
                         codec_name(d->codec.kind), d->count);
    return STATUS_OK;
}

enum status codec_decode(const struct codec *c, const void *bytes, size_t size, float *dst,
                         size_t count, enum codec_mode mode, struct error *err)
{
    struct codec_decoder d;
    enum status status;

    codec_decode_start(&d, c, dst, count, mode);
    status = codec_decode_feed(&d, bytes, size, err);
    return status == STATUS_OK ? codec_decode_end(&d, err) : status;
}
