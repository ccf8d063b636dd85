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

void mesh_raise(struct mesh_group_state *state, int lost_rank)
{
    uint64_t one = 1;

    if (state->count == 0 || atomic_load(&state->alarm.raised))
        return;
    atomic_store(&state->alarm.lost_rank, lost_rank);
    atomic_store(&state->alarm.raised, true);
    (void)!write(state->alarm.fd, &one, sizeof(one));
}

enum status mesh_alarm_error(const struct mesh_alarm *alarm, struct error *err)
{
    int rank = atomic_load(&alarm->lost_rank);

    if (rank < 0)
        return error_set(err, STATUS_PEER_LOST, "the group failed meanwhile");
    return error_set(err, STATUS_PEER_LOST, "rank %d was lost meanwhile", rank);
}

void mesh_raise_member(struct mesh *m, unsigned rank)
{
    for (size_t i = 0; i < MESH_GROUPS_MAX; i++)
        if (m->groups[i].used && mesh_rank_set_has(&m->groups[i].members, rank))
            mesh_raise(&m->groups[i], (int)rank);
}

void mesh_note_event(struct mesh *m)
{
    m->event_count++;
    (void)pthread_cond_broadcast(&m->changed);
}
