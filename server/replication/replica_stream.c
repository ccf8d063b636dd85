/*
 * One Replicate stream.  Replies come in the order of the records, so for each partition it is
 * enough to count them.
 *
 * A reply says that gRPC has written the whole record, and it lets go of its memory at about that
 * time; an answer that could be sent but for that is looked at again with the next reply, or the
 * next tick.
 */
#include "common/base/clock.h"
#include "common/base/log.h"
#include "server/replication/replica_stream_internal.h"

#include <inttypes.h>
#include <string.h>

/* ------------------------------------------------------------------ answers */

size_t replica_stream_slot_of(const struct replica_stream *c, uint32_t partition)
{
    return c->shard->config.map->partitions[partition].local_index;
}

/* Lock held. */
static bool may_send(struct replica_stream *c, size_t slot, uint64_t sequence)
{
    bool has_it = !c->restored && c->slots[slot].acknowledged >= sequence;

    if (!succession_may_acknowledge(&c->succession, has_it))
        return false;
    if (c->copies || atomic_load(&c->loans[slot].held) == 0)
        return true;
    c->stuck++;
    return false;
}

bool replica_stream_hold(struct replica_stream *c, const struct held_reply *answer)
{
    size_t slot;
    struct waiting *w;
    bool held;

    if (!c)
        return false;
    slot = replica_stream_slot_of(c, answer->header.partition);
    w = &c->waiting[slot * c->world_size + answer->rank];
    (void)pthread_mutex_lock(&c->lock);
    held = !may_send(c, slot, answer->answer.sequence);
    if (held) {
        c->slots[slot].held += !w->is_held;
        *w = (struct waiting){.is_held = true, .since_ns = clock_now_ns(), .answer = *answer};
    }
    (void)pthread_mutex_unlock(&c->lock);
    return held;
}

void replica_stream_forget(struct replica_stream *c, unsigned rank)
{
    if (!c)
        return;
    (void)pthread_mutex_lock(&c->lock);
    for (size_t slot = 0; slot < c->shard->length; slot++) {
        struct waiting *w = &c->waiting[slot * c->world_size + rank];

        c->slots[slot].held -= w->is_held;
        w->is_held = false;
    }
    (void)pthread_mutex_unlock(&c->lock);
}

/* Send what may leave of one slot.  No lock held. */
static void send_slot(struct replica_stream *c, size_t slot)
{
    struct held_reply answer;

    for (unsigned rank = 0; rank < c->world_size; rank++) {
        struct waiting *w = &c->waiting[slot * c->world_size + rank];
        bool found;

        (void)pthread_mutex_lock(&c->lock);
        if (c->slots[slot].held == 0) {
            (void)pthread_mutex_unlock(&c->lock);
            return;
        }
        found = w->is_held && may_send(c, slot, w->answer.answer.sequence);
        if (found) {
            answer = w->answer;
            w->is_held = false;
            c->slots[slot].held--;
            c->counts.held++;
            c->counts.held_ns += clock_now_ns() - w->since_ns;
        }
        (void)pthread_mutex_unlock(&c->lock);
        if (found)
            c->send(c->owner, c->job, &answer);
    }
}

static void send_all(struct replica_stream *c)
{
    (void)pthread_mutex_lock(&c->lock);
    c->stuck = 0;
    (void)pthread_mutex_unlock(&c->lock);
    for (size_t slot = 0; slot < c->shard->length; slot++)
        send_slot(c, slot);
}

static void send_stuck(struct replica_stream *c)
{
    bool any;

    (void)pthread_mutex_lock(&c->lock);
    any = c->stuck > 0;
    (void)pthread_mutex_unlock(&c->lock);
    if (any)
        send_all(c);
}

/* ------------------------------------------------------------------ who goes on */

/* The replica is given up: ask the workers.  Lock held; returns whether they need not be asked. */
static bool give_up(struct replica_stream *c, const struct error *why)
{
    int64_t now_ns = clock_now_ns();

    if (c->succession.role != SUCCESSION_PRIMARY || c->over || !c->taken)
        return false;
    log_warning("%s is lost: %s", c->name, why->text);
    c->counts.lost_ns = now_ns;
    c->counts.detect_ns = now_ns - c->heard_ns;
    return succession_lose_replica(&c->succession);
}

