/*
 * ring_wire: the few bytes beside the tensors on a data connection.  All integers little-endian.
 *
 *   hello   first, in both directions: rank and group; other programs cannot know the
 *           cookie that the other end has published to the group
 *   header  before the bytes of every operation, in every direction in which it moves any: its
 *           signature, and the sender's factor (REDUCE_PREMUL_SUM; else 1)
 *
 * Pure.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_RING_WIRE_H
#define SPARRING_COMMON_COLLECTIVE_RING_WIRE_H

#include "common/collective/signature.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RING_HELLO_BYTES  40
#define RING_HEADER_BYTES (SIGNATURE_BYTES + 8)

struct ring_hello {
    uint64_t group;  /* signature_group_id of the group's name */
    uint64_t cookie; /* of the rank that reads it */
    uint32_t generation;
    uint32_t rank; /* of the sender */
    uint32_t world_size;
    uint32_t stream; /* connections between two ranks are numbered */
};

void ring_hello_encode(const struct ring_hello *hello, unsigned char *bytes);

/* False when the bytes are no hello. */
bool ring_hello_decode(const unsigned char *bytes, struct ring_hello *ret);

void ring_header_encode(const struct signature *signature, double factor, unsigned char *bytes);

/* Change the factor alone. */
void ring_header_set_factor(unsigned char *bytes, double factor);

/* The factor of a header; any bits are valid. */
double ring_header_factor(const unsigned char *bytes);

#endif
