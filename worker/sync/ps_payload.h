/*
 * ps_payload: the payload of a partition between this worker's slabs and its servers.  Called by
 * ps_send.c and ps_receive.c.
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

/* The slab that the replies of a round are stored in. */
float *ps_reply_slab(const struct sync_ps *s, uint64_t round);

/* rpc_payload.release of payloads in this worker's memory; user: &s->unreleased_payloads. */
void ps_payload_release(void *user);

/* Make the payload of header->partition from `slab` (params or grads): sets the header's dtype and
 * length, adds to its flags, and sets *ret, whose release decrements s->unreleased_payloads.
 * A repetition within a round has the same bytes.
 * STATUS_DATA: the compression cannot encode the gradient; there is no payload then.
 * Called on the training thread, or on the one that reconnects a link. */
enum status ps_payload_make(struct sync_ps *s, const float *slab, struct chunk_header *header,
                            struct rpc_payload *ret, struct error *err);

/* Check dtype and length of a reply whose partition exists.  STATUS_PROTOCOL.  Lock held. */
enum status ps_payload_check(const struct sync_ps *s, const struct chunk_header *header,
                             size_t payload_bytes, struct error *err);

/* Store a checked reply in its slab.  On an I/O thread, without the lock: each range belongs to one
 * link. */
enum status ps_payload_store(struct sync_ps *s, const struct chunk_header *header,
                             struct rpc_message *message, struct error *err);

#endif
