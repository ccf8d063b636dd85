/*
 * Join of one server, first or after a reconnection: sends s->terms, checks that the server has cut
 * and placed the partitions as this worker has, and exchanges shared memory with it.  The caller
 * owns the link; `lock` is taken only to read completed_round.
 */
#include "worker/sync/ps.h"
#include "worker/sync/ps_worker_memory.h"

#include <inttypes.h>
#include <string.h>

/* The server must cut and place the partitions as this worker does. */
static enum status check_reply(const struct sync_ps *s, unsigned k, const struct join_reply *reply,
                               struct error *err)
{
    const uint32_t *partitions;
    size_t held = shard_map_held(&s->map, k, &partitions);

    if (reply->partition_count != s->map.length ||
        reply->element_count != s->map.server_elements[k] || reply->held != held ||
        memcmp(reply->partitions, partitions, held * sizeof(*partitions)) != 0)
        return error_set(err, STATUS_MISMATCH,
                         "rank %u, %s: it holds %zu of %" PRIu32
                         " partitions, this worker expects %zu of %zu (the server's version is %s)",
                         s->rank, s->links[k].name, reply->held, reply->partition_count, held,
                         s->map.length, reply->version);
    return STATUS_OK;
}

enum status ps_join(struct sync_ps *s, struct ps_link *l, bool resume, int64_t deadline_ns,
                    struct error *err)
{
    struct join_request request = s->terms;
    struct join_reply reply = {0};
    enum status status;

    request.server_index = l->index;
    request.resume = resume;
    request.follows = l->follows;
    request.attempt = ++l->join_attempts;
    memcpy(request.replica, l->replica_text, sizeof(request.replica));
    if (resume) {
        (void)pthread_mutex_lock(&s->lock);
        request.round = s->completed_round;
        (void)pthread_mutex_unlock(&s->lock);
    }
    status = ps_link_join(l, &request, deadline_ns, &reply, err);
    if (status == STATUS_OK)
        status = check_reply(s, l->index, &reply, err);
    if (status == STATUS_OK)
        l->pushed_round = reply.round;
    if (status == STATUS_OK)
        status = ps_worker_memory_exchange(s, l, reply.memory_address, resume, deadline_ns, err);
    wire_release_join_reply(&reply);
    return status;
}
