/*
 * Replies to requests and to heartbeats; call-backs of the links, on the lanes' I/O threads.
 *
 * A reply is checked and marked under the lock, copied into its slab without it, then counted under
 * the lock.  A repeated request may cause a duplicate reply, which is ignored; any other reply
 * without a request is a protocol error.
 */
#include "common/base/clock.h"
#include "worker/sync/ps.h"

#include <inttypes.h>

/* May a reply be of `round`?  A later round than this rank's is valid with backup workers, and
 * after an earlier process of this rank; final values are of any round.  Lock held. */
static bool is_expected(const struct sync_ps *s, uint64_t round)
{
    if (s->catching_up)
        return s->requested_round == 0 || round + 1 == s->requested_round;
    return round == s->round || s->is_final_round ||
           ((s->consistency.backup > 0 || ps_may_repeat(s)) && round > s->round);
}

/* Check a reply against the requests.  *ret_duplicate: it is a second reply to a repeated request.
 * Lock held. */
static enum status check_reply(struct sync_ps *s, const struct ps_link *link,
                               const struct chunk_header *h, size_t payload_bytes,
                               bool *ret_duplicate, struct error *err)
{
    enum chunk_kind wanted = ps_reply_slab(s, s->round) == s->params ? CHUNK_VALUES : CHUNK_MEAN;
    struct ps_partition *p;

    if (h->partition >= s->map.length || &s->links[s->map.partitions[h->partition].server] != link)
        return error_set(err, STATUS_PROTOCOL,
                         "it sent partition %" PRIu32 ", which is not its own", h->partition);
    p = &s->partitions[h->partition];
    *ret_duplicate = (h->kind != wanted || !is_expected(s, h->round) || h->partition >= s->queued ||
                      p->replied_mark == s->round + 1) &&
                     p->duplicates_expected > 0;
    if (*ret_duplicate) {
        p->duplicates_expected--;
        return STATUS_OK;
    }
    if (h->kind != wanted || h->rank != s->rank)
        return error_set(err, STATUS_PROTOCOL,
                         "it sent a chunk of kind %d and rank %" PRIu32 " (wanted: %d, %u)",
                         (int)h->kind, h->rank, (int)wanted, s->rank);
    if (!is_expected(s, h->round) || h->partition >= s->queued || p->replied_mark == s->round + 1)
        return error_set(err, STATUS_PROTOCOL,
                         "it sent partition %" PRIu32 " of round %" PRIu64
                         " without a request (in round %" PRIu64 ")",
                         h->partition, h->round, s->round);
    return ps_payload_check(s, h, payload_bytes, err);
}

static void count_reply(struct sync_ps *s, const struct chunk_header *h)
{
    (void)pthread_mutex_lock(&s->lock);
    s->counters.rx_payload_bytes += h->length;
    if (h->flags & CHUNK_BY_REFERENCE)
        s->counters.rx_reference_bytes += h->length;
    s->partitions[h->partition].values_round = h->round;
    if (s->catching_up && h->round > s->newest_round)
        s->newest_round = h->round;
    s->partitions[h->partition].stored_mark = s->round + 1;
    if (h->round < s->oldest_round)
        s->oldest_round = h->round;
    if (++s->received == s->map.length || s->signal_each_partition)
        (void)pthread_cond_broadcast(&s->changed);
    (void)pthread_mutex_unlock(&s->lock);
}

enum status ps_take_chunk(void *user, struct ps_link *link, const struct chunk_header *h,
                          struct rpc_message *message, struct error *err)
{
    struct sync_ps *s = user;
    size_t payload = message ? rpc_message_payload_size(message) : 0, head = 0;
    bool is_duplicate = false;
    enum status status;

    if (message)
        (void)rpc_message_head(message, &head);
    (void)pthread_mutex_lock(&s->lock);
    status = check_reply(s, link, h, payload, &is_duplicate, err);
    s->counters.rx_wire_bytes +=
        head > 0 && status == STATUS_OK ? ps_link_wire_bytes(head, payload) : 0;
    if (status == STATUS_OK && !is_duplicate)
        s->partitions[h->partition].replied_mark = s->round + 1;
    (void)pthread_mutex_unlock(&s->lock);
    if (status != STATUS_OK || is_duplicate)
        return status;
    status = ps_payload_store(s, h, message, err);
    if (status == STATUS_OK)
        count_reply(s, h);
    return status;
}

void ps_take_heartbeat(void *user, struct ps_link *link, const struct heartbeat *heartbeat)
{
    struct sync_ps *s = user;
    int64_t until_ns;

    until_ns = clock_deadline_ns((int64_t)heartbeat->waiting_ms + s->timeout_ms + PS_MARGIN_MS);
    (void)pthread_mutex_lock(&s->lock);
    if (heartbeat->propose_epoch != 0)
        ps_replica_propose(s, link, heartbeat->propose_epoch);
    link->waits_for_rank = heartbeat->waiting_ms > 0;
    if (link->waits_for_rank && until_ns > s->extended_deadline_ns)
        s->extended_deadline_ns = until_ns;
    (void)pthread_mutex_unlock(&s->lock);
}
