/*
 * cursor: protobuf's wire format over scattered bytes.
 *
 * Only the structure is checked here (tags, varints, lengths); the caller interprets the fields.
 * Groups (wire types 3 and 4) are errors: proto3 has none and they would nest without limit.
 * No state but the cursor, so no locks.
 */
#include "common/protobuf/cursor.h"

#define VARINT_BYTES_MAX 10
#define FIELD_NUMBER_MAX ((1u << 29) - 1)

void cursor_init(struct cursor *c, const struct byte_run *runs, size_t count)
{
    *c = (struct cursor){.runs = runs};
    for (size_t i = 0; i < count; i++)
        c->left += runs[i].size;
}

const uint8_t *cursor_take(struct cursor *c, size_t limit, size_t *ret_size)
{
    const uint8_t *data;
    size_t size;

    if (c->left == 0 || limit == 0)
        return NULL;
    while (c->offset == c->runs[c->run].size) { /* terminates: a later run has bytes left */
        c->run++;
        c->offset = 0;
    }
    data = c->runs[c->run].data + c->offset;
    size = c->runs[c->run].size - c->offset;
    if (size > limit)
        size = limit;
    c->offset += size;
    c->left -= size;
    *ret_size = size;
    return data;
}

bool cursor_skip(struct cursor *c, size_t size)
{
    size_t step;

    if (size > c->left)
        return false;
    while (size > 0 && cursor_take(c, size, &step))
        size -= step;
    return true;
}

/* A varint of at most 64 bits; false when it is cut or too long. */
static bool cursor_varint(struct cursor *c, uint64_t *ret)
{
    uint64_t value = 0;

    for (unsigned i = 0; i < VARINT_BYTES_MAX; i++) {
        size_t size;
        const uint8_t *byte = cursor_take(c, 1, &size);

        if (!byte || (i == VARINT_BYTES_MAX - 1 && *byte > 1))
            return false;
        value |= (uint64_t)(*byte & 0x7f) << (7 * i);
        if (*byte < 0x80) {
            *ret = value;
            return true;
        }
    }
    return false;
}

bool cursor_field(struct cursor *c, struct field *ret)
{
    uint64_t tag;
    uint64_t size = 0;

    if (!cursor_varint(c, &tag) || tag >> 3 == 0 || tag >> 3 > FIELD_NUMBER_MAX)
        return false;
    switch (tag & 7) {
    case FIELD_VARINT:
        if (!cursor_varint(c, &(uint64_t){0}))
            return false;
        break;
    case FIELD_FIXED64:
        size = 8;
        break;
    case FIELD_BYTES:
        if (!cursor_varint(c, &size))
            return false;
        break;
    case FIELD_FIXED32:
        size = 4;
        break;
    default:
        return false;
    }
    if (size > c->left)
        return false;
    *ret = (struct field){
        .number = (uint32_t)(tag >> 3), .type = (enum field_type)(tag & 7), .size = (size_t)size};
    return true;
}