/* Lock held on entry, not on return. */
static void go_alone(struct replica_stream *c, uint64_t *ret_epoch)
{
    if (c->succession.epoch <= c->epoch) /* of a change that the replica has not heard of */
        c->succession.epoch = c->epoch + 1;
    c->epoch = *ret_epoch = c->succession.epoch;
    c->counts.recover_ns = clock_now_ns() - c->counts.lost_ns;
    (void)pthread_mutex_unlock(&c->lock);
    log_warning("no replica from here on: all ranks have agreed to epoch %" PRIu64, *ret_epoch);
    if (c->call)
        rpc_call_cancel(c->call);
    send_all(c);
    c->knows(c->owner);
}

uint64_t replica_stream_proposal(struct replica_stream *c)
{
    uint64_t epoch = 0;

    if (!c)
        return 0;
    (void)pthread_mutex_lock(&c->lock);
    if (c->succession.role == SUCCESSION_PROPOSING)
        epoch = c->succession.epoch + 1;
    (void)pthread_mutex_unlock(&c->lock);
    return epoch;
}

void replica_stream_vote(struct replica_stream *c, unsigned rank, uint64_t epoch,
                         uint64_t *ret_epoch)
{
    *ret_epoch = 0;
    if (!c)
        return;
    (void)pthread_mutex_lock(&c->lock);
    if (succession_count_vote(&c->succession, rank, epoch))
        go_alone(c, ret_epoch);
    else
        (void)pthread_mutex_unlock(&c->lock);
}

void replica_stream_settle(struct replica_stream *c, unsigned rank, uint64_t *ret_epoch)
{
    *ret_epoch = 0;
    if (!c)
        return;
    (void)pthread_mutex_lock(&c->lock);
    if (succession_mark_settled(&c->succession, rank))
        go_alone(c, ret_epoch);
    else
        (void)pthread_mutex_unlock(&c->lock);
}

uint64_t replica_stream_members(struct replica_stream *c, uint64_t epoch, const uint64_t *sessions)
{
    struct wire_record m = {.kind = RECORD_MEMBER, .epoch = epoch};
    uint64_t number;

    if (!c)
        return 0;
    (void)pthread_mutex_lock(&c->lock);
    /* Whoever is new may vote as soon as it is told that it is in. */
    for (unsigned rank = 0; rank < c->world_size; rank++)
        if (sessions[rank] != 0 && sessions[rank] != c->sessions[rank])
            c->settled[rank] = false;
    memcpy(c->sessions, sessions, c->world_size * sizeof(*sessions));
    number = ++c->members;
    if (c->succession.role == SUCCESSION_STANDALONE) {
        c->succession.epoch = c->epoch = epoch;
    } else if (!c->ended && c->succession.role == SUCCESSION_PRIMARY) {
        c->epoch = m.epoch;
        m.sequence = number;
        m.sessions = c->sessions;
        m.session_count = c->world_size;
        (void)rpc_call_send(c->call, c->head, wire_pack_record(&m, c->head), NULL);
    }
    (void)pthread_mutex_unlock(&c->lock);
    return number;
}

enum job_role replica_stream_role(struct replica_stream *c, const uint64_t *sessions)
{
    enum job_role role = JOB_PAIR;

    (void)pthread_mutex_lock(&c->lock);
    if (c->succession.role == SUCCESSION_STANDALONE)
        role = JOB_ALONE;
    else if (c->known != c->members ||
             memcmp(c->sessions, sessions, c->world_size * sizeof(*sessions)) != 0)
        role = JOB_CHANGING;
    (void)pthread_mutex_unlock(&c->lock);
    return role;
}

bool replica_stream_knows(struct replica_stream *c, uint64_t number)
{
    bool knows;

    if (!c)
        return true;
    (void)pthread_mutex_lock(&c->lock);
    knows = c->known >= number || c->succession.role == SUCCESSION_STANDALONE;
    (void)pthread_mutex_unlock(&c->lock);
    return knows;
}

