/*
 * exchange: what the sources behind the Exchange stream share.
 *
 *   exchange.c        the stream: whose it is, and what its end means
 *   exchange_chunk.c  what a rank sends: checked, counted, given to the shard
 *   reply.c           what goes back: the shard says to whom, one buffer for all
 *
 * A contribution goes  exchange_take_chunk -> shard -> exchange_chunk.c's count_push ->
 * reply_waiting.  What must happen to a whole sum before anybody sees it belongs between the last
 * two.
 */
#ifndef SPARRING_SERVER_SERVICE_EXCHANGE_H
#define SPARRING_SERVER_SERVICE_EXCHANGE_H

#include "server/service/call_binding.h"

/* One Exchange call. */
struct stream {
    struct call_binding binding; /* from its first chunk on */
    unsigned lane, lanes;
};

/* ------------------------------------------------------------------ exchange_chunk.c */

/* Check one chunk of a stream that belongs to a rank, and do what it asks.  STATUS_CANCELLED: the
 * job is over or the rank cut off, and the stream's end is on its way.  Takes the locks that it
 * needs. */
enum status exchange_take_chunk(struct stream *st, const struct chunk_header *h,
                                struct rpc_message *message, struct error *err);

/* ------------------------------------------------------------------ reply.c: no lock held */

/* Initial values to a rank that asked for them. */
void reply_pull(struct service *s, struct job *j, unsigned rank, uint32_t partition,
                const struct shard_reply *answer);

/* The answer to a push or to a request for the final values. */
void reply_push(struct service *s, struct job *j, unsigned rank, uint32_t partition,
                const struct shard_reply *answer);

/* One that has waited for the replica. */
void reply_send(struct service *s, struct job *j, const struct held_reply *a);

/* All that may read the partition now. */
void reply_waiting(struct service *s, struct job *j, uint32_t partition);

#endif
