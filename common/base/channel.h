/*
 * channel: small messages between two processes of one host, in both directions, through shared
 * memory: two queues of fixed slots, each written by one side and read by the other.
 *
 * The side that made the channel hands its descriptor over (handover.h), and each side hands over
 * its bell.  A side that finds no message polls for a while (struct polling) and then sleeps on its
 * bell; a sender that finds the bell asleep rings it.  So a message costs no system call while its
 * receiver is awake.
 *
 * The other process is not trusted: what it writes to the memory can garble or withhold messages,
 * but no value makes this process touch memory outside the queues.
 *
 * Threads: any thread may send.  One thread at a time receives; messages arrive in order.
 */
#ifndef SPARRING_COMMON_BASE_CHANNEL_H
#define SPARRING_COMMON_BASE_CHANNEL_H

#include "common/base/error.h"
#include "common/base/shared_memory.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CHANNEL_MESSAGE_MAX 124 /* bytes */
#define CHANNEL_SLOTS_MAX   (1u << 16)

struct channel;

/* A channel whose queues hold at least `messages` messages each, up to CHANNEL_SLOTS_MAX.
 * STATUS_NO_MEMORY, STATUS_IO. */
enum status channel_create(size_t messages, struct channel **ret_channel, struct error *err);

/* The other end of a channel that a peer has created; `size` is of its channel_handover.
 * Consumes the descriptor, also on failure.  STATUS_PROTOCOL: it is no memory of a channel. */
enum status channel_attach(int memory_fd, size_t size, struct channel **ret_channel,
                           struct error *err);

/* What is handed over to the peer; the descriptor is borrowed. */
void channel_handover(const struct channel *c, int *ret_fd, size_t *ret_size);

/* The bell of the peer, which channel_send rings; the channel owns it from now on.  Before the
 * first send. */
void channel_set_bell(struct channel *c, struct shared_memory bell);

struct channel *channel_ref(struct channel *c);
void channel_unref(struct channel *c); /* NULL is allowed */

/* Send up to CHANNEL_MESSAGE_MAX bytes.  False: the queue is full, or the peer has garbled it. */
bool channel_send(struct channel *c, const void *bytes, size_t size);

/* Copy the next message to `bytes` (CHANNEL_MESSAGE_MAX); *ret_size is 0 when there is none.
 * STATUS_PROTOCOL: the peer has garbled the queue. */
enum status channel_receive(struct channel *c, void *bytes, size_t *ret_size, struct error *err);

/* Is there something to receive? */
bool channel_has_message(const struct channel *c);

/* ---- bells ---- */

/* A bell is a page of shared memory that its owner sleeps on. */
enum status channel_bell_open(struct shared_memory *ret_bell, struct error *err);

/* Map the bell of a peer; consumes the descriptor, also on failure. */
enum status channel_bell_map(int fd, struct shared_memory *ret_bell, struct error *err);

/* The owner is about to sleep (true), or awake.  Look for messages once more before sleeping. */
void channel_bell_set_asleep(const struct shared_memory *bell, bool asleep);

/* Sleep until somebody rings, at most timeout_ns, unless the bell has been rung or set awake
 * already. */
void channel_bell_sleep(const struct shared_memory *bell, int64_t timeout_ns);

/* Wake the owner if it is asleep. */
void channel_bell_ring(const struct shared_memory *bell);

/* ---- polling ---- */

/*
 * How long to poll before sleeping.  Polling is worth it where messages follow one another within
 * CHANNEL_POLL_NS; elsewhere it takes the core from those who compute.  So the time is halved,
 * down to a sixteenth, each time that polling was in vain, restored when it was not, and tried in
 * full every 16th time.
 */
#define CHANNEL_POLL_NS 100000

struct polling {
    unsigned halvings; /* of CHANNEL_POLL_NS, at most 4 */
    unsigned in_vain;
};

/* The moment until which to poll, from now on. */
int64_t polling_until_ns(const struct polling *p, int64_t now_ns);

/* Polling has ended: with a message, or in vain. */
void polling_ended(struct polling *p, bool found);

#endif
