/*
 * explore: the set of explored states: an array of copies in the order of discovery, and a hash
 * table of their indices with linear probing, half full at most.  Memory is allocated once, in
 * explored_open.
 */
#include "tests/support/explore.h"

#include <stdlib.h>
#include <string.h>

void explored_open(struct explored *e, size_t state_bytes, size_t key_bytes, size_t max)
{
    *e = (struct explored){.state_bytes = state_bytes, .key_bytes = key_bytes, .max = max};
    e->states = malloc(max * state_bytes);
    e->table = calloc(2 * max, sizeof(*e->table));
    ck_assert(e->states && e->table);
}

void explored_close(struct explored *e)
{
    free(e->states);
    free(e->table);
    *e = (struct explored){0};
}

void explored_clear(struct explored *e)
{
    memset(e->table, 0, 2 * e->max * sizeof(*e->table));
    e->count = 0;
}

const void *explored_at(const struct explored *e, size_t i)
{
    return e->states + i * e->state_bytes;
}

/* FNV-1a */
static size_t hash(const unsigned char *bytes, size_t size)
{
    uint64_t h = 14695981039346656037u;

    for (size_t i = 0; i < size; i++)
        h = (h ^ bytes[i]) * 1099511628211u;
    return (size_t)(h ^ h >> 32);
}

bool explored_add(struct explored *e, const void *state)
{
    size_t at = hash(state, e->key_bytes) % (2 * e->max);

    for (; e->table[at]; at = (at + 1) % (2 * e->max))
        if (memcmp(explored_at(e, e->table[at] - 1), state, e->key_bytes) == 0)
            return false;
    REQUIRE(e->count < e->max);
    e->table[at] = (uint32_t)e->count + 1;
    memcpy(e->states + e->count * e->state_bytes, state, e->state_bytes);
    e->count++;
    return true;
}
