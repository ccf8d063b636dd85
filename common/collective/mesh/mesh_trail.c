/*
 * Trails.  With every heartbeat a rank sends the members of a group a sequence number and the hash
 * of its trail there; a member that has passed this sequence compares.  Of two ranks one is ahead,
 * so one of them can.  Hashes that differ once differ for ever: a missed message only delays the
 * detection.
 *
 * A rank that leaves a group sends its last hash along; its state keeps the trail, for queries.
 */
#include "common/base/memory.h"
#include "common/collective/mesh/mesh_internal.h"

#include <assert.h>
#include <stdlib.h>

/* The newest with a trail; NULL: none. */
static struct mesh_group_state *find_group_with_trail(struct mesh *m, uint64_t group,
                                                      uint32_t generation)
{
    struct mesh_group_state *found = NULL;

    for (size_t i = 0; i < MESH_GROUPS_MAX; i++) {
        struct mesh_group_state *state = &m->groups[i];

        if (state->used && state->trail && state->group == group &&
            state->generation == generation && (!found || state->added > found->added))
            found = state;
    }
    return found;
}

/* ---- this rank's trail ---- */

enum status mesh_keep_trail(struct mesh *m, size_t index, struct error *err)
{
    struct trail *trail;
    enum status status = mem_calloc(1, sizeof(*trail), "a trail of operations", &trail, err);

    if (status != STATUS_OK)
        return status;
    (void)pthread_mutex_lock(&m->lock);
    assert(!m->groups[index].trail && m->groups[index].count > 0);
    m->groups[index].trail = trail;
    (void)pthread_mutex_unlock(&m->lock);
    return STATUS_OK;
}

void mesh_note(struct mesh *m, size_t index, const struct signature *signature)
{
    trail_add(m->groups[index].trail, signature);
}

bool mesh_own_hash(struct mesh *m, size_t index, uint64_t sequence, uint64_t *ret_hash)
{
    return trail_hash(m->groups[index].trail, sequence, ret_hash);
}

uint64_t mesh_own_newest(struct mesh *m, size_t index)
{
    return trail_newest(m->groups[index].trail);
}

static void send_trail(struct mesh *m, struct mesh_group_state *state)
{
    struct mesh_message message = {
        .kind = MESH_TRAIL, .group = state->group, .generation = state->generation};

    message.number = trail_checkpoint_sequence(state->trail, state->heartbeat_sequence);
    state->heartbeat_sequence = trail_newest(state->trail);
    if (message.number == state->sent_sequence ||
        !trail_hash(state->trail, message.number, &message.hash))
        return;
    state->sent_sequence = message.number;
    for (unsigned i = 0; i < state->count; i++)
        if (state->order[i] != m->rank && m->peers[state->order[i]].state == MESH_PEER_UP)
            mesh_send(m, state->order[i], &message);
}

void mesh_send_trails(struct mesh *m)
{
    for (size_t i = 0; i < MESH_GROUPS_MAX; i++)
        if (m->groups[i].used && m->groups[i].trail && !m->groups[i].left)
            send_trail(m, &m->groups[i]);
}

void mesh_read_trail(struct mesh *m, uint64_t group, uint32_t generation, uint64_t trail_sequence,
                     struct mesh_trail *ret)
{
    const struct mesh_group_state *state = find_group_with_trail(m, group, generation);

    *ret = (struct mesh_trail){0};
    if (!state)
        return;
    ret->kept = trail_find(state->trail, trail_sequence, &ret->signature, &ret->hash);
    ret->newest = trail_newest(state->trail);
    ret->oldest = trail_oldest(state->trail);
    ret->signature.group = group;
    ret->signature.generation = generation;
}

/* ---- the others' trails ---- */

void mesh_receive_trail(struct mesh *m, unsigned rank, const struct mesh_message *message)
{
    struct mesh_group_state *state = find_group_with_trail(m, message->group, message->generation);
    uint64_t mine;

    if (!state || state->left || state->differs || !mesh_rank_set_has(&state->members, rank) ||
        !trail_hash(state->trail, message->number, &mine) || mine == message->hash)
        return;
    state->differs = true;
    state->other_rank = rank;
    state->other_sequence = message->number;
    mesh_raise(state, -1);
    mesh_note_event(m);
}

bool mesh_find_difference(struct mesh *m, size_t index, unsigned *ret_rank, uint64_t *ret_sequence)
{
    const struct mesh_group_state *state = &m->groups[index];
    bool differs;

    (void)pthread_mutex_lock(&m->lock);
    differs = state->differs;
    *ret_rank = state->other_rank;
    *ret_sequence = state->other_sequence;
    (void)pthread_mutex_unlock(&m->lock);
    return differs;
}
