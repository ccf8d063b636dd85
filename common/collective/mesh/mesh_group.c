/*
 * The groups of this rank.  A group's status is a sequence lock: its writer, the caller of the
 * group, stores words and bumps a version before and after; readers try again when it moved.
 *
 * The state and trail of a group stay when it is closed, so that peers can query that this rank
 * has left; the oldest of those makes room for new groups.
 */
#include "common/base/clock.h"
#include "common/base/memory.h"
#include "common/collective/mesh/mesh_internal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

_Static_assert(sizeof(struct mesh_status) == MESH_STATUS_WORDS * sizeof(uint64_t),
               "a status is a whole number of words");

/* ---- states ---- */

void mesh_group_state_release(struct mesh_group_state *state)
{
    if (!state->used)
        return;
    if (state->alarm.fd >= 0)
        (void)close(state->alarm.fd);
    free(state->order);
    state->alarm.fd = -1;
    state->order = NULL;
    state->count = 0;
}

struct mesh_group_state *mesh_find_group_state(struct mesh *m, uint64_t group)
{
    struct mesh_group_state *found = NULL;

    for (size_t i = 0; i < MESH_GROUPS_MAX; i++) {
        struct mesh_group_state *state = &m->groups[i];

        if (state->used && state->group == group && (!found || state->added > found->added))
            found = state;
    }
    return found;
}

/* A free entry, or the oldest one of a group that this rank left. */
static struct mesh_group_state *choose_group_state(struct mesh *m)
{
    struct mesh_group_state *oldest = NULL;

    for (size_t i = 0; i < MESH_GROUPS_MAX; i++) {
        struct mesh_group_state *state = &m->groups[i];

        if (!state->used)
            return state;
        if (state->left && (!oldest || state->added < oldest->added))
            oldest = state;
    }
    return oldest;
}

enum status mesh_add_group(struct mesh *m, uint64_t group, size_t *ret_index, struct error *err)
{
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct mesh_group_state *state;

    if (fd < 0)
        return error_set_errno(err, errno, "cannot make an alarm");
    (void)pthread_mutex_lock(&m->lock);
    state = choose_group_state(m);
    if (state) {
        mesh_group_state_release(state);
        free(state->trail);
        memset(state, 0, sizeof(*state));
        state->used = true;
        state->group = group;
        state->added = ++m->groups_added;
        state->alarm.fd = fd;
        *ret_index = (size_t)(state - m->groups);
    }
    (void)pthread_mutex_unlock(&m->lock);
    if (state)
        return STATUS_OK;
    (void)close(fd);
    return error_set(err, STATUS_INVALID, "more than %d groups are open", MESH_GROUPS_MAX);
}

void mesh_remove_group(struct mesh *m, size_t index)
{
    struct mesh_group_state *state = &m->groups[index];
    struct mesh_message leave = {.kind = MESH_LEAVE, .group = state->group};

    (void)pthread_mutex_lock(&m->lock);
    leave.generation = state->generation;
    leave.number = atomic_load_explicit(&state->last_sequence, memory_order_relaxed);
    if (state->trail)
        (void)trail_hash(state->trail, leave.number, &leave.hash);
    for (unsigned i = 0; i < state->count; i++)
        mesh_send(m, state->order[i], &leave);
    mesh_group_state_release(state);
    state->left = true;
    (void)pthread_mutex_unlock(&m->lock);
}

/* ---- publishing ---- */

void mesh_publish(struct mesh *m, size_t index, const struct mesh_status *status)
{
    struct mesh_group_state *state = &m->groups[index];
    unsigned version = atomic_load_explicit(&state->version, memory_order_relaxed);
    uint64_t words[MESH_STATUS_WORDS];

    memcpy(words, status, sizeof(words));
    atomic_store_explicit(&state->version, version + 1, memory_order_relaxed);
    for (size_t i = 0; i < MESH_STATUS_WORDS; i++) /* none before the odd version */
        atomic_store_explicit(&state->words[i], words[i], memory_order_release);
    atomic_store_explicit(&state->done_bytes, status->done_bytes, memory_order_relaxed);
    if (status->signature.call != 0 && !collective_call_is_pair(status->signature.call))
        atomic_store_explicit(&state->last_sequence, status->signature.sequence,
                              memory_order_relaxed);
    atomic_store_explicit(&state->version, version + 2, memory_order_release);
}

