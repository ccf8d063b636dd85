/*
 * What comes down: replies to what was asked, and to beats.
 */
#include "common/base/clock.h"
#include "worker/sync/ps.h"

#include <inttypes.h>

/* May an answer be of that round?  One that the servers are ahead by is where there are backup
 * workers, or this rank catches up with them; the final values are of whatever round was the last.
 * Lock held. */
static bool is_expected(const struct sync_ps *s, uint64_t round)
{
    if (s->catching_up)
        return s->wanted == 0 || round + 1 == s->wanted;
    return round == s->round || s->ending ||
           ((s->consistency.backup > 0 || ps_may_repeat(s)) && round > s->round);
}

/* Is this the answer to something that was asked?  *ret_twice: to something that was asked again
 * and is answered already.  Lock held. */
static enum status check_answer(struct sync_ps *s, const struct ps_link *link,
                                const struct chunk_header *h, size_t payload_bytes, bool *ret_twice,
                                struct error *err)
{
    enum chunk_kind wanted = ps_answer_slab(s, s->round) == s->params ? CHUNK_VALUES : CHUNK_MEAN;
    struct ps_partition *p;

    if (h->partition >= s->map.length || &s->links[s->map.partitions[h->partition].server] != link)
        return error_set(err, STATUS_PROTOCOL,
                         "it sent partition %" PRIu32 ", which is not its own", h->partition);
    p = &s->partitions[h->partition];
    *ret_twice = (h->kind != wanted || !is_expected(s, h->round) || h->partition >= s->queued ||
                  p->answered == s->round + 1) &&
                 p->extra > 0;
    if (*ret_twice) {
        p->extra--;
        return STATUS_OK;
    }
    if (h->kind != wanted || h->rank != s->rank)
        return error_set(err, STATUS_PROTOCOL,
                         "it sent a chunk of kind %d and rank %" PRIu32 " (wanted: %d, %u)",
                         (int)h->kind, h->rank, (int)wanted, s->rank);
    if (!is_expected(s, h->round) || h->partition >= s->queued || p->answered == s->round + 1)
        return error_set(err, STATUS_PROTOCOL,
                         "it sent partition %" PRIu32 " of round %" PRIu64
                         " unasked (round %" PRIu64 " is under way)",
                         h->partition, h->round, s->round);
    return ps_payload_check(s, h, payload_bytes, err);
}

static void count_answer(struct sync_ps *s, const struct chunk_header *h)
{
    (void)pthread_mutex_lock(&s->lock);
    s->counters.rx_payload_bytes += h->length;
    if (h->flags & CHUNK_BY_REFERENCE)
        s->counters.rx_reference_bytes += h->length;
    s->partitions[h->partition].of = h->round;
    if (s->catching_up && h->round > s->newest)
        s->newest = h->round;
    s->partitions[h->partition].here = s->round + 1;
    if (h->round < s->oldest)
        s->oldest = h->round;
    if (++s->received == s->map.length || s->awaited)
        (void)pthread_cond_broadcast(&s->changed);
    (void)pthread_mutex_unlock(&s->lock);
}

enum status ps_take_chunk(void *user, struct ps_link *link, const struct chunk_header *h,
                          struct rpc_message *message, struct error *err)
{
    struct sync_ps *s = user;
    size_t payload = rpc_message_payload_size(message), head;
    bool twice = false;
    enum status status;

    (void)rpc_message_head(message, &head);
    (void)pthread_mutex_lock(&s->lock);
    status = check_answer(s, link, h, payload, &twice, err);
    s->counters.rx_wire_bytes += status == STATUS_OK ? ps_link_wire_bytes(head, payload) : 0;
    if (status == STATUS_OK && !twice)
        s->partitions[h->partition].answered = s->round + 1;
    (void)pthread_mutex_unlock(&s->lock);
    if (status != STATUS_OK || twice)
        return status;
    status = ps_payload_take(s, h, message, err);
    if (status == STATUS_OK)
        count_answer(s, h);
    return status;
}

void ps_take_beat(void *user, struct ps_link *link, const struct heartbeat *beat)
{
    struct sync_ps *s = user;
    int64_t until_ns;

    until_ns = clock_deadline_ns((int64_t)beat->waiting_ms + s->timeout_ms + PS_MARGIN_MS);
    (void)pthread_mutex_lock(&s->lock);
    if (beat->propose_epoch != 0)
        ps_replica_propose(s, link, beat->propose_epoch);
    link->waits = beat->waiting_ms > 0;
    if (link->waits && until_ns > s->extended_ns)
        s->extended_ns = until_ns;
    (void)pthread_mutex_unlock(&s->lock);
}
