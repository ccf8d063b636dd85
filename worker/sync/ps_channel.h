/*
 * ps_channel: requests to a server on the same host, and its replies, through shared memory
 * (common/base/channel.h).  Where chunks go by reference (ps_worker_memory) they have no payload,
 * so no byte of a round passes a socket.
 *
 * A channel belongs to one connection of its link.  Values at the start, heartbeats and everything
 * else use the streams, whose end is also the channel's.
 *
 * Called by ps_worker_memory.c, ps_reconnect.c, ps_wait.c, ps_send.c and ps_close.c.
 */
#ifndef SPARRING_WORKER_SYNC_PS_CHANNEL_H
#define SPARRING_WORKER_SYNC_PS_CHANNEL_H

#include "common/base/channel.h"
#include "common/wire/wire.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct sync_ps;
struct ps_link;

/* Receives the replies of all channels: on the training thread while it waits for them, else on a
 * thread of its own, which sleeps on the bell. */
struct ps_channel_reader {
    pthread_mutex_t lock;      /* held by the thread that receives; taken before sync_ps.lock */
    struct shared_memory bell; /* owned; base NULL: there was no channel yet */
    pthread_t thread;          /* joined if there is a bell */
    atomic_bool stop;
    struct polling polling; /* the training thread's */
};

void ps_channel_init(struct sync_ps *s);

/* During the exchange of memory over `fd`: create the link's channel, and hand it over for the
 * server's bell.  Until deadline_ns; no stream is open.  On failure the link has no channel. */
enum status ps_channel_exchange(struct sync_ps *s, struct ps_link *l, int fd,
                                const unsigned char *token, int64_t deadline_ns, struct error *err);

/* The link's connection has ended: receive no more from its channel. */
void ps_channel_drop(struct sync_ps *s, struct ps_link *l);

void ps_channel_close(struct sync_ps *s); /* all channels are dropped */

/* Send a PUSH or FINAL by reference; false: use the stream.  channel: NULL is allowed. */
bool ps_channel_send(struct channel *channel, const struct chunk_header *header);

/* The training thread is about to send the round's last request, and will soon wait: do not wake
 * the reader's thread for the replies. */
void ps_channel_expect_wait(struct sync_ps *s);

/* Become the thread that receives, if there are channels and no other thread is busy with that;
 * then receive what has come (false: nothing), any number of times; then let the reader's thread
 * sleep on the bell.  The last two without sync_ps.lock. */
bool ps_channel_begin(struct sync_ps *s);
bool ps_channel_receive(struct sync_ps *s);
void ps_channel_end(struct sync_ps *s);

#endif
