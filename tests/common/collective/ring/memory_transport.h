/*
 * memory_transport: links between ranks of one thread, for tests and fuzzers: bounded pipes that
 * take and give bytes in odd pieces.  Waiting never blocks: what can move, moves at the next call.
 * The test can play a rank itself, end links, and look at what was sent.
 */
#ifndef SPARRING_TESTS_COMMON_COLLECTIVE_MEMORY_TRANSPORT_H
#define SPARRING_TESTS_COMMON_COLLECTIVE_MEMORY_TRANSPORT_H

#include "common/collective/ring/ring_transport.h"

#include <stdint.h>

struct memory_world;

/* Pipes of `capacity` bytes; `seed` chooses the pieces, 0: as much as there is.  NULL: no memory.
 */
struct memory_world *memory_world_open(unsigned world_size, size_t capacity, uint64_t seed);
void memory_world_close(struct memory_world *w);

/* The transport of one rank; belongs to the world. */
struct transport *memory_world_transport(struct memory_world *w, unsigned rank);

/* Put bytes into a pipe or take them out; the number, at most what fits or is there. */
size_t memory_put(struct memory_world *w, unsigned from, unsigned to, const void *bytes,
                  size_t size);
size_t memory_take(struct memory_world *w, unsigned from, unsigned to, void *bytes, size_t size);

/* `from` is gone: reading behind its last byte, and writing to it, fails on the side of `to`. */
void memory_end(struct memory_world *w, unsigned from, unsigned to);

#endif
