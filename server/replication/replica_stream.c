/*
 * The primary's side of a running Replicate stream: held replies, acknowledgements, heartbeats,
 * membership changes, and the loss of the replica.
 *
 * The replica acknowledges records in their order, so one sequence per partition is enough.  gRPC
 * releases a record's memory at about the time that its acknowledgement arrives; a reply blocked by
 * that alone is tried again at the next acknowledgement or tick.
 */
#include "common/base/clock.h"
#include "common/base/log.h"
#include "server/replication/replica_stream_internal.h"

#include <inttypes.h>
#include <string.h>

/* ------------------------------------------------------------------ held replies */

size_t replica_stream_local_index(const struct replica_stream *s, uint32_t partition)
{
    return s->shard->config.map->partitions[partition].local_index;
}

/* Lock held. */
static bool may_send_reply(struct replica_stream *s, size_t local_index, uint64_t sequence)
{
    bool has_it = !s->restored && s->parts[local_index].acknowledged >= sequence;

    if (!succession_may_acknowledge(&s->succession, has_it))
        return false;
    if (s->copies_payloads || atomic_load(&s->buffers[local_index].in_flight) == 0)
        return true;
    s->blocked_by_transport++;
    return false;
}

bool replica_stream_hold(struct replica_stream *s, const struct held_reply *reply)
{
    size_t local_index;
    struct replica_stream_held *h;
    bool must_hold;

    if (!s)
        return false;
    local_index = replica_stream_local_index(s, reply->header.partition);
    h = &s->held[local_index * s->world_size + reply->rank];
    (void)pthread_mutex_lock(&s->lock);
    must_hold = !may_send_reply(s, local_index, reply->shard_reply.sequence);
    if (must_hold) {
        s->parts[local_index].held_count += !h->is_held;
        *h = (struct replica_stream_held){
            .is_held = true, .since_ns = clock_now_ns(), .reply = *reply};
    }
    (void)pthread_mutex_unlock(&s->lock);
    return must_hold;
}

void replica_stream_drop_held(struct replica_stream *s, unsigned rank)
{
    if (!s)
        return;
    (void)pthread_mutex_lock(&s->lock);
    for (size_t local_index = 0; local_index < s->shard->length; local_index++) {
        struct replica_stream_held *h = &s->held[local_index * s->world_size + rank];

        s->parts[local_index].held_count -= h->is_held;
        h->is_held = false;
    }
    (void)pthread_mutex_unlock(&s->lock);
}

/* Send the replies for one partition that need not be held any longer.  No lock held. */
static void send_held_replies(struct replica_stream *s, size_t local_index)
{
    struct held_reply reply;

    for (unsigned rank = 0; rank < s->world_size; rank++) {
        struct replica_stream_held *h = &s->held[local_index * s->world_size + rank];
        bool found;

        (void)pthread_mutex_lock(&s->lock);
        if (s->parts[local_index].held_count == 0) {
            (void)pthread_mutex_unlock(&s->lock);
            return;
        }
        found = h->is_held && may_send_reply(s, local_index, h->reply.shard_reply.sequence);
        if (found) {
            reply = h->reply;
            h->is_held = false;
            s->parts[local_index].held_count--;
            s->counts.held++;
            s->counts.held_ns += clock_now_ns() - h->since_ns;
        }
        (void)pthread_mutex_unlock(&s->lock);
        if (found)
            s->send_reply(s->owner, s->job, &reply);
    }
}

static void send_all_held_replies(struct replica_stream *s)
{
    (void)pthread_mutex_lock(&s->lock);
    s->blocked_by_transport = 0;
    (void)pthread_mutex_unlock(&s->lock);
    for (size_t local_index = 0; local_index < s->shard->length; local_index++)
        send_held_replies(s, local_index);
}

static void send_blocked_replies(struct replica_stream *s)
{
    bool any;

    (void)pthread_mutex_lock(&s->lock);
    any = s->blocked_by_transport > 0;
    (void)pthread_mutex_unlock(&s->lock);
    if (any)
        send_all_held_replies(s);
}

/* ------------------------------------------------------------------ loss and succession */

/* The replica is lost: propose to continue alone.  Lock held.  True: no vote is missing. */
static bool mark_replica_lost(struct replica_stream *s, const struct error *why)
{
    int64_t now_ns = clock_now_ns();

    if (s->succession.role != SUCCESSION_PRIMARY || s->closing || !s->terms_accepted)
        return false;
    log_warning("%s is lost: %s", s->name, why->text);
    s->counts.lost_ns = now_ns;
    s->counts.detect_ns = now_ns - s->received_ns;
    return succession_lose_replica(&s->succession);
}

