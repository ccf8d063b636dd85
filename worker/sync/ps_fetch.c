/*
 * Reads the values and the optimizer state of all servers, partition by partition, by State calls
 * beside the streams.  A State call changes nothing on the server, so one that ends with a lost
 * connection is repeated after the reconnection.
 *
 * Locking: received_slabs and steps belong to the call's I/O thread until on_closed; the other
 * results are written under the call's lock.  The caller reads all of them after it has seen
 * `finished` under that lock.
 */
#include "common/base/clock.h"
#include "worker/sync/ps.h"

#include <inttypes.h>
#include <string.h>

#define SLABS_MAX 3 /* values and two states */

/* The current call.  The fields after the condition are written by its handlers. */
struct state_fetch {
    struct rpc_call *call; /* one reference, the caller's */
    const struct partition *partition;
    uint32_t index;
    float *slabs[SLABS_MAX]; /* of the whole model */
    unsigned count;          /* of slabs */

    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned received_slabs; /* bit i: slabs[i] */
    uint64_t steps;
    bool finished;
    bool by_peer;
    struct error failure; /* of a message; else of the call */
};

static enum status store_state_chunk(struct state_fetch *f, struct rpc_message *message,
                                     struct error *err)
{
    size_t bytes = f->partition->count * sizeof(float);
    struct chunk_header h;
    const uint8_t *head;
    size_t size;
    enum status status;

    head = rpc_message_head(message, &size);
    status = wire_unpack_chunk(head, size, &h, err);
    if (status != STATUS_OK)
        return status;
    if (h.kind != CHUNK_STATE || h.partition != f->index || h.lane >= f->count ||
        f->received_slabs & 1u << h.lane || (f->received_slabs != 0 && h.round != f->steps) ||
        h.length != bytes || h.dtype != CODEC_NONE || h.flags != 0)
        return error_set(err, STATUS_PROTOCOL,
                         "it replied to the request for the state of partition %" PRIu32
                         " by a chunk of kind %d, partition %" PRIu32 ", slab %" PRIu32 ", %" PRIu64
                         " bytes",
                         f->index, (int)h.kind, h.partition, h.lane, h.length);
    f->received_slabs |= 1u << h.lane;
    f->steps = h.round;
    return rpc_message_copy(message, f->slabs[h.lane] + f->partition->offset, bytes, err);
}

static void on_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    struct state_fetch *f = user;
    struct error err = {0};

    if (!message)
        return; /* the status follows */
    if (store_state_chunk(f, message, &err) == STATUS_OK) {
        rpc_call_receive(call);
        return;
    }
    (void)pthread_mutex_lock(&f->lock);
    f->failure = err;
    f->by_peer = true; /* another connection would not help */
    (void)pthread_mutex_unlock(&f->lock);
    rpc_call_cancel(call);
}

static void on_closed(struct rpc_call *call, const struct rpc_result *result, void *user)
{
    struct state_fetch *f = user;

    (void)call;
    (void)pthread_mutex_lock(&f->lock);
    if (f->failure.status == STATUS_OK && result->status != STATUS_OK) {
        (void)error_set(&f->failure, result->status, "%s", result->text);
        f->by_peer = result->by_peer;
    } else if (f->failure.status == STATUS_OK && f->received_slabs != (1u << f->count) - 1) {
        (void)error_set(&f->failure, STATUS_PROTOCOL, "it left out state of partition %" PRIu32,
                        f->index);
        f->by_peer = true;
    }
    f->finished = true;
    (void)pthread_cond_signal(&f->changed);
    (void)pthread_mutex_unlock(&f->lock);
}

static const struct rpc_handler handler = {.message = on_message, .closed = on_closed};

