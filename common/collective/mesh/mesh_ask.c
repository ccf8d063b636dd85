/*
 * Queries about groups.  All ranks are asked at once.  Each reply carries the number of its
 * question, so that a late reply, or one to another thread's question, is not mistaken for it.  A
 * lost rank is not waited for.
 */
#include "common/base/clock.h"
#include "common/collective/mesh/mesh_internal.h"

static bool has_all_replies(const struct mesh *m, const struct mesh_question *q)
{
    for (unsigned i = 0; i < q->count; i++)
        if (q->ranks[i] != m->rank && !q->views[i].replied &&
            m->peers[q->ranks[i]].state == MESH_PEER_UP)
            return false;
    return true;
}

static void fill_own_view(struct mesh *m, const struct mesh_question *q, struct mesh_view *ret)
{
    const struct mesh_group_state *state = mesh_find_group_state(m, q->group);

    ret->replied = state != NULL;
    if (state)
        mesh_read_status(state, &ret->status);
    if (state && state->left)
        ret->status.phase = MESH_LEFT;
    if (q->trail_sequence > 0)
        mesh_read_trail(m, q->group, q->generation, q->trail_sequence, &ret->trail);
}

static void send_question(struct mesh *m, struct mesh_question *q)
{
    struct mesh_message message = {.kind = MESH_ASK,
                                   .group = q->group,
                                   .generation = q->generation,
                                   .trail_sequence = q->trail_sequence};

    q->number = message.number = ++m->question_count;
    q->next = m->questions;
    m->questions = q;
    for (unsigned i = 0; i < q->count; i++) {
        q->views[i] = (struct mesh_view){.fault = FAULT_NONE};
        if (q->ranks[i] != m->rank && m->peers[q->ranks[i]].state == MESH_PEER_UP)
            mesh_send(m, q->ranks[i], &message);
    }
}

static void remove_question(struct mesh *m, const struct mesh_question *q)
{
    struct mesh_question **at = &m->questions;

    while (*at != q)
        at = &(*at)->next;
    *at = q->next;
}

static void ask_and_wait(struct mesh *m, struct mesh_question *q, int64_t deadline_ns)
{
    (void)pthread_mutex_lock(&m->lock);
    send_question(m, q);
    while (!has_all_replies(m, q) && clock_now_ns() < deadline_ns)
        mesh_wait(m, deadline_ns);
    remove_question(m, q);
    for (unsigned i = 0; i < q->count; i++) {
        const struct mesh_peer *p = &m->peers[q->ranks[i]];
        struct mesh_view *view = &q->views[i];

        view->fault = p->state == MESH_PEER_UP ? FAULT_NONE : p->fault;
        if (q->ranks[i] == m->rank)
            fill_own_view(m, q, view);
        else
            view->silent_seconds = (double)(clock_now_ns() - p->heard_ns) * 1e-9;
    }
    (void)pthread_mutex_unlock(&m->lock);
}

void mesh_ask_all(struct mesh *m, const unsigned *ranks, unsigned count, uint64_t group,
                  int64_t deadline_ns, struct mesh_view *ret)
{
    struct mesh_question q = {.group = group, .ranks = ranks, .count = count, .views = ret};

    ask_and_wait(m, &q, deadline_ns);
}

void mesh_ask(struct mesh *m, unsigned rank, uint64_t group, int64_t deadline_ns,
              struct mesh_view *ret)
{
    mesh_ask_all(m, &rank, 1, group, deadline_ns, ret);
}

void mesh_ask_trail(struct mesh *m, const unsigned *ranks, unsigned count, uint64_t group,
                    uint32_t generation, uint64_t sequence, int64_t deadline_ns,
                    struct mesh_view *ret)
{
    struct mesh_question q = {.group = group,
                              .generation = generation,
                              .trail_sequence = sequence,
                              .ranks = ranks,
                              .count = count,
                              .views = ret};

    ask_and_wait(m, &q, deadline_ns);
}
