/*
 * Fixed layouts, written and read byte by byte: no padding, no alignment, no byte order of the
 * host. Decoders check the magic and every enumeration, because a stranger may connect to the port.
 */
#include "common/collective/ring_wire.h"

#include <inttypes.h>
#include <stdio.h>

#define MAGIC_HELLO  0x68725053u /* "SPrh" */
#define MAGIC_HEADER 0x6f725053u /* "SPro" */
#define MAGIC_NOTE   0x6e72u     /* "rn" */

static unsigned char *put(unsigned char *at, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        at[i] = (unsigned char)(value >> (8 * i));
    return at + bytes;
}

static uint64_t get(const unsigned char *at, unsigned bytes)
{
    uint64_t value = 0;

    for (unsigned i = bytes; i > 0; i--)
        value = (value << 8) | at[i - 1];
    return value;
}

uint64_t ring_group_id(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
    return hash;
}

/* magic 4, zero 4, group 8, rank 4, world size 4 */
void ring_hello_encode(const struct ring_hello *hello, unsigned char *bytes)
{
    bytes = put(bytes, MAGIC_HELLO, 4);
    bytes = put(bytes, 0, 4);
    bytes = put(bytes, hello->group, 8);
    bytes = put(bytes, hello->rank, 4);
    (void)put(bytes, hello->world_size, 4);
}

bool ring_hello_decode(const unsigned char *bytes, struct ring_hello *ret)
{
    if (get(bytes, 4) != MAGIC_HELLO)
        return false;
    ret->group = get(bytes + 8, 8);
    ret->rank = (uint32_t)get(bytes + 16, 4);
    ret->world_size = (uint32_t)get(bytes + 20, 4);
    return true;
}

/* magic 4, call 1, order 1, zero 2, group 8, sequence 8, count 8, root 4, zero 4 */
void ring_operation_encode(const struct ring_operation *operation, unsigned char *bytes)
{
    bytes = put(bytes, MAGIC_HEADER, 4);
    bytes = put(bytes, operation->call, 1);
    bytes = put(bytes, operation->order, 1);
    bytes = put(bytes, 0, 2);
    bytes = put(bytes, operation->group, 8);
    bytes = put(bytes, operation->sequence, 8);
    bytes = put(bytes, operation->count, 8);
    bytes = put(bytes, operation->root, 4);
    (void)put(bytes, 0, 4);
}

bool ring_operation_decode(const unsigned char *bytes, struct ring_operation *ret)
{
    if (get(bytes, 4) != MAGIC_HEADER || bytes[4] < RING_CALL_ALL_REDUCE ||
        bytes[4] > RING_CALL_CLOSE || bytes[5] > REDUCE_REPRODUCIBLE)
        return false;
    ret->call = (enum ring_call)bytes[4];
    ret->order = (enum reduce_order)bytes[5];
    ret->group = get(bytes + 8, 8);
    ret->sequence = get(bytes + 16, 8);
    ret->count = get(bytes + 24, 8);
    ret->root = (uint32_t)get(bytes + 32, 4);
    return true;
}

/* magic 2, kind 2, rank 4, sequence 8 */
void ring_note_encode(const struct ring_note *note, unsigned char *bytes)
{
    bytes = put(bytes, MAGIC_NOTE, 2);
    bytes = put(bytes, note->kind, 2);
    bytes = put(bytes, note->rank, 4);
    (void)put(bytes, note->sequence, 8);
}

bool ring_note_decode(const unsigned char *bytes, struct ring_note *ret)
{
    uint64_t kind = get(bytes + 2, 2);

    if (get(bytes, 2) != MAGIC_NOTE || kind < RING_NOTE_ALIVE || kind > RING_NOTE_GOODBYE)
        return false;
    ret->kind = (enum ring_note_kind)kind;
    ret->rank = (uint32_t)get(bytes + 4, 4);
    ret->sequence = get(bytes + 8, 8);
    return true;
}

void ring_operation_text(const struct ring_operation *operation, char *text)
{
    uint64_t sequence = operation->sequence;
    uint64_t count = operation->count;

    switch (operation->call) {
    case RING_CALL_ALL_REDUCE:
        (void)snprintf(text, RING_TEXT_SIZE, "all_reduce #%" PRIu64 " of %" PRIu64 " float32%s",
                       sequence, count,
                       operation->order == REDUCE_REPRODUCIBLE ? " in rank order" : "");
        break;
    case RING_CALL_BROADCAST:
        (void)snprintf(text, RING_TEXT_SIZE,
                       "broadcast #%" PRIu64 " of %" PRIu64 " bytes from rank %" PRIu32, sequence,
                       count, operation->root);
        break;
    case RING_CALL_ALL_GATHER:
        (void)snprintf(text, RING_TEXT_SIZE, "all_gather #%" PRIu64 " of %" PRIu64 " bytes",
                       sequence, count);
        break;
    case RING_CALL_BARRIER:
        (void)snprintf(text, RING_TEXT_SIZE, "barrier #%" PRIu64, sequence);
        break;
    case RING_CALL_CLOSE:
        (void)snprintf(text, RING_TEXT_SIZE, "has closed the group");
        break;
    }
}
