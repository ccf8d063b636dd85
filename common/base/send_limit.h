/*
 * send_limit: how far a sender may be ahead of its replies, so that senders which share a
 * receiver's link do not make its queue overflow.
 *
 * All senders send the same messages, and each message gets its reply once it has come from every
 * sender.  Messages leave in order of priority, but their priorities rise while they become ready:
 * so a sender's messages are series of falling priority, and a new series begins with a message of
 * a higher priority than the one before it.  Within a series a message must wait while `most`
 * others of the series have no reply, but only once the first of the series has one: before that
 * some sender has not come so far, and the link would be idle.
 *
 * Senders cannot wait for each other in a circle: only messages of a higher priority hold a message
 * back, so the one of the highest priority without a reply may leave from every sender.
 *
 * Pure; the workers' and the simulation's rule.
 */
#ifndef SPARRING_COMMON_BASE_SEND_LIMIT_H
#define SPARRING_COMMON_BASE_SEND_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

/* Zeroed: no limit. */
struct send_limit {
    uint64_t most;        /* messages without a reply; 0: no limit */
    uint64_t first, last; /* priorities of the series' first and last message */
    uint64_t ahead;       /* messages of the series without a reply */
    bool is_first_replied;
};

/*
 * What `senders` may be ahead, each, so that their receiver's link stays full.
 *   byte_rate      of the link, bytes per second; 0: unknown
 *   round_trip_s   without other traffic
 *   message_bytes  > 0
 * Returns messages; 0, no limit, where the rate is unknown.
 */
uint64_t send_limit_messages(double byte_rate, double round_trip_s, unsigned senders,
                             double message_bytes);

/* May a message of this priority leave?  Parts of one message have one priority. */
bool send_limit_allows(const struct send_limit *l, uint64_t priority);

/* It has left. */
void send_limit_sent(struct send_limit *l, uint64_t priority);

/* Its reply has come. */
void send_limit_replied(struct send_limit *l, uint64_t priority);

#endif
