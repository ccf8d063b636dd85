/*
 * unpack: a bounded arena, a check of strings, then protobuf-c.
 *
 * Our message types do not recurse, so the depth is bounded by the schema.  Strings of embedded
 * messages are not checked (ours have none).  The arena serves one unpack on one thread; no locks.
 */
#include "common/protobuf/unpack.h"

#include "common/protobuf/cursor.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK_BYTES       ((size_t)64 * 1024)
#define BUDGET_BASE       ((size_t)16 * 1024)
#define BUDGET_PER_BYTE   32 /* a message of many short strings needs up to 28 */
#define ARENA_ALIGN       _Alignof(max_align_t)
#define ALIGNED(size)     (((size) + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN)
#define BLOCK_HEADER_SIZE ALIGNED(sizeof(struct arena_block))

struct arena_block {
    struct arena_block *next;
};

static bool add_block(struct arena *arena, size_t size)
{
    size_t bytes = BLOCK_HEADER_SIZE + (size > BLOCK_BYTES ? size : BLOCK_BYTES);
    struct arena_block *block = malloc(bytes);

    if (!block)
        return false;
    block->next = arena->blocks;
    arena->blocks = block;
    arena->at = (uint8_t *)block + BLOCK_HEADER_SIZE;
    arena->left = bytes - BLOCK_HEADER_SIZE;
    return true;
}

static void *arena_alloc(void *user, size_t size)
{
    struct arena *arena = user;
    void *pointer;

    if (size > arena->budget) {
        arena->exhausted = true;
        return NULL;
    }
    size = ALIGNED(size);
    arena->budget -= size < arena->budget ? size : arena->budget;
    if (size > arena->left && !add_block(arena, size)) {
        arena->exhausted = true;
        return NULL;
    }
    pointer = arena->at;
    arena->at += size;
    arena->left -= size;
    return pointer;
}

static void arena_free(void *user, void *pointer)
{
    (void)user; /* everything is freed by arena_release */
    (void)pointer;
}

static void arena_init(struct arena *arena, size_t budget)
{
    arena->allocator = (ProtobufCAllocator){arena_alloc, arena_free, arena};
    arena->budget = budget;
    arena->exhausted = false;
    arena->blocks = NULL;
    arena->at = arena->first;
    arena->left = sizeof(arena->first);
}

void arena_release(struct arena *arena)
{
    while (arena->blocks) {
        struct arena_block *block = arena->blocks;

        arena->blocks = block->next;
        free(block);
    }
}

/* Length of the UTF-8 sequence that `first` begins, and its smallest allowed code point. */
static size_t sequence_length(uint8_t first, uint32_t *ret_bits, uint32_t *ret_least)
{
    static const struct {
        uint8_t mask, lead;
        uint32_t least;
    } forms[] = {{0x80, 0x00, 0x1}, {0xe0, 0xc0, 0x80}, {0xf0, 0xe0, 0x800}, {0xf8, 0xf0, 0x10000}};

    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        if ((first & forms[i].mask) == forms[i].lead) {
            *ret_bits = (uint8_t)(first & ~forms[i].mask);
            *ret_least = forms[i].least;
            return i + 1;
        }
    }
    return 0;
}

size_t text_valid_length(const uint8_t *text, size_t size)
{
    size_t at = 0;

    while (at < size) {
        uint32_t point;
        uint32_t least;
        size_t length = sequence_length(text[at], &point, &least);

        if (length == 0 || length > size - at)
            break;
        for (size_t i = 1; i < length; i++) {
            if ((text[at + i] & 0xc0) != 0x80)
                return at;
            point = point << 6 | (text[at + i] & 0x3f);
        }
        if (point < least || point > 0x10ffff || (point >= 0xd800 && point <= 0xdfff))
            break;
        at += length;
    }
    return at;
}

bool text_is_valid(const uint8_t *text, size_t size)
{
    return text_valid_length(text, size) == size;
}

/* protobuf-c does not keep the length of a string, so check the bytes first, also in embedded
 * messages.  None of our messages contains its own type, so the recursion ends. */
static enum status check_strings(const ProtobufCMessageDescriptor *descriptor, const uint8_t *bytes,
                                 size_t size, struct error *err)
{
    const struct byte_run run = {bytes, size};
    enum status status = STATUS_OK;
    struct cursor c;

    cursor_init(&c, &run, 1);
    while (c.left > 0 && status == STATUS_OK) {
        const ProtobufCFieldDescriptor *known;
        struct field field;
        const uint8_t *value;

        if (!cursor_field(&c, &field))
            return error_set(err, STATUS_DATA, "malformed %s", descriptor->short_name);
        value = bytes + (size - c.left);
        known = protobuf_c_message_descriptor_get_field(descriptor, field.number);
        if (known && known->type == PROTOBUF_C_TYPE_STRING && field.type == FIELD_BYTES &&
            !text_is_valid(value, field.size))
            return error_set(err, STATUS_DATA,
                             "malformed %s: field '%s' is not valid UTF-8 without NUL",
                             descriptor->short_name, known->name);
        if (known && known->type == PROTOBUF_C_TYPE_MESSAGE && field.type == FIELD_BYTES)
            status = check_strings(known->descriptor, value, field.size, err);
        (void)cursor_skip(&c, field.size);
    }
    return status;
}

enum status unpack_message(const ProtobufCMessageDescriptor *descriptor, const uint8_t *bytes,
                           size_t size, size_t max_size, struct arena *arena,
                           ProtobufCMessage **ret, struct error *err)
{
    enum status status;

    arena_init(arena, BUDGET_BASE + size * BUDGET_PER_BYTE);
    if (size > max_size)
        return error_set(err, STATUS_DATA, "%s of %zu bytes, the limit is %zu",
                         descriptor->short_name, size, max_size);
    status = check_strings(descriptor, bytes, size, err);
    if (status != STATUS_OK)
        return status;
    *ret = protobuf_c_message_unpack(descriptor, &arena->allocator, size, bytes);
    if (*ret)
        return STATUS_OK;
    if (arena->exhausted)
        return error_set(err, STATUS_DATA, "%s of %zu bytes unpacks to too much memory",
                         descriptor->short_name, size);
    return error_set(err, STATUS_DATA, "malformed %s", descriptor->short_name);
}