/* All votes are in: begin the epoch without the replica, and return it.  Lock held. */
static uint64_t begin_standalone(struct replica_stream *s)
{
    if (s->succession.epoch <= s->epoch) /* a change was not acknowledged */
        s->succession.epoch = s->epoch + 1;
    s->epoch = s->succession.epoch;
    s->counts.recover_ns = clock_now_ns() - s->counts.lost_ns;
    return s->epoch;
}

/* Then: send what waited for the replica.  epoch 0: it has not begun.  No lock. */
static void continue_standalone(struct replica_stream *s, uint64_t epoch)
{
    if (epoch == 0)
        return;
    log_warning("no replica from here on: all ranks have agreed to epoch %" PRIu64, epoch);
    if (s->call)
        rpc_call_cancel(s->call);
    send_all_held_replies(s);
    s->on_membership_acknowledged(s->owner);
}

uint64_t replica_stream_proposal(struct replica_stream *s)
{
    uint64_t epoch = 0;

    if (!s)
        return 0;
    (void)pthread_mutex_lock(&s->lock);
    if (s->succession.role == SUCCESSION_PROPOSING)
        epoch = s->succession.epoch + 1;
    (void)pthread_mutex_unlock(&s->lock);
    return epoch;
}

void replica_stream_vote(struct replica_stream *s, unsigned rank, uint64_t epoch,
                         uint64_t *ret_epoch)
{
    *ret_epoch = 0;
    if (!s)
        return;
    (void)pthread_mutex_lock(&s->lock);
    if (succession_count_vote(&s->succession, rank, epoch))
        *ret_epoch = begin_standalone(s);
    (void)pthread_mutex_unlock(&s->lock);
    continue_standalone(s, *ret_epoch);
}

void replica_stream_mark_settled(struct replica_stream *s, unsigned rank, uint64_t *ret_epoch)
{
    *ret_epoch = 0;
    if (!s)
        return;
    (void)pthread_mutex_lock(&s->lock);
    if (succession_mark_settled(&s->succession, rank))
        *ret_epoch = begin_standalone(s);
    (void)pthread_mutex_unlock(&s->lock);
    continue_standalone(s, *ret_epoch);
}

uint64_t replica_stream_send_membership(struct replica_stream *s, uint64_t epoch,
                                        const uint64_t *sessions)
{
    struct wire_record m = {.kind = RECORD_MEMBER, .epoch = epoch};
    uint64_t number;

    if (!s)
        return 0;
    (void)pthread_mutex_lock(&s->lock);
    /* A new session may vote as soon as its join is replied to. */
    for (unsigned rank = 0; rank < s->world_size; rank++)
        if (sessions[rank] != 0 && sessions[rank] != s->sessions[rank])
            s->settled[rank] = false;
    memcpy(s->sessions, sessions, s->world_size * sizeof(*sessions));
    number = ++s->membership_sent;
    if (s->succession.role == SUCCESSION_STANDALONE) {
        s->succession.epoch = s->epoch = epoch;
    } else if (!s->stream_ended && s->succession.role == SUCCESSION_PRIMARY) {
        s->epoch = m.epoch;
        m.sequence = number;
        m.sessions = s->sessions;
        m.session_count = s->world_size;
        (void)rpc_call_send(s->call, s->head, wire_pack_record(&m, s->head), NULL);
    }
    (void)pthread_mutex_unlock(&s->lock);
    return number;
}

enum job_role replica_stream_role(struct replica_stream *s, const uint64_t *sessions)
{
    enum job_role role = JOB_PAIR;

    (void)pthread_mutex_lock(&s->lock);
    if (s->succession.role == SUCCESSION_STANDALONE)
        role = JOB_ALONE;
    else if (s->membership_acknowledged != s->membership_sent ||
             memcmp(s->sessions, sessions, s->world_size * sizeof(*sessions)) != 0)
        role = JOB_CHANGING;
    (void)pthread_mutex_unlock(&s->lock);
    return role;
}

bool replica_stream_membership_acknowledged(struct replica_stream *s, uint64_t number)
{
    bool knows;

    if (!s)
        return true;
    (void)pthread_mutex_lock(&s->lock);
    knows = s->membership_acknowledged >= number || s->succession.role == SUCCESSION_STANDALONE;
    (void)pthread_mutex_unlock(&s->lock);
    return knows;
}