void mesh_progress(struct mesh *m, size_t index, uint64_t done_bytes)
{
    atomic_store_explicit(&m->groups[index].done_bytes, done_bytes, memory_order_relaxed);
}

void mesh_read_status(const struct mesh_group_state *state, struct mesh_status *ret)
{
    uint64_t words[MESH_STATUS_WORDS];
    unsigned before;
    unsigned after;

    do {
        before = atomic_load_explicit(&state->version, memory_order_acquire);
        for (size_t i = 0; i < MESH_STATUS_WORDS; i++)
            words[i] = atomic_load_explicit(&state->words[i], memory_order_acquire);
        after = atomic_load_explicit(&state->version, memory_order_relaxed);
    } while (before != after || (before & 1) != 0);
    memcpy(ret, words, sizeof(words));
    ret->group = state->group;
    ret->done_bytes = atomic_load_explicit(&state->done_bytes, memory_order_relaxed);
}

/* ---- alarms ---- */

struct mesh_alarm *mesh_watch(struct mesh *m, size_t index, uint32_t generation,
                              const unsigned *members, unsigned count)
{
    struct mesh_group_state *state = &m->groups[index];
    unsigned *order = calloc(count, sizeof(*order));

    if (!order)
        return NULL;
    (void)pthread_mutex_lock(&m->lock);
    assert(state->count == 0);
    memcpy(order, members, count * sizeof(*order));
    state->order = order;
    state->count = count;
    state->generation = generation;
    for (unsigned i = 0; i < count; i++)
        mesh_rank_set_add(&state->members, members[i]);
    for (unsigned i = 0; i < count; i++)
        if (m->peers[members[i]].state == MESH_PEER_LOST)
            mesh_raise(state, (int)members[i]);
    if (mesh_has_settled(m, state->group, generation)) /* before this rank opened the group */
        mesh_raise(state, -1);
    (void)pthread_mutex_unlock(&m->lock);
    return &state->alarm;
}

/* ---- members that left too early ---- */

bool mesh_left(struct mesh *m, unsigned rank, uint64_t group, uint32_t generation,
               uint64_t *ret_sequence, uint64_t *ret_hash)
{
    const size_t length = sizeof(m->leaves) / sizeof(m->leaves[0]);
    size_t count;
    bool found = false;

    (void)pthread_mutex_lock(&m->lock);
    count = m->leave_count < length ? m->leave_count : length;
    for (size_t k = 0; k < count && !found; k++) {
        const struct mesh_leave *leave = &m->leaves[k];

        found = leave->rank == rank && leave->group == group && leave->generation == generation;
        if (found)
            *ret_sequence = leave->sequence;
        if (found && ret_hash)
            *ret_hash = leave->hash;
    }
    (void)pthread_mutex_unlock(&m->lock);
    return found;
}

/* Does the operation that runs in this group need a rank that has left it?  The data of a
 * send or receive may still be in flight, so it must also have made no progress for a while. */
static bool waits_for_leaver(const struct mesh *m, const struct mesh_group_state *state,
                             const struct mesh_leave *leave, int64_t now_ns)
{
    struct mesh_status status;

    if (leave->group != state->group || leave->generation != state->generation ||
        !mesh_rank_set_has(&state->members, leave->rank))
        return false;
    mesh_read_status(state, &status);
    if (status.phase != MESH_RUNNING)
        return false;
    if (!collective_call_is_pair(status.signature.call))
        return status.signature.sequence > leave->sequence;
    return status.signature.root < state->count &&
           state->order[status.signature.root] == leave->rank &&
           now_ns - status.since_ns > m->heartbeat_timeout_ms * 1000000 &&
           now_ns - leave->at_ns > m->heartbeat_timeout_ms * 1000000;
}

void mesh_monitor_groups(struct mesh *m, int64_t now_ns)
{
    const size_t length = sizeof(m->leaves) / sizeof(m->leaves[0]);
    size_t count = m->leave_count < length ? m->leave_count : length;

    for (size_t i = 0; i < MESH_GROUPS_MAX; i++) {
        struct mesh_group_state *state = &m->groups[i];

        if (!state->used || state->left || state->count == 0 ||
            atomic_load_explicit(&state->alarm.raised, memory_order_relaxed))
            continue;
        for (size_t k = 0; k < count; k++)
            if (waits_for_leaver(m, state, &m->leaves[k], now_ns)) {
                mesh_raise(state, (int)m->leaves[k].rank);
                break;
            }
    }
}
