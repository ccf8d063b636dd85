/*
 * exchange: declarations shared by the sources of the Exchange stream.
 *
 *   exchange.c        the stream: binding to a rank, and the effect of its end
 *   exchange_chunk.c  chunks from a rank: checked, counted, applied to the shard
 *   reply.c           replies to ranks, sent from the shard's memory
 *
 * The path of a push: exchange_take_chunk -> shard_push -> count_push -> reply_waiting.  Processing
 * of a complete sum that must precede every reply belongs between the last two.
 */
#ifndef SPARRING_SERVER_SERVICE_EXCHANGE_H
#define SPARRING_SERVER_SERVICE_EXCHANGE_H

#include "server/service/call_binding.h"

/* One Exchange call. */
struct exchange_stream {
    struct call_binding binding; /* bound by its first chunk */
    unsigned lane, lanes;
};

/* ------------------------------------------------------------------ exchange_chunk.c */

/* Check one chunk of a bound stream and apply it.  STATUS_CANCELLED: the job is over or the rank
 * was cut off, and the stream will be closed.  Takes the locks that it needs. */
enum status exchange_take_chunk(struct exchange_stream *st, const struct chunk_header *h,
                                struct rpc_message *message, struct error *err);

/* ------------------------------------------------------------------ reply.c: no lock held */

/* Send initial values to a rank that pulled them. */
void reply_pull(struct service *s, struct job *j, unsigned rank, uint32_t partition,
                const struct shard_reply *reply);

/* Send the reply to a push or to a request for the final values. */
void reply_push(struct service *s, struct job *j, unsigned rank, uint32_t partition,
                const struct shard_reply *reply);

/* Send a reply now; also called by replication for one that it has held. */
void reply_send(struct service *s, struct job *j, const struct held_reply *r);

/* Send the reply to every rank that may read the partition now. */
void reply_waiting(struct service *s, struct job *j, uint32_t partition);

#endif
