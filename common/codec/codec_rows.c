/*
 * Encodes the rows that differ from the receiver's copy.  Bits are compared, so nothing is lost; -0
 * differs from 0.  Pure, no locks.
 */
#include "common/codec/codec_internal.h"

#include <assert.h>
#include <string.h>

static bool row_differs(const float *row, const float *base, size_t count)
{
    static const float zeros[CODEC_ROW_WIDTH];

    return memcmp(row, base ? base : zeros, count * sizeof(float)) != 0;
}

size_t codec_encode_rows(const float *src, const float *base, size_t count, uint8_t *dst)
{
    uint32_t head[2] = {CODEC_ROW_WIDTH, 0};
    size_t room = count * sizeof(float);
    size_t size = sizeof(head);

    assert(count <= UINT32_MAX);
    for (size_t at = 0; at < count; at += CODEC_ROW_WIDTH) {
        size_t width = count - at < CODEC_ROW_WIDTH ? count - at : CODEC_ROW_WIDTH;
        uint32_t id = (uint32_t)(at / CODEC_ROW_WIDTH);

        if (!row_differs(src + at, base ? base + at : NULL, width))
            continue;
        if (size + sizeof(id) + width * sizeof(float) >= room)
            return 0;
        memcpy(dst + size, &id, sizeof(id));
        memcpy(dst + size + sizeof(id), src + at, width * sizeof(float));
        size += sizeof(id) + width * sizeof(float);
        head[1]++;
    }
    if (size >= room)
        return 0;
    memcpy(dst, head, sizeof(head));
    return size;
}