void replica_stream_step_down(struct replica_stream *c, uint64_t epoch)
{
    struct error why = {0};
    bool first;

    (void)pthread_mutex_lock(&c->lock);
    first =
        c->succession.role != SUCCESSION_SUPERSEDED && c->succession.role != SUCCESSION_STANDALONE;
    if (first)
        succession_supersede(&c->succession);
    (void)pthread_mutex_unlock(&c->lock);
    if (!first)
        return;
    (void)error_set(&why, STATUS_UNAVAILABLE, /* here; the ranks find the job at the replica */
                    "superseded by epoch %" PRIu64 ": %s has taken over, because a worker had lost "
                    "this server",
                    epoch, c->name);
    c->lost(c->owner, c->job, &why);
}

/* ------------------------------------------------------------------ the stream */

/* The replica knows who holds the slots; whose are vacant need not vote.  Lock held. */
static enum status take_members(struct replica_stream *c, uint64_t number, struct error *err)
{
    if (number > c->members)
        return error_set(err, STATUS_PROTOCOL,
                         "it acknowledges change %" PRIu64 " of the slots, the newest is %" PRIu64,
                         number, c->members);
    c->known = number > c->known ? number : c->known;
    for (unsigned rank = 0; c->known == c->members && rank < c->world_size; rank++)
        if (c->sessions[rank] == 0)
            succession_membership_changed(&c->succession, c->epoch, rank, false);
    if (c->known == c->members)
        c->succession.epoch = c->epoch;
    return STATUS_OK;
}

/* What the replica says that it has, and was sent. */
static void count_acknowledged(struct replica_stream_figures *counts,
                               const struct record_reply *reply)
{
    if (reply->records > counts->acknowledged_records && reply->records <= counts->records)
        counts->acknowledged_records = reply->records;
    if (reply->bytes > counts->acknowledged_bytes && reply->bytes <= counts->bytes)
        counts->acknowledged_bytes = reply->bytes;
}

static enum status take_reply(struct replica_stream *c, const struct record_reply *reply,
                              bool *ret_step_down, size_t *ret_slot, struct error *err)
{
    const struct shard_map *map = c->shard->config.map;

    c->heard_ns = clock_now_ns();
    if (reply->superseded) {
        *ret_step_down = true;
        return STATUS_OK;
    }
    if (!c->taken) { /* the first reply is to the terms */
        c->taken = true;
        (void)pthread_cond_broadcast(&c->changed);
        return STATUS_OK;
    }
    if (reply->sequence == 0) /* to a beat */
        return STATUS_OK;
    if (reply->partition == RECORD_MEMBERSHIP_PARTITION)
        return take_members(c, reply->sequence, err);
    if (reply->partition >= map->length ||
        map->partitions[reply->partition].server != c->shard->config.index)
        return error_set(err, STATUS_PROTOCOL,
                         "it acknowledges partition %" PRIu32 ", which is not held here",
                         reply->partition);
    *ret_slot = replica_stream_slot_of(c, reply->partition);
    if (reply->sequence > c->slots[*ret_slot].put)
        return error_set(err, STATUS_PROTOCOL,
                         "it acknowledges record %" PRIu64 " of partition %" PRIu32
                         ", the newest is %" PRIu64,
                         reply->sequence, reply->partition, c->slots[*ret_slot].put);
    if (reply->sequence > c->slots[*ret_slot].acknowledged)
        c->slots[*ret_slot].acknowledged = reply->sequence;
    count_acknowledged(&c->counts, reply);
    return STATUS_OK;
}