void replica_stream_step_down(struct replica_stream *s, uint64_t epoch)
{
    struct error why = {0};
    bool first;

    (void)pthread_mutex_lock(&s->lock);
    first =
        s->succession.role != SUCCESSION_SUPERSEDED && s->succession.role != SUCCESSION_STANDALONE;
    if (first)
        succession_supersede(&s->succession);
    (void)pthread_mutex_unlock(&s->lock);
    if (!first)
        return;
    (void)error_set(&why, STATUS_UNAVAILABLE, /* so that the ranks try the replica */
                    "superseded by epoch %" PRIu64 ": %s has taken over, because a worker had lost "
                    "this server",
                    epoch, s->name);
    s->on_superseded(s->owner, s->job, &why);
}

/* ------------------------------------------------------------------ the stream */

/* The replica has acknowledged a membership change; vacant ranks have no vote.  Lock held. */
static enum status process_membership_reply(struct replica_stream *s, uint64_t number,
                                            struct error *err)
{
    if (number > s->membership_sent)
        return error_set(err, STATUS_PROTOCOL,
                         "it acknowledges membership change %" PRIu64 ", the newest is %" PRIu64,
                         number, s->membership_sent);
    if (number > s->membership_acknowledged)
        s->membership_acknowledged = number;
    if (s->membership_acknowledged != s->membership_sent)
        return STATUS_OK;
    for (unsigned rank = 0; rank < s->world_size; rank++)
        if (s->sessions[rank] == 0)
            succession_membership_changed(&s->succession, s->epoch, rank, false);
    s->succession.epoch = s->epoch;
    return STATUS_OK;
}

/* Ignore totals above what was sent. */
static void count_acknowledged(struct replica_stream_figures *counts,
                               const struct record_reply *reply)
{
    if (reply->records > counts->acknowledged_records && reply->records <= counts->records)
        counts->acknowledged_records = reply->records;
    if (reply->bytes > counts->acknowledged_bytes && reply->bytes <= counts->bytes)
        counts->acknowledged_bytes = reply->bytes;
}

static enum status process_record_reply(struct replica_stream *s, const struct record_reply *reply,
                                        bool *ret_superseded, size_t *ret_local_index,
                                        struct error *err)
{
    const struct shard_map *map = s->shard->config.map;

    s->received_ns = clock_now_ns();
    if (reply->superseded) {
        *ret_superseded = true;
        return STATUS_OK;
    }
    if (!s->terms_accepted) { /* the first reply is to the terms */
        s->terms_accepted = true;
        (void)pthread_cond_broadcast(&s->changed);
        return STATUS_OK;
    }
    if (reply->sequence == 0) /* to a heartbeat */
        return STATUS_OK;
    if (reply->partition == RECORD_MEMBERSHIP_PARTITION)
        return process_membership_reply(s, reply->sequence, err);
    if (reply->partition >= map->length ||
        map->partitions[reply->partition].server != s->shard->config.index)
        return error_set(err, STATUS_PROTOCOL,
                         "it acknowledges partition %" PRIu32 ", which is not held here",
                         reply->partition);
    *ret_local_index = replica_stream_local_index(s, reply->partition);
    if (reply->sequence > s->parts[*ret_local_index].newest)
        return error_set(err, STATUS_PROTOCOL,
                         "it acknowledges record %" PRIu64 " of partition %" PRIu32
                         ", the newest is %" PRIu64,
                         reply->sequence, reply->partition, s->parts[*ret_local_index].newest);
    if (reply->sequence > s->parts[*ret_local_index].acknowledged)
        s->parts[*ret_local_index].acknowledged = reply->sequence;
    count_acknowledged(&s->counts, reply);
    return STATUS_OK;
}

static void on_record_reply(struct rpc_call *call, struct rpc_message *message, void *user)
{
    struct replica_stream *s = user;
    struct record_reply reply;
    struct error err = {0};
    bool superseded = false;
    size_t size, local_index = SIZE_MAX;
    const uint8_t *head;
    enum status status;

    if (!message)
        return; /* the status follows */
    head = rpc_message_head(message, &size);
    status = wire_unpack_record_reply(head, size, &reply, &err);
    (void)pthread_mutex_lock(&s->lock);
    if (status == STATUS_OK)
        status = process_record_reply(s, &reply, &superseded, &local_index, &err);
    if (status != STATUS_OK)
        s->end_error = err;
    (void)pthread_mutex_unlock(&s->lock);
    if (status != STATUS_OK) {
        rpc_call_cancel(call);
        return;
    }
    if (superseded)
        replica_stream_step_down(s, reply.epoch);
    if (local_index != SIZE_MAX)
        send_held_replies(s, local_index);
    else if (reply.partition == RECORD_MEMBERSHIP_PARTITION)
        s->on_membership_acknowledged(s->owner);
    send_blocked_replies(s);
    rpc_call_receive(call);
}

