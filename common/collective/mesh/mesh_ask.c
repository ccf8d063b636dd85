/*
 * Questions.  All ranks are asked at once; each answer names the question that it answers, so a
 * late answer to an earlier one, or one to another thread's, is not taken for it.  Whoever is lost
 * does not keep the asker waiting.
 */
#include "common/base/clock.h"
#include "common/collective/mesh/mesh_internal.h"

/* A rank's answer to a question; NULL: none has come. */
static const struct mesh_answer *find_answer(const struct mesh_peer *p, uint64_t question)
{
    const struct mesh_answer *a = &p->answers[question % MESH_ANSWERS];

    return a->question == question ? a : NULL;
}

/* Has this rank nothing more to say about the question? */
static bool is_settled(const struct mesh *m, unsigned rank, uint64_t question)
{
    const struct mesh_peer *p = &m->peers[rank];

    return rank == m->rank || p->state != MESH_PEER_UP || find_answer(p, question);
}

static void fill_view(struct mesh *m, unsigned rank, uint64_t group, uint64_t question,
                      struct mesh_view *ret)
{
    const struct mesh_peer *p = &m->peers[rank];
    const struct mesh_slot *slot = mesh_find_slot(m, group);
    const struct mesh_answer *a = find_answer(p, question);

    *ret = (struct mesh_view){.fault = p->state == MESH_PEER_UP ? FAULT_NONE : p->fault};
    if (rank == m->rank) {
        ret->answered = slot != NULL;
        if (slot)
            mesh_read_status(slot, &ret->status);
        if (slot && slot->left)
            ret->status.phase = MESH_LEFT;
        return;
    }
    ret->silent_seconds = (double)(clock_now_ns() - p->heard_ns) * 1e-9;
    ret->answered = a != NULL;
    if (a && a->known && a->status.group == group)
        ret->status = a->status;
}

void mesh_ask_all(struct mesh *m, const unsigned *ranks, unsigned count, uint64_t group,
                  int64_t deadline_ns, struct mesh_view *ret)
{
    struct mesh_message message = {.kind = MESH_ASK, .group = group};
    bool settled = false;

    (void)pthread_mutex_lock(&m->lock);
    message.number = ++m->questions;
    for (unsigned i = 0; i < count; i++)
        if (ranks[i] != m->rank && m->peers[ranks[i]].state == MESH_PEER_UP)
            mesh_send(m, ranks[i], &message);
    for (;;) {
        settled = true;
        for (unsigned i = 0; i < count; i++)
            settled = settled && is_settled(m, ranks[i], message.number);
        if (settled || clock_now_ns() >= deadline_ns)
            break;
        mesh_wait(m, deadline_ns);
    }
    for (unsigned i = 0; i < count; i++)
        fill_view(m, ranks[i], group, message.number, &ret[i]);
    (void)pthread_mutex_unlock(&m->lock);
}

void mesh_ask(struct mesh *m, unsigned rank, uint64_t group, int64_t deadline_ns,
              struct mesh_view *ret)
{
    mesh_ask_all(m, &rank, 1, group, deadline_ns, ret);
}
