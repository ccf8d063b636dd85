/*
 * send_limit: a reply counts for the current series if its priority lies between that of the first
 * and the last message.  One to a message of an earlier series may, too; then more messages leave
 * than `most`, never fewer.
 */
#include "common/base/send_limit.h"

#include <math.h>

/* What is on the way, and as much again, twice, in a queue, which fills while some senders are
 * slower than others.  With one round trip steps are as fast on short links, slower on long ones.
 */
#define ROUND_TRIPS 3

/* What a sender and the receiver's processor hold. */
#define MESSAGES 4

uint64_t send_limit_messages(double byte_rate, double round_trip_s, unsigned senders,
                             double message_bytes)
{
    const double bytes = ROUND_TRIPS * byte_rate * round_trip_s / senders;

    return byte_rate > 0 ? (uint64_t)ceil(bytes / message_bytes) + MESSAGES : 0;
}

bool send_limit_allows(const struct send_limit *l, uint64_t priority)
{
    return l->most == 0 || priority >= l->last || !l->is_first_replied || l->ahead < l->most;
}

void send_limit_sent(struct send_limit *l, uint64_t priority)
{
    if (priority == l->last)
        return;
    if (priority > l->last) {
        l->first = priority;
        l->ahead = 0;
        l->is_first_replied = false;
    }
    l->last = priority;
    l->ahead++;
}

void send_limit_replied(struct send_limit *l, uint64_t priority)
{
    if (priority == l->first)
        l->is_first_replied = true;
    if (priority >= l->last && priority <= l->first && l->ahead > 0)
        l->ahead--;
}
