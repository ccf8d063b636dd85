/*
 * exchange: declarations shared by the sources of the Exchange stream.
 *
 *   exchange.c        the stream: binding to a rank, and the effect of its end
 *   exchange_channel.c  the same chunks from the channel of a rank on this host
 *   exchange_chunk.c  chunks from a rank: checked, counted, applied to the shard
 *   reply.c           replies to ranks, sent from the shard's memory
 *
 * The path of a push: exchange_take_chunk -> shard_push -> count_push -> reply_waiting.  Processing
 * of a complete sum that must precede every reply belongs between the last two.
 */
#ifndef SPARRING_SERVER_SERVICE_EXCHANGE_H
#define SPARRING_SERVER_SERVICE_EXCHANGE_H

#include "server/service/call_binding.h"
#include "server/service/channel_threads.h"

/* One Exchange call. */
struct exchange_stream {
    struct call_binding binding; /* bound by its first chunk */
    struct rpc_call *call;
    unsigned lane, lanes;
    bool by_channel;              /* stands for the channel, see exchange_channel.c */
    struct channel_reader reader; /* lane 0: of the connection's channel, if the worker sent one */
};

/* ------------------------------------------------------------------ exchange.c */

/* After an error of a chunk: end the job, if the stream is bound, and the stream.  `why` is set
 * unless the status is STATUS_CANCELLED. */
void exchange_reject_chunk(struct exchange_stream *st, enum status status, const struct error *why);

/* ------------------------------------------------------------------ exchange_channel.c */

/* Lane 0 of a session has been bound: take the channel that its worker has sent, if any.  Lock
 * held. */
void exchange_take_channel(struct exchange_stream *st);

/* Read the channel from now on.  No lock. */
void exchange_open_channel(struct exchange_stream *st);

/* The stream is closed: read the channel no more.  No lock. */
void exchange_close_channel(struct exchange_stream *st);

/* ------------------------------------------------------------------ exchange_chunk.c */

/* Check one chunk of a bound stream and apply it.  message: NULL for a chunk of the channel, which
 * is by reference and of any lane.  STATUS_CANCELLED: the job is over or the rank
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
