/*
 * Encoding, comparison and text of signatures.  A fixed layout, written and read byte by byte: no
 * padding, no byte order of the host.  Decoding checks the magic and every enumeration, because any
 * program may connect to the port.
 */
#include "common/collective/signature.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MAGIC 0x6f725053u /* "SPro" */

static unsigned char *put(unsigned char *at, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        at[i] = (unsigned char)(value >> (8 * i));
    return at + bytes;
}

static uint64_t get(const unsigned char **at, unsigned bytes)
{
    uint64_t value = 0;

    for (unsigned i = bytes; i > 0; i--)
        value = (value << 8) | (*at)[i - 1];
    *at += bytes;
    return value;
}

uint64_t signature_group_id(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
    return hash;
}

/* magic 4, call 1, dtype 1, op 1, order 1, group 8, sequence 8, count 8, generation 4, root 4,
 * zero 8 */
void signature_encode(const struct signature *s, unsigned char *bytes)
{
    bytes = put(bytes, MAGIC, 4);
    bytes = put(bytes, s->call, 1);
    bytes = put(bytes, s->dtype, 1);
    bytes = put(bytes, s->op, 1);
    bytes = put(bytes, s->order, 1);
    bytes = put(bytes, s->group, 8);
    bytes = put(bytes, s->sequence, 8);
    bytes = put(bytes, s->count, 8);
    bytes = put(bytes, s->generation, 4);
    bytes = put(bytes, s->root, 4);
    (void)put(bytes, 0, 8);
}

bool signature_decode(const unsigned char *bytes, struct signature *ret)
{
    if (get(&bytes, 4) != MAGIC || bytes[0] < COLLECTIVE_ALL_REDUCE ||
        bytes[0] >= COLLECTIVE_CALL_COUNT || bytes[1] >= DTYPE_COUNT ||
        bytes[2] >= REDUCE_OP_COUNT || bytes[3] > REDUCE_REPRODUCIBLE)
        return false;
    memset(ret, 0, sizeof(*ret));
    ret->call = (enum collective_call)get(&bytes, 1);
    ret->dtype = (enum dtype)get(&bytes, 1);
    ret->op = (enum reduce_op)get(&bytes, 1);
    ret->order = (enum reduce_order)get(&bytes, 1);
    ret->group = get(&bytes, 8);
    ret->sequence = get(&bytes, 8);
    ret->count = get(&bytes, 8);
    ret->generation = (uint32_t)get(&bytes, 4);
    ret->root = (uint32_t)get(&bytes, 4);
    return true;
}

bool signature_equal(const struct signature *a, const struct signature *b)
{
    return a->call == b->call && a->dtype == b->dtype && a->op == b->op && a->order == b->order &&
           a->group == b->group && a->generation == b->generation && a->sequence == b->sequence &&
           a->count == b->count && a->root == b->root;
}

static const char *root_word(enum collective_call call)
{
    switch (call) {
    case COLLECTIVE_BROADCAST:
    case COLLECTIVE_SCATTER:
    case COLLECTIVE_RECV:
        return " from rank ";
    case COLLECTIVE_REDUCE:
    case COLLECTIVE_GATHER:
    case COLLECTIVE_SEND:
        return " to rank ";
    default:
        return NULL;
    }
}

void signature_text(const struct signature *s, char *text)
{
    const char *order = s->order == REDUCE_REPRODUCIBLE ? ", in rank order" : "";
    char op[48] = "";
    char root[32] = "";

    if (s->call == COLLECTIVE_CLOSE) {
        (void)snprintf(text, COLLECTIVE_TEXT_SIZE, "the end of the group");
        return;
    }
    if (s->call == COLLECTIVE_BARRIER) {
        (void)snprintf(text, COLLECTIVE_TEXT_SIZE, "barrier #%" PRIu64, s->sequence);
        return;
    }
    if (collective_call_reduces(s->call))
        (void)snprintf(op, sizeof(op), " (%s%s)", reduce_op_name(s->op), order);
    if (root_word(s->call))
        (void)snprintf(root, sizeof(root), "%s%" PRIu32, root_word(s->call), s->root);
    (void)snprintf(text, COLLECTIVE_TEXT_SIZE, "%s #%" PRIu64 " of %" PRIu64 " %s%s%s",
                   collective_call_name(s->call), s->sequence, s->count, dtype_name(s->dtype), op,
                   root);
}
