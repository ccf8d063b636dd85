/*
 * Trails.  With every heartbeat a rank tells the members of a group how far it has come there and
 * the hash of its trail at that place; a member that has passed the place compares.  Of two ranks
 * one is ahead, so one of them can.  What differs once differs for ever: a report that is missed
 * only delays.
 *
 * A rank that leaves a group sends its last hash along; its slot keeps the trail, for questions.
 */
#include "common/base/memory.h"
#include "common/collective/mesh/mesh_internal.h"

#include <assert.h>
#include <stdlib.h>

/* The newest with a trail; NULL: none. */
static struct mesh_slot *find_slot(struct mesh *m, uint64_t group, uint32_t generation)
{
    struct mesh_slot *found = NULL;

    for (size_t i = 0; i < MESH_GROUPS_MAX; i++) {
        struct mesh_slot *slot = &m->slots[i];

        if (slot->used && slot->trail && slot->group == group && slot->generation == generation &&
            (!found || slot->added > found->added))
            found = slot;
    }
    return found;
}

/* ---- what this rank tells ---- */

enum status mesh_keep_trail(struct mesh *m, size_t index, struct error *err)
{
    struct trail *trail;
    enum status status = mem_calloc(1, sizeof(*trail), "a trail of operations", &trail, err);

    if (status != STATUS_OK)
        return status;
    (void)pthread_mutex_lock(&m->lock);
    assert(!m->slots[index].trail && m->slots[index].count > 0);
    m->slots[index].trail = trail;
    (void)pthread_mutex_unlock(&m->lock);
    return STATUS_OK;
}

void mesh_note(struct mesh *m, size_t index, const struct signature *signature)
{
    trail_add(m->slots[index].trail, signature);
}

bool mesh_own_hash(struct mesh *m, size_t index, uint64_t sequence, uint64_t *ret_hash)
{
    return trail_hash(m->slots[index].trail, sequence, ret_hash);
}

uint64_t mesh_own_newest(struct mesh *m, size_t index)
{
    return trail_newest(m->slots[index].trail);
}

static void tell_trail(struct mesh *m, struct mesh_slot *slot)
{
    struct mesh_message message = {
        .kind = MESH_TRAIL, .group = slot->group, .generation = slot->generation};

    message.number = trail_landmark(slot->trail, slot->beat);
    slot->beat = trail_newest(slot->trail);
    if (message.number == slot->told || !trail_hash(slot->trail, message.number, &message.hash))
        return;
    slot->told = message.number;
    for (unsigned i = 0; i < slot->count; i++)
        if (slot->order[i] != m->rank && m->peers[slot->order[i]].state == MESH_PEER_UP)
            mesh_send(m, slot->order[i], &message);
}

void mesh_tell_trails(struct mesh *m)
{
    for (size_t i = 0; i < MESH_GROUPS_MAX; i++)
        if (m->slots[i].used && m->slots[i].trail && !m->slots[i].left)
            tell_trail(m, &m->slots[i]);
}

void mesh_read_trail(struct mesh *m, uint64_t group, uint32_t generation, uint64_t place,
                     struct mesh_trail *ret)
{
    const struct mesh_slot *slot = find_slot(m, group, generation);

    *ret = (struct mesh_trail){0};
    if (!slot)
        return;
    ret->kept = trail_find(slot->trail, place, &ret->signature, &ret->hash);
    ret->newest = trail_newest(slot->trail);
    ret->oldest = trail_oldest(slot->trail);
    ret->signature.group = group;
    ret->signature.generation = generation;
}

/* ---- what the others tell ---- */

void mesh_receive_trail(struct mesh *m, unsigned rank, const struct mesh_message *message)
{
    struct mesh_slot *slot = find_slot(m, message->group, message->generation);
    uint64_t mine;

    if (!slot || slot->left || slot->differs || !mesh_rank_set_has(&slot->members, rank) ||
        !trail_hash(slot->trail, message->number, &mine) || mine == message->hash)
        return;
    slot->differs = true;
    slot->other_rank = rank;
    slot->other_sequence = message->number;
    mesh_raise(slot);
    mesh_note_event(m);
}

bool mesh_find_difference(struct mesh *m, size_t index, unsigned *ret_rank, uint64_t *ret_sequence)
{
    const struct mesh_slot *slot = &m->slots[index];
    bool differs;

    (void)pthread_mutex_lock(&m->lock);
    differs = slot->differs;
    *ret_rank = slot->other_rank;
    *ret_sequence = slot->other_sequence;
    (void)pthread_mutex_unlock(&m->lock);
    return differs;
}
