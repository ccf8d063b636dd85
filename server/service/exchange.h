/*
 * exchange: what the sources behind the Exchange stream share.
 *
 *   exchange.c  the stream: whose it is, and what its end means
 *   chunk.c     what a rank sends: checked, counted, given to the shard
 *   answer.c    what goes back: the shard says to whom, one buffer for all
 *
 * A contribution goes  chunk_take -> shard -> chunk.c's count_push -> answer_waiting.  What must
 * happen to a whole sum before anybody sees it belongs between the last two.
 */
#ifndef SPARRING_SERVER_SERVICE_EXCHANGE_H
#define SPARRING_SERVER_SERVICE_EXCHANGE_H

#include "server/service/call_binding.h"

/* One Exchange call. */
struct stream {
    struct tie tie; /* from its first chunk on */
    unsigned lane, lanes;
};

/* ------------------------------------------------------------------ chunk.c */

/* Check one chunk of a stream that belongs to a rank, and do what it asks.  STATUS_CANCELLED: the
 * job is over or the rank cut off, and the stream's end is on its way.  Takes the locks that it
 * needs. */
enum status chunk_take(struct stream *st, const struct chunk_header *h, struct rpc_message *message,
                       struct error *err);

/* ------------------------------------------------------------------ answer.c: no lock held */

/* Initial values to a rank that asked for them. */
void answer_pull(struct service *s, struct job *j, unsigned rank, uint32_t partition,
                 const struct shard_answer *answer);

/* The answer to a push or to a wish for the final values. */
void answer_push(struct service *s, struct job *j, unsigned rank, uint32_t partition,
                 const struct shard_answer *answer);

/* One that has waited for the replica. */
void answer_send(struct service *s, struct job *j, const struct chain_answer *a);

/* All that may read the partition now. */
void answer_waiting(struct service *s, struct job *j, uint32_t partition);

#endif