/* One attempt; the link is acquired.  *ret_by_peer: the server returned the error. */
static enum status call_state(struct ps_link *l, struct state_fetch *f, int64_t deadline_ns,
                              bool *ret_by_peer, struct error *err)
{
    const struct chunk_header request = {
        .kind = CHUNK_STATE, .rank = l->rank, .partition = f->index, .session = l->session};
    size_t wire_bytes;
    enum status status;

    f->received_slabs = 0;
    f->finished = f->by_peer = false;
    f->failure = (struct error){0};
    *ret_by_peer = false;
    status = rpc_client_call(l->lanes[0].client, PS_METHOD("State"), deadline_ns, &handler, f,
                             &f->call, err);
    if (status != STATUS_OK)
        return status;
    if (ps_link_send(f->call, 0, &request, NULL, &wire_bytes) == STATUS_OK)
        rpc_call_send_done(f->call);
    rpc_call_receive(f->call);
    (void)pthread_mutex_lock(&f->lock);
    while (!f->finished)
        (void)pthread_cond_wait(&f->changed, &f->lock);
    (void)pthread_mutex_unlock(&f->lock);
    rpc_call_unref(f->call);
    *ret_by_peer = f->by_peer;
    if (f->failure.status == STATUS_OK)
        return STATUS_OK;
    return error_set(err, f->failure.status, "rank %u, %s: %s", l->rank, l->name, f->failure.text);
}

/* Return the sync's failure; if there is none, the link is not up. */
static enum status copy_failure(struct sync_ps *s, const struct ps_link *l, struct error *err)
{
    struct error failure;

    (void)pthread_mutex_lock(&s->lock);
    failure = s->failure;
    if (!s->failed)
        (void)error_set(&failure, STATUS_UNAVAILABLE, "rank %u, %s is away", s->rank, l->name);
    (void)pthread_mutex_unlock(&s->lock);
    return error_set(err, failure.status, "%s", failure.text);
}

static enum status fetch_partition(struct sync_ps *s, struct state_fetch *f, int64_t deadline_ns,
                                   struct error *err)
{
    struct ps_link *l = &s->links[f->partition->server];
    enum status status = STATUS_UNAVAILABLE;

    while (status != STATUS_OK) {
        struct error why = {0};
        bool by_peer;

        if (!ps_acquire_link(s, l, deadline_ns))
            return copy_failure(s, l, err);
        status = call_state(l, f, deadline_ns, &by_peer, &why);
        if (status != STATUS_OK && ps_link_may_return(status, by_peer) &&
            clock_now_ns() < deadline_ns) {
            ps_link_closed(s, l, &why, true);
            ps_release_link(s, l);
            continue;
        }
        ps_release_link(s, l);
        if (status != STATUS_OK)
            return error_set(err, status, "%s", why.text);
    }
    return STATUS_OK;
}

static enum status check_steps(const struct sync_ps *s, uint64_t steps, size_t partition,
                               struct error *err)
{
    uint64_t wanted = s->terms.steps_before + s->round;

    if (!consistency_is_lockstep(&s->consistency) || s->consistency.backup > 0 || steps == wanted)
        return STATUS_OK;
    return error_set(err, STATUS_PROTOCOL,
                     "rank %u: partition %zu is behind step %" PRIu64
                     " of the optimizer, this rank behind step %" PRIu64,
                     s->rank, partition, steps, wanted);
}

enum status ps_fetch_state(struct sync *base, float *values, float *const *moments,
                           uint64_t *ret_steps, struct error *err)
{
    struct sync_ps *s = (struct sync_ps *)base;
    struct state_fetch f = {.slabs = {values, moments[0], moments[1]}, .count = 1 + s->states};
    int64_t deadline_ns = clock_deadline_ns(s->timeout_ms);
    uint64_t steps = 0;
    enum status status = STATUS_OK;

    (void)pthread_mutex_init(&f.lock, NULL);
    (void)pthread_cond_init(&f.changed, NULL);
    for (size_t i = 0; status == STATUS_OK && i < s->map.length; i++) {
        f.partition = &s->map.partitions[i];
        f.index = (uint32_t)i;
        status = fetch_partition(s, &f, deadline_ns, err);
        if (status == STATUS_OK)
            status = check_steps(s, f.steps, i, err);
        if (f.steps > steps)
            steps = f.steps;
    }
    (void)pthread_cond_destroy(&f.changed);
    (void)pthread_mutex_destroy(&f.lock);
    if (status == STATUS_OK)
        *ret_steps = steps;
    return status;
}
