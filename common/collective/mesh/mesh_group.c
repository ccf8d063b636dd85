/*
 * The groups of this rank.  A slot's status is a sequence lock: its writer, the caller of the
 * group, stores words and bumps a version before and after; readers try again when it moved.
 *
 * A slot and its trail stay when its group is closed, so that peers who ask learn that this rank
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

/* ---- slots ---- */

void mesh_slot_release(struct mesh_slot *slot)
{
    if (!slot->used)
        return;
    if (slot->alarm.fd >= 0)
        (void)close(slot->alarm.fd);
    free(slot->order);
    slot->alarm.fd = -1;
    slot->order = NULL;
    slot->count = 0;
}

struct mesh_slot *mesh_find_slot(struct mesh *m, uint64_t group)
{
    struct mesh_slot *found = NULL;

    for (size_t i = 0; i < MESH_GROUPS_MAX; i++) {
        struct mesh_slot *slot = &m->slots[i];

        if (slot->used && slot->group == group && (!found || slot->added > found->added))
            found = slot;
    }
    return found;
}

/* A free one, or the one that was left the longest ago. */
static struct mesh_slot *choose_slot(struct mesh *m)
{
    struct mesh_slot *oldest = NULL;

    for (size_t i = 0; i < MESH_GROUPS_MAX; i++) {
        struct mesh_slot *slot = &m->slots[i];

        if (!slot->used)
            return slot;
        if (slot->left && (!oldest || slot->added < oldest->added))
            oldest = slot;
    }
    return oldest;
}

enum status mesh_add_group(struct mesh *m, uint64_t group, size_t *ret_slot, struct error *err)
{
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct mesh_slot *slot;

    if (fd < 0)
        return error_set_errno(err, errno, "cannot make an alarm");
    (void)pthread_mutex_lock(&m->lock);
    slot = choose_slot(m);
    if (slot) {
        mesh_slot_release(slot);
        free(slot->trail);
        memset(slot, 0, sizeof(*slot));
        slot->used = true;
        slot->group = group;
        slot->added = ++m->slots_added;
        slot->alarm.fd = fd;
        *ret_slot = (size_t)(slot - m->slots);
    }
    (void)pthread_mutex_unlock(&m->lock);
    if (slot)
        return STATUS_OK;
    (void)close(fd);
    return error_set(err, STATUS_INVALID, "more than %d groups are open", MESH_GROUPS_MAX);
}

void mesh_remove_group(struct mesh *m, size_t index)
{
    struct mesh_slot *slot = &m->slots[index];
    struct mesh_message leave = {.kind = MESH_LEAVE, .group = slot->group};

    (void)pthread_mutex_lock(&m->lock);
    leave.generation = slot->generation;
    leave.number = atomic_load_explicit(&slot->last_sequence, memory_order_relaxed);
    if (slot->trail)
        (void)trail_hash(slot->trail, leave.number, &leave.hash);
    for (unsigned i = 0; i < slot->count; i++)
        mesh_send(m, slot->order[i], &leave);
    mesh_slot_release(slot);
    slot->left = true;
    (void)pthread_mutex_unlock(&m->lock);
}

/* ---- what this rank tells ---- */

void mesh_publish(struct mesh *m, size_t index, const struct mesh_status *status)
{
    struct mesh_slot *slot = &m->slots[index];
    unsigned version = atomic_load_explicit(&slot->version, memory_order_relaxed);
    uint64_t words[MESH_STATUS_WORDS];

    memcpy(words, status, sizeof(words));
    atomic_store_explicit(&slot->version, version + 1, memory_order_relaxed);
    for (size_t i = 0; i < MESH_STATUS_WORDS; i++) /* none before the odd version */
        atomic_store_explicit(&slot->words[i], words[i], memory_order_release);
    atomic_store_explicit(&slot->done_bytes, status->done_bytes, memory_order_relaxed);
    if (status->signature.call != 0 && !collective_call_is_pair(status->signature.call))
        atomic_store_explicit(&slot->last_sequence, status->signature.sequence,
                              memory_order_relaxed);
    atomic_store_explicit(&slot->version, version + 2, memory_order_release);
}