static void on_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    struct replica_stream *c = user;
    struct record_reply reply;
    struct error err = {0};
    bool must_step_down = false;
    size_t size, slot = SIZE_MAX;
    const uint8_t *head;
    enum status status;

    if (!message)
        return; /* the status follows */
    head = rpc_message_head(message, &size);
    status = wire_unpack_record_reply(head, size, &reply, &err);
    (void)pthread_mutex_lock(&c->lock);
    if (status == STATUS_OK)
        status = take_reply(c, &reply, &must_step_down, &slot, &err);
    if (status != STATUS_OK)
        c->why = err;
    (void)pthread_mutex_unlock(&c->lock);
    if (status != STATUS_OK) {
        rpc_call_cancel(call);
        return;
    }
    if (must_step_down)
        replica_stream_step_down(c, reply.epoch);
    if (slot != SIZE_MAX)
        send_slot(c, slot);
    else if (reply.partition == RECORD_MEMBERSHIP_PARTITION)
        c->knows(c->owner);
    send_stuck(c);
    rpc_call_receive(call);
}

static void on_closed(struct rpc_call *call, const struct rpc_result *result, void *user)
{
    struct replica_stream *c = user;
    uint64_t epoch;

    (void)call;
    (void)pthread_mutex_lock(&c->lock);
    if (c->why.status == STATUS_OK)
        (void)error_set(&c->why, result->status == STATUS_OK ? STATUS_PEER_LOST : result->status,
                        "%s", result->status == STATUS_OK ? "it ended the stream" : result->text);
    c->ended = true;
    (void)pthread_cond_broadcast(&c->changed);
    if (give_up(c, &c->why))
        go_alone(c, &epoch);
    else
        (void)pthread_mutex_unlock(&c->lock);
}

const struct rpc_handler replica_stream_handler = {.message = on_message, .closed = on_closed};

void replica_stream_tick(struct replica_stream *c, int64_t now_ns)
{
    struct wire_record beat = {.kind = RECORD_HEARTBEAT};
    struct error why = {0};
    bool stopped, silent, due;
    uint64_t epoch;

    if (!c)
        return;
    (void)pthread_mutex_lock(&c->lock);
    /* Who did not run himself does not judge. */
    stopped = c->ticked_ns != 0 && c->silence_ns > 0 && now_ns - c->ticked_ns > c->silence_ns / 2;
    if (stopped)
        c->heard_ns = now_ns;
    c->ticked_ns = now_ns;
    due = c->beat_ns > 0 && !c->ended && now_ns - c->sent_ns >= c->beat_ns;
    silent = c->beat_ns > 0 && c->silence_ns > 0 && now_ns - c->heard_ns > c->silence_ns;
    if (due) {
        beat.epoch = c->epoch;
        (void)rpc_call_send(c->call, c->head, wire_pack_record(&beat, c->head), NULL);
        c->sent_ns = now_ns;
    }
    if (silent)
        (void)error_set(&why, STATUS_TIMEOUT, "nothing came for %.1f s",
                        (double)(now_ns - c->heard_ns) * 1e-9);
    if (silent && give_up(c, &why)) /* the stream stays: it may say that it has taken over */
        go_alone(c, &epoch);
    else
        (void)pthread_mutex_unlock(&c->lock);
    send_stuck(c);
    replica_stream_ask(c, now_ns);
}

void replica_stream_end(struct replica_stream *c)
{
    struct wire_record end = {.kind = RECORD_END};

    if (!c)
        return;
    (void)pthread_mutex_lock(&c->lock);
    if (!c->over && !c->ended) {
        end.epoch = c->epoch;
        (void)rpc_call_send(c->call, c->head, wire_pack_record(&end, c->head), NULL);
        rpc_call_send_done(c->call);
        c->end_sent = true;
    }
    c->over = true;
    (void)pthread_mutex_unlock(&c->lock);
}

void replica_stream_count(struct replica_stream *c, struct replica_stream_figures *ret)
{
    *ret = (struct replica_stream_figures){0};
    if (!c)
        return;
    (void)pthread_mutex_lock(&c->lock);
    *ret = c->counts;
    ret->is_primary = true;
    ret->role = c->succession.role;
    (void)pthread_mutex_unlock(&c->lock);
}

void replica_stream_cancel(struct replica_stream *c)
{
    if (!c)
        return;
    (void)pthread_mutex_lock(&c->lock);
    c->over = true;
    (void)pthread_mutex_unlock(&c->lock);
    if (c->call)
        rpc_call_cancel(c->call);
}
