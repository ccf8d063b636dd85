/*
 * ps_payload: how the elements of a partition travel between this worker's slabs and its servers.
 */
#ifndef SPARRING_WORKER_SYNC_PS_PAYLOAD_H
#define SPARRING_WORKER_SYNC_PS_PAYLOAD_H

#include "common/base/error.h"
#include "common/rpc/rpc.h"
#include "common/wire/wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sync_ps;

/* Where the answers of a round go. */
float *ps_answer_slab(const struct sync_ps *s, uint64_t round);

/* Release of what core sends from this worker's memory; user: &s->outstanding. */
void ps_payload_release(void *user);

/* What goes up for header->partition from `slab` (params or grads): fills the header's dtype and
 * length, adds to its flags, and fills *ret, whose release counts s->outstanding down.
 * What went up before in this round goes up in the same bytes.
 * STATUS_DATA: a gradient that the compression has no words for; there is no payload then.
 * On the training thread, or on the one that brings a link back. */
enum status ps_payload_make(struct sync_ps *s, const float *slab, struct chunk_header *header,
                            struct rpc_payload *ret, struct error *err);

/* Does an answer carry what its partition needs?  STATUS_PROTOCOL; its partition exists.  Lock
 * held. */
enum status ps_payload_check(const struct sync_ps *s, const struct chunk_header *header,
                             size_t payload_bytes, struct error *err);

/* An answer that has been checked into its slab.  On an I/O thread, without the lock: a range
 * belongs to one link. */
enum status ps_payload_take(struct sync_ps *s, const struct chunk_header *header,
                            struct rpc_message *message, struct error *err);

#endif
