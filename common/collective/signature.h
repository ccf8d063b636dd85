/*
 * signature: what all ranks must agree on before an operation moves a byte.  A rank's own encoded
 * signature is, byte for byte, what its peers' must be; send and recv name each other's rank and
 * are compared by the backends that carry them.  Pure.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_SIGNATURE_H
#define SPARRING_COMMON_COLLECTIVE_SIGNATURE_H

#include "common/collective/operation.h"

#include <stdbool.h>
#include <stdint.h>

#define SIGNATURE_BYTES 48

struct signature {
    enum collective_call call;
    enum dtype dtype;
    enum reduce_op op;
    enum reduce_order order;
    uint64_t group; /* signature_group_id of the group's name */
    uint32_t generation;
    uint64_t sequence; /* 1 for the group's first operation; send and recv count per peer */
    uint64_t count;
    uint32_t root;
};

/* A number for a group's name (FNV-1a). */
uint64_t signature_group_id(const char *name);

void signature_encode(const struct signature *s, unsigned char *bytes);

/* False when the bytes are no signature: wrong magic, unknown enumeration. */
bool signature_decode(const unsigned char *bytes, struct signature *ret);

bool signature_equal(const struct signature *a, const struct signature *b);

/* "all_reduce #12 of 100 float32 (sum)" into text (COLLECTIVE_TEXT_SIZE). */
void signature_text(const struct signature *s, char *text);

#endif
