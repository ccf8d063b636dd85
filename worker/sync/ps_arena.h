/*
 * ps_arena: shared memory with a server on this host.  What goes up is then the place of the
 * gradients in this worker's memory, what comes down the place of the results in the server's.
 */
#ifndef SPARRING_WORKER_SYNC_PS_ARENA_H
#define SPARRING_WORKER_SYNC_PS_ARENA_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sync_config;
struct sync_ps;
struct ps_link;

/* What the terms of every join say about it: nothing when it is not requested, or the slabs are
 * where nobody else can see them; the latter is STATUS_CONFIG when it is demanded. */
enum status ps_arena_terms(struct sync_ps *s, const struct sync_config *config, struct error *err);

/* Behind a join, before the streams are opened: hand this worker's memory to the server at
 * `address` (of its reply) and map what it answers from, until deadline_ns or sooner.  Where that
 * cannot be, chunks of this link carry their payload, or, when shared memory is demanded and it is
 * the first join, it is an error.
 */
enum status ps_arena_meet(struct sync_ps *s, struct ps_link *l, const char *address, bool resume,
                          int64_t deadline_ns, struct error *err);

/* Place of `data` in this worker's memory. */
uint64_t ps_arena_place(const struct sync_ps *s, const float *data);

/* `bytes` at `place` of the server's memory; NULL when they are not all inside, or not where floats
 * may be. */
const float *ps_arena_at(const struct ps_link *l, uint64_t place, size_t bytes);

void ps_arena_release(struct ps_link *l);

#endif
