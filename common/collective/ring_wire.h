/*
 * ring_wire: the few bytes beside the tensors on a ring connection.  All integers little-endian.
 *
 *   hello   to the right once, and back as the answer: who is there, in which group
 *   header  to the right before the bytes of every operation.  It holds what all ranks must agree
 *           on and nothing else, so a rank's own header is what its left neighbour must send.
 *   note    to the left, against the stream: alive, blame, goodbye
 *
 * Pure.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_RING_WIRE_H
#define SPARRING_COMMON_COLLECTIVE_RING_WIRE_H

#include "common/collective/collective.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RING_HELLO_BYTES  24
#define RING_HEADER_BYTES 40
#define RING_NOTE_BYTES   16
#define RING_TEXT_SIZE    160

struct ring_hello {
    uint64_t group; /* ring_group_id of the group's name */
    uint32_t rank;
    uint32_t world_size;
};

enum ring_call {
    RING_CALL_ALL_REDUCE = 1,
    RING_CALL_BROADCAST,
    RING_CALL_ALL_GATHER,
    RING_CALL_BARRIER,
    RING_CALL_CLOSE, /* the rank left the group in order */
};

/* What an operation is; the same on all ranks. */
struct ring_operation {
    enum ring_call call;
    enum reduce_order order; /* all-reduce */
    uint64_t group;
    uint64_t sequence; /* 1 for the group's first operation */
    uint64_t count;    /* all-reduce: float32; broadcast and all-gather: bytes */
    uint32_t root;     /* broadcast */
};

enum ring_note_kind {
    RING_NOTE_ALIVE = 1, /* `rank` has waited in operation `sequence` for some time */
    RING_NOTE_BLAME,     /* `rank` is what operation `sequence` waits for; passed on to the left */
    RING_NOTE_GOODBYE,   /* `rank` leaves the group in order */
};

struct ring_note {
    enum ring_note_kind kind;
    uint32_t rank;
    uint64_t sequence;
};

/* A number for a group's name (FNV-1a). */
uint64_t ring_group_id(const char *name);

void ring_hello_encode(const struct ring_hello *hello, unsigned char *bytes);
void ring_operation_encode(const struct ring_operation *operation, unsigned char *bytes);
void ring_note_encode(const struct ring_note *note, unsigned char *bytes);

/* False when the bytes are none: wrong magic, unknown kind. */
bool ring_hello_decode(const unsigned char *bytes, struct ring_hello *ret);
bool ring_operation_decode(const unsigned char *bytes, struct ring_operation *ret);
bool ring_note_decode(const unsigned char *bytes, struct ring_note *ret);

/* "all_reduce #12 of 100 float32" into text (RING_TEXT_SIZE). */
void ring_operation_text(const struct ring_operation *operation, char *text);

#endif
