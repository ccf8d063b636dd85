/*
 * Verdicts.  Several ranks may reach different verdicts at the same time; all must end with one.  A
 * judge sends its verdict to all peers and waits until each has accepted; a rank that receives two
 * keeps that of the lowest judge and forwards it to the other judge.  A judge that has been
 * accepted by all declares its verdict settled: a lower judge's verdict would have arrived before
 * the last acceptance, because a connection keeps its order.
 *
 * Judges may die on the way, so a verdict that is not settled in time settles by itself
 * (UNSETTLED_NS).
 */
#include "common/base/clock.h"
#include "common/collective/mesh/mesh_internal.h"

#include <string.h>

#define UNSETTLED_NS ((int64_t)300 * 1000000)

static struct mesh_verdict_state *find_verdict_state(struct mesh *m, uint64_t group,
                                                     uint32_t generation)
{
    for (size_t i = 0; i < MESH_VERDICTS_MAX; i++) {
        struct mesh_verdict_state *held = &m->verdicts[i];

        if (held->used && held->verdict.group == group && held->verdict.generation == generation)
            return held;
    }
    return NULL;
}

/* A free entry, or that of the oldest verdict. */
static struct mesh_verdict_state *new_verdict_state(struct mesh *m)
{
    struct mesh_verdict_state *oldest = &m->verdicts[0];

    for (size_t i = 0; i < MESH_VERDICTS_MAX; i++) {
        if (!m->verdicts[i].used)
            return &m->verdicts[i];
        if (m->verdicts[i].since_ns < oldest->since_ns)
            oldest = &m->verdicts[i];
    }
    return oldest;
}

static void store_verdict(struct mesh_verdict_state *held, const struct mesh_verdict *verdict)
{
    *held =
        (struct mesh_verdict_state){.used = true, .verdict = *verdict, .since_ns = clock_now_ns()};
}

static void settle_verdict(struct mesh *m, struct mesh_verdict_state *held)
{
    if (held->settled)
        return;
    held->settled = true;
    for (size_t i = 0; i < MESH_GROUPS_MAX; i++)
        if (m->groups[i].used && m->groups[i].group == held->verdict.group &&
            m->groups[i].generation == held->verdict.generation)
            mesh_raise(&m->groups[i], -1);
    mesh_note_event(m);
}

static struct mesh_message make_verdict_message(enum mesh_kind kind,
                                                const struct mesh_verdict_state *held)
{
    struct mesh_message message = {.kind = kind,
                                   .group = held->verdict.group,
                                   .generation = held->verdict.generation,
                                   .number = held->verdict.judge};

    if (kind == MESH_VERDICT)
        message.verdict = held->verdict;
    return message;
}

static void send_verdict_message(struct mesh *m, unsigned rank, enum mesh_kind kind,
                                 const struct mesh_verdict_state *held)
{
    const struct mesh_message message = make_verdict_message(kind, held);

    if (rank != m->rank)
        mesh_send(m, rank, &message);
}

/* The judge: have all that live accepted? */
static void try_to_settle(struct mesh *m, struct mesh_verdict_state *held)
{
    if (held->settled || held->verdict.judge != m->rank)
        return;
    for (unsigned r = 0; r < m->world_size; r++)
        if (r != m->rank && m->peers[r].state == MESH_PEER_UP &&
            !mesh_rank_set_has(&held->accepted, r))
            return;
    settle_verdict(m, held);
    for (unsigned r = 0; r < m->world_size; r++)
        send_verdict_message(m, r, MESH_SETTLE, held);
}

void mesh_send_verdict(struct mesh *m, const struct mesh_verdict *verdict)
{
    struct mesh_verdict_state *held;

    (void)pthread_mutex_lock(&m->lock);
    if (!find_verdict_state(m, verdict->group, verdict->generation)) {
        held = new_verdict_state(m);
        store_verdict(held, verdict);
        held->verdict.judge = m->rank;
        for (unsigned r = 0; r < m->world_size;
             r++) /* also to ranks counted as lost: they may live */
            send_verdict_message(m, r, MESH_VERDICT, held);
        try_to_settle(m, held);
        mesh_wake(m); /* the thread has a new earliest deadline */
    }
    (void)pthread_mutex_unlock(&m->lock);
}

void mesh_receive_verdict(struct mesh *m, unsigned rank, const struct mesh_verdict *verdict)
{
    struct mesh_verdict_state *held = find_verdict_state(m, verdict->group, verdict->generation);

    if (verdict->judge >= m->world_size ||
        (verdict->culprit >= m->world_size && verdict->culprit != MESH_RANK_UNKNOWN))
        return;
    if (!held) {
        held = new_verdict_state(m);
        store_verdict(held, verdict);
    } else if (!held->settled && verdict->judge < held->verdict.judge)
        store_verdict(held, verdict);
    else if (held->verdict.judge < verdict->judge)
        send_verdict_message(m, rank, MESH_VERDICT, held); /* one with precedence */
    send_verdict_message(m, held->verdict.judge, MESH_ACCEPT, held);
}

void mesh_receive_accept(struct mesh *m, unsigned rank, const struct mesh_message *message)
{
    struct mesh_verdict_state *held = find_verdict_state(m, message->group, message->generation);

    if (!held || held->verdict.judge != m->rank || message->number != m->rank)
        return;
    mesh_rank_set_add(&held->accepted, rank);
    try_to_settle(m, held);
}

void mesh_receive_settle(struct mesh *m, const struct mesh_message *message)
{
    struct mesh_verdict_state *held = find_verdict_state(m, message->group, message->generation);

    if (held && held->verdict.judge == message->number)
        settle_verdict(m, held);
}

int64_t mesh_monitor_verdicts(struct mesh *m, int64_t now_ns)
{
    int64_t due_ns = INT64_MAX;

    for (size_t i = 0; i < MESH_VERDICTS_MAX; i++) {
        struct mesh_verdict_state *held = &m->verdicts[i];

        if (!held->used || held->settled)
            continue;
        try_to_settle(m, held); /* one that has not accepted may be lost now */
        if (now_ns - held->since_ns >= UNSETTLED_NS)
            settle_verdict(m, held);
        else if (held->since_ns + UNSETTLED_NS < due_ns)
            due_ns = held->since_ns + UNSETTLED_NS;
    }
    return due_ns;
}

bool mesh_has_settled(struct mesh *m, uint64_t group, uint32_t generation)
{
    const struct mesh_verdict_state *held = find_verdict_state(m, group, generation);

    return held && held->settled;
}

bool mesh_await_verdict(struct mesh *m, uint64_t group, uint32_t generation,
                        struct mesh_verdict *ret)
{
    const struct mesh_verdict_state *held;

    (void)pthread_mutex_lock(&m->lock);
    held = find_verdict_state(m, group, generation);
    while (held && !held->settled) { /* the thread settles every verdict in the end */
        mesh_wait(m, INT64_MAX);
        held = find_verdict_state(m, group, generation);
    }
    if (held)
        *ret = held->verdict;
    (void)pthread_mutex_unlock(&m->lock);
    return held != NULL;
}

uint64_t mesh_event_count(struct mesh *m)
{
    uint64_t count;

    (void)pthread_mutex_lock(&m->lock);
    count = m->event_count;
    (void)pthread_mutex_unlock(&m->lock);
    return count;
}

void mesh_await_event(struct mesh *m, uint64_t seen, int64_t deadline_ns)
{
    (void)pthread_mutex_lock(&m->lock);
    while (m->event_count == seen && clock_now_ns() < deadline_ns)
        mesh_wait(m, deadline_ns);
    (void)pthread_mutex_unlock(&m->lock);
}
