/*
 * payload: converts between the chunks of ranks and the elements of this server's shard.
 *
 * Needs: rpc, wire, shard, worker_memory.  Called by exchange_chunk.c and reply.c.
 *
 * Threads: a payload belongs to the handler of its message.
 */
#ifndef SPARRING_SERVER_SERVICE_PAYLOAD_H
#define SPARRING_SERVER_SERVICE_PAYLOAD_H

#include "common/rpc/rpc.h"
#include "common/wire/wire.h"
#include "server/service/worker_memory.h"
#include "server/shard/shard.h"

/* The payload of one received chunk.  In the memory of the handler, valid while its message
 * lives. */
struct payload {
    struct rpc_message *message;
    struct worker_memory *memory; /* borrowed, of the rank; NULL: it shares none */
    const float *elements;        /* in `memory`; NULL: they came with the message */
    struct codec codec;           /* of the elements in the message */
    float factor;                 /* applied to each element as it is read; 1: none */
};

/* message: NULL for a chunk of a channel, which has no payload.
 * Check the header against the payload that came and against the partition, which is held here.
 * ret->memory is set by the caller; the rest is filled.  *ret_source gives the elements to the
 * shard; it refers to *ret, and is unused for a chunk without elements (PULL, FINAL).
 * STATUS_PROTOCOL: they do not match. */
enum status payload_open(const struct shard *shard, const struct chunk_header *h,
                         struct rpc_message *message, struct payload *ret,
                         struct shard_source *ret_source, struct error *err);

/* Fill the header's dtype, flags, length and offset, and ret's data and size, for a reply of
 * header->partition.  By reference the data stays in the shard's reply memory, and ret's data and
 * size stay 0. */
void payload_make_reply(const struct shard *shard, const struct shard_reply *reply,
                        bool by_reference, struct chunk_header *header, struct rpc_payload *ret);

#endif
