/*
 * channel_threads: the threads that read the channels (common/base/channel.h) of ranks on this
 * host.
 *
 * As many as the server's calls have (half the cores, at most 4), each started for its first
 * channel; a rank's channel belongs to one of them.  A thread polls its channels while messages
 * follow one another, and sleeps on its bell otherwise.
 *
 * Needs: base.  Called by memory_sharing.c and exchange_channel.c.
 */
#ifndef SPARRING_SERVER_SERVICE_CHANNEL_THREADS_H
#define SPARRING_SERVER_SERVICE_CHANNEL_THREADS_H

#include "common/base/channel.h"

#include <stdbool.h>
#include <stdint.h>

struct channel_threads;

/* A channel that is read.  The first four are set by the owner. */
struct channel_reader {
    struct channel *channel; /* one reference; NULL: none */
    unsigned rank;
    /* On the thread: a message, or, with `why`, the reason why no more can come.  False: stop
     * reading; also after `why`. */
    bool (*message)(void *user, const uint8_t *bytes, size_t size, const struct error *why);
    void *user;
    bool is_stopped;             /* the thread's */
    struct channel_reader *next; /* the thread's list */
};

/* At most so many threads; 0: one for each two processors, since the workers use the others. */
enum status channel_threads_open(unsigned threads, struct channel_threads **ret_threads,
                                 struct error *err);

/* Start the thread of a rank's channel, if it does not run yet; its bell is borrowed. */
enum status channel_threads_start(struct channel_threads *t, unsigned rank, int *ret_bell_fd,
                                  struct error *err);

/* Read the channel from now on; its thread was started. */
void channel_threads_add(struct channel_threads *t, struct channel_reader *r);

/* Read it no more: `message` does not run after the return.  Not from `message`. */
void channel_threads_remove(struct channel_threads *t, struct channel_reader *r);

void channel_threads_close(struct channel_threads *t); /* no reader is left; NULL is allowed */

#endif
