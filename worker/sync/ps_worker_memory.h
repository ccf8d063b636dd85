/*
 * ps_worker_memory: memory shared with a server on the same host.  Pushes then contain the offset
 * of the gradients in this worker's memory, and replies the offset of the results in the server's.
 *
 * Called by ps_open.c, ps_join.c, ps_payload.c and ps_close.c.
 */
#ifndef SPARRING_WORKER_SYNC_PS_WORKER_MEMORY_H
#define SPARRING_WORKER_SYNC_PS_WORKER_MEMORY_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sync_config;
struct sync_ps;
struct ps_link;

/* Set s->memory and the host id in the terms of the joins, if shared memory is requested and the
 * slabs are in it.  STATUS_CONFIG: it is required (SYNC_TRANSPORT_SHM) and impossible. */
enum status ps_worker_memory_init(struct sync_ps *s, const struct sync_config *config,
                                  struct error *err);

/* After a join, before the streams are opened: send this worker's memory to the server at `address`
 * (from its reply) and map the memory of its replies, until deadline_ns or sooner.  If that fails,
 * the link's chunks have payloads; at the first join (!resume) with SYNC_TRANSPORT_SHM it is an
 * error. */
enum status ps_worker_memory_exchange(struct sync_ps *s, struct ps_link *l, const char *address,
                                      bool resume, int64_t deadline_ns, struct error *err);

/* Offset of `data` in this worker's memory, in bytes. */
uint64_t ps_worker_memory_offset(const struct sync_ps *s, const float *data);

/* `bytes` bytes at `offset` of the server's memory; NULL: not inside it, or not aligned for floats.
 */
const float *ps_server_memory_resolve(const struct ps_link *l, uint64_t offset, size_t bytes);

/* Unmap the server's memory, if it is mapped. */
void ps_server_memory_release(struct ps_link *l);

#endif
