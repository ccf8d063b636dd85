/*
 * payload: how the elements of a partition travel between ranks and this server's shard.
 *
 * Threads: a payload belongs to the handler of its message.
 */
#ifndef SPARRING_SERVER_SERVICE_PAYLOAD_H
#define SPARRING_SERVER_SERVICE_PAYLOAD_H

#include "common/rpc/rpc.h"
#include "common/wire/wire.h"
#include "server/service/worker_memory.h"
#include "server/shard/shard.h"

/* What came with one chunk; in the handler's memory, while its message lives. */
struct payload {
    struct rpc_message *message;
    struct worker_memory *memory; /* borrowed, of the rank; NULL: it has handed none over */
    const float *elements;        /* in it; NULL: they came with the message */
    struct codec codec;           /* of those that came with the message */
    float factor; /* of each element, as it is read; 1 where they are as they shall be */
};

/* Check what the header says of the payload against what came and what the partition (which is
 * held here) needs; ret->memory is set, the rest is filled.  *ret_source then gives its elements to
 * the shard; it refers to *ret, and to nothing of a chunk without elements (PULL, FINAL).
 * STATUS_PROTOCOL. */
enum status payload_open(const struct shard *shard, const struct chunk_header *h,
                         struct rpc_message *message, struct payload *ret,
                         struct shard_source *ret_source, struct error *err);

/* What goes down for header->partition: fills the header's dtype, flags, length and place, and
 * ret's data and size, which stay 0 by reference (the answer lies in the shard's reply memory). */
void payload_make(const struct shard *shard, const struct shard_reply *answer, bool by_reference,
                  struct chunk_header *header, struct rpc_payload *ret);

#endif