void mesh_progress(struct mesh *m, size_t index, uint64_t done_bytes)
{
    atomic_store_explicit(&m->slots[index].done_bytes, done_bytes, memory_order_relaxed);
}

void mesh_read_status(const struct mesh_slot *slot, struct mesh_status *ret)
{
    uint64_t words[MESH_STATUS_WORDS];
    unsigned before;
    unsigned after;

    do {
        before = atomic_load_explicit(&slot->version, memory_order_acquire);
        for (size_t i = 0; i < MESH_STATUS_WORDS; i++)
            words[i] = atomic_load_explicit(&slot->words[i], memory_order_acquire);
        after = atomic_load_explicit(&slot->version, memory_order_relaxed);
    } while (before != after || (before & 1) != 0);
    memcpy(ret, words, sizeof(words));
    ret->group = slot->group;
    ret->done_bytes = atomic_load_explicit(&slot->done_bytes, memory_order_relaxed);
}

/* ---- what it watches ---- */

struct mesh_alarm *mesh_watch(struct mesh *m, size_t index, uint32_t generation,
                              const unsigned *members, unsigned count)
{
    struct mesh_slot *slot = &m->slots[index];
    unsigned *order = calloc(count, sizeof(*order));

    if (!order)
        return NULL;
    (void)pthread_mutex_lock(&m->lock);
    assert(slot->count == 0);
    memcpy(order, members, count * sizeof(*order));
    slot->order = order;
    slot->count = count;
    slot->generation = generation;
    for (unsigned i = 0; i < count; i++)
        mesh_rank_set_add(&slot->members, members[i]);
    for (unsigned i = 0; i < count; i++)
        if (m->peers[members[i]].state == MESH_PEER_LOST)
            mesh_raise(slot);
    if (mesh_has_settled(m, slot->group, generation)) /* before this rank came to the group */
        mesh_raise(slot);
    (void)pthread_mutex_unlock(&m->lock);
    return &slot->alarm;
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

/* Does the operation that runs in this group need a rank that has left it?  A send or receive may
 * still find what it needs on the way, so it must also have stood still for a while. */
static bool waits_for_leaver(const struct mesh *m, const struct mesh_slot *slot,
                             const struct mesh_leave *leave, int64_t now_ns)
{
    struct mesh_status status;

    if (leave->group != slot->group || leave->generation != slot->generation ||
        !mesh_rank_set_has(&slot->members, leave->rank))
        return false;
    mesh_read_status(slot, &status);
    if (status.phase != MESH_RUNNING)
        return false;
    if (!collective_call_is_pair(status.signature.call))
        return status.signature.sequence > leave->sequence;
    return status.signature.root < slot->count &&
           slot->order[status.signature.root] == leave->rank &&
           now_ns - status.since_ns > m->heartbeat_timeout_ms * 1000000 &&
           now_ns - leave->at_ns > m->heartbeat_timeout_ms * 1000000;
}

void mesh_tend_groups(struct mesh *m, int64_t now_ns)
{
    const size_t length = sizeof(m->leaves) / sizeof(m->leaves[0]);
    size_t count = m->leave_count < length ? m->leave_count : length;

    for (size_t i = 0; i < MESH_GROUPS_MAX; i++) {
        struct mesh_slot *slot = &m->slots[i];

        if (!slot->used || slot->left || slot->count == 0 ||
            atomic_load_explicit(&slot->alarm.raised, memory_order_relaxed))
            continue;
        for (size_t k = 0; k < count; k++)
            if (waits_for_leaver(m, slot, &m->leaves[k], now_ns)) {
                mesh_raise(slot);
                break;
            }
    }
}