static void on_stream_closed(struct rpc_call *call, const struct rpc_result *result, void *user)
{
    struct replica_stream *s = user;
    uint64_t epoch = 0;

    (void)call;
    (void)pthread_mutex_lock(&s->lock);
    if (s->end_error.status == STATUS_OK)
        (void)error_set(&s->end_error,
                        result->status == STATUS_OK ? STATUS_PEER_LOST : result->status, "%s",
                        result->status == STATUS_OK ? "it ended the stream" : result->text);
    s->stream_ended = true;
    (void)pthread_cond_broadcast(&s->changed);
    if (mark_replica_lost(s, &s->end_error))
        epoch = begin_standalone(s);
    (void)pthread_mutex_unlock(&s->lock);
    continue_standalone(s, epoch);
}

const struct rpc_handler replica_stream_handler = {.message = on_record_reply,
                                                   .closed = on_stream_closed};

void replica_stream_tick(struct replica_stream *s, int64_t now_ns)
{
    struct wire_record heartbeat = {.kind = RECORD_HEARTBEAT};
    struct error why = {0};
    bool stopped, silent, due;
    uint64_t epoch = 0;

    if (!s)
        return;
    (void)pthread_mutex_lock(&s->lock);
    /* If this process was stopped itself, the silence says nothing about the replica. */
    stopped = s->ticked_ns != 0 && s->heartbeat_timeout_ns > 0 &&
              now_ns - s->ticked_ns > s->heartbeat_timeout_ns / 2;
    if (stopped)
        s->received_ns = now_ns;
    s->ticked_ns = now_ns;
    due = s->heartbeat_ns > 0 && !s->stream_ended && now_ns - s->sent_ns >= s->heartbeat_ns;
    silent = s->heartbeat_ns > 0 && s->heartbeat_timeout_ns > 0 &&
             now_ns - s->received_ns > s->heartbeat_timeout_ns;
    if (due) {
        heartbeat.epoch = s->epoch;
        (void)rpc_call_send(s->call, s->head, wire_pack_record(&heartbeat, s->head), NULL);
        s->sent_ns = now_ns;
    }
    if (silent)
        (void)error_set(&why, STATUS_TIMEOUT, "nothing came for %.1f s",
                        (double)(now_ns - s->received_ns) * 1e-9);
    /* Keep the stream open: the replica may report over it that it has taken over. */
    if (silent && mark_replica_lost(s, &why))
        epoch = begin_standalone(s);
    (void)pthread_mutex_unlock(&s->lock);
    continue_standalone(s, epoch);
    send_blocked_replies(s);
    replica_stream_query_takeover(s, now_ns);
}

void replica_stream_end(struct replica_stream *s, enum status status)
{
    struct wire_record end = {.kind = RECORD_END, .step = (uint64_t)(-(int)status)};

    if (!s)
        return;
    (void)pthread_mutex_lock(&s->lock);
    if (!s->closing && !s->stream_ended) {
        end.epoch = s->epoch;
        (void)rpc_call_send(s->call, s->head, wire_pack_record(&end, s->head), NULL);
        rpc_call_send_done(s->call);
        s->end_sent = true;
    }
    s->closing = true;
    (void)pthread_mutex_unlock(&s->lock);
}

void replica_stream_count(struct replica_stream *s, struct replica_stream_figures *ret)
{
    *ret = (struct replica_stream_figures){0};
    if (!s)
        return;
    (void)pthread_mutex_lock(&s->lock);
    *ret = s->counts;
    ret->is_primary = true;
    ret->role = s->succession.role;
    (void)pthread_mutex_unlock(&s->lock);
}

void replica_stream_cancel(struct replica_stream *s)
{
    if (!s)
        return;
    (void)pthread_mutex_lock(&s->lock);
    s->closing = true;
    (void)pthread_mutex_unlock(&s->lock);
    if (s->call)
        rpc_call_cancel(s->call);
}
