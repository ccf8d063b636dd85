/*
 * Wake-ups: of the mesh's thread, of operations whose group watches a rank, and of waits for an
 * event of any kind.
 */
#include "common/collective/mesh/mesh_internal.h"

#include <unistd.h>

void mesh_wake(struct mesh *m)
{
    uint64_t one = 1;

    if (m->has_thread)
        (void)!write(m->wake_fd, &one, sizeof(one));
}

void mesh_raise(struct mesh_group_state *state)
{
    uint64_t one = 1;

    if (state->count == 0 || atomic_exchange(&state->alarm.raised, true))
        return;
    (void)!write(state->alarm.fd, &one, sizeof(one));
}

void mesh_raise_member(struct mesh *m, unsigned rank)
{
    for (size_t i = 0; i < MESH_GROUPS_MAX; i++)
        if (m->groups[i].used && mesh_rank_set_has(&m->groups[i].members, rank))
            mesh_raise(&m->groups[i]);
}

void mesh_note_event(struct mesh *m)
{
    m->event_count++;
    (void)pthread_cond_broadcast(&m->changed);
}
