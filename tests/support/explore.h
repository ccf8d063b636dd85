/*
 * explore: helpers of tests that enumerate all reachable states of a model.  A set holds each state
 * once, in the order of discovery, so that a test can iterate over it while it grows; rank masks; a
 * cheap assertion.  Not thread-safe.
 */
#ifndef SPARRING_TESTS_SUPPORT_EXPLORE_H
#define SPARRING_TESTS_SUPPORT_EXPLORE_H

#include <check.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Check's own assertions write to a pipe each: too slow for millions of them. */
#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (!(condition))                                                                          \
            ck_abort_msg("%s", #condition);                                                        \
    } while (0)

/* A mask has one bit per rank. */
static inline bool mask_has(uint8_t mask, unsigned rank)
{
    return mask >> rank & 1;
}

static inline uint8_t mask_bit(unsigned rank)
{
    return (uint8_t)(1u << rank);
}

static inline void mask_drop(uint8_t *mask, unsigned rank)
{
    *mask &= (uint8_t)~mask_bit(rank);
}

static inline unsigned mask_count(uint8_t mask)
{
    return (unsigned)__builtin_popcount(mask);
}

/* States are equal if their first key_bytes are; these contain no padding and no pointers. */
struct explored {
    size_t state_bytes, key_bytes, max;
    unsigned char *states; /* owned, (max, state_bytes) */
    uint32_t *table;       /* owned, (2 max), by hash: state index + 1, or 0 */
    size_t count;
};

void explored_open(struct explored *e, size_t state_bytes, size_t key_bytes, size_t max);
void explored_close(struct explored *e);

/* Remove all states. */
void explored_clear(struct explored *e);

/* Add a copy of the state; false if the set has it already.  More than `max` fails the test. */
bool explored_add(struct explored *e, const void *state);

/* State i of `count`, valid until explored_clear. */
const void *explored_at(const struct explored *e, size_t i);

#endif
