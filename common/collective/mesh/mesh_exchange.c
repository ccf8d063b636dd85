/*
 * Exchanges: every member sends its part to every other; received parts are stored until the
 * exchange fetches them.  Parts of an exchange that failed stay until the mesh is closed, hence
 * fresh tags.
 */
#include "common/base/clock.h"
#include "common/base/condition.h"
#include "common/base/strbuf.h"
#include "common/collective/mesh/mesh_internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void mesh_wait(struct mesh *m, int64_t deadline_ns)
{
    struct timespec until = condition_until(deadline_ns);

    if (deadline_ns == INT64_MAX)
        (void)pthread_cond_wait(&m->changed, &m->lock);
    else
        (void)pthread_cond_timedwait(&m->changed, &m->lock, &until);
}

/* Take the part with this tag out of what a peer has sent. */
static struct mesh_stored *take_stored_item(struct mesh_peer *p, const char *tag)
{
    for (struct mesh_stored **at = &p->items; *at; at = &(*at)->next) {
        struct mesh_stored *found = *at;

        if (strcmp(found->item.tag, tag) != 0)
            continue;
        *at = found->next;
        p->item_count--;
        return found;
    }
    return NULL;
}

struct exchange {
    struct mesh *mesh;
    const unsigned *members;
    unsigned count;
    const char *tag;
    size_t size;
    unsigned char *all;
    const struct mesh_alarm *alarm; /* NULL: none */
    struct mesh_rank_set here;
    unsigned missing;
};

static void send_own_item(const struct exchange *e, const void *mine)
{
    struct mesh_message message = {.kind = MESH_ITEM};

    (void)snprintf(message.item.tag, sizeof(message.item.tag), "%s", e->tag);
    message.item.size = (uint16_t)e->size;
    if (e->size > 0)
        memcpy(message.item.bytes, mine, e->size);
    for (unsigned i = 0; i < e->count; i++)
        if (e->members[i] != e->mesh->rank)
            mesh_send(e->mesh, e->members[i], &message);
}

/* Copy what has come; an error when a part cannot come any more. */
static enum status collect_items(struct exchange *e, struct error *err)
{
    for (unsigned i = 0; i < e->count; i++) {
        unsigned rank = e->members[i];
        struct mesh_peer *p = &e->mesh->peers[rank];
        struct mesh_stored *stored;
        size_t size;

        if (mesh_rank_set_has(&e->here, rank))
            continue;
        stored = take_stored_item(p, e->tag);
        if (!stored && p->state != MESH_PEER_UP)
            return error_set(err, STATUS_PEER_LOST, "rank %u is lost: %s", rank, p->how);
        if (!stored)
            continue;
        size = stored->item.size;
        if (size == e->size && size > 0)
            memcpy(e->all + i * e->size, stored->item.bytes, size);
        free(stored);
        if (size != e->size)
            return error_set(err, STATUS_MISMATCH, "rank %u gave %zu bytes for '%s', not %zu", rank,
                             size, e->tag, e->size);
        mesh_rank_set_add(&e->here, rank);
        e->missing--;
    }
    if (e->missing > 0 && e->alarm && atomic_load(&e->alarm->raised))
        return mesh_alarm_error(e->alarm, err);
    return STATUS_OK;
}

static enum status exchange_timed_out(const struct exchange *e, struct error *err)
{
    struct strbuf missing = STRBUF_INIT;

    for (unsigned i = 0; i < e->count; i++)
        if (!mesh_rank_set_has(&e->here, e->members[i]))
            strbuf_addf(&missing, "%s%u", missing.length > 0 ? ", " : "", e->members[i]);
    (void)error_set(err, STATUS_TIMEOUT, "rank%s %s did not come to '%s' in time",
                    e->missing == 1 ? "" : "s", missing.text, e->tag);
    strbuf_release(&missing);
    return STATUS_TIMEOUT;
}

/* Keep this rank's own part, send it to the others, and wait for theirs. */
static enum status run_exchange(struct exchange *e, const void *mine, int64_t deadline_ns,
                                struct error *err)
{
    enum status status;

    assert(e->size <= MESH_EXCHANGE_MAX);
    if (strlen(e->tag) >= MESH_TAG_MAX)
        return error_set(err, STATUS_INVALID, "the tag '%s' is longer than %d characters", e->tag,
                         MESH_TAG_MAX - 1);
    (void)pthread_mutex_lock(&e->mesh->lock);
    for (unsigned i = 0; i < e->count; i++) {
        if (e->members[i] != e->mesh->rank)
            continue;
        if (e->size > 0)
            memmove(e->all + i * e->size, mine, e->size);
        mesh_rank_set_add(&e->here, e->mesh->rank);
        e->missing--;
    }
    send_own_item(e, mine);
    status = collect_items(e, err);
    while (status == STATUS_OK && e->missing > 0) {
        if (clock_now_ns() >= deadline_ns) {
            status = exchange_timed_out(e, err);
            break;
        }
        mesh_wait(e->mesh, deadline_ns);
        status = collect_items(e, err);
    }
    (void)pthread_mutex_unlock(&e->mesh->lock);
    return status;
}

enum status mesh_exchange(struct mesh *m, const unsigned *members, unsigned count, const char *tag,
                          const void *mine, size_t size, void *all, const struct mesh_alarm *alarm,
                          int64_t deadline_ns, struct error *err)
{
    struct exchange e = {.mesh = m,
                         .members = members,
                         .count = count,
                         .tag = tag,
                         .size = size,
                         .all = all,
                         .alarm = alarm,
                         .missing = count};

    return run_exchange(&e, mine, deadline_ns, err);
}

enum status mesh_gather(struct mesh *m, const unsigned *members, unsigned count, const char *tag,
                        int64_t deadline_ns, unsigned char *ret_here, struct error *err)
{
    struct exchange e = {
        .mesh = m, .members = members, .count = count, .tag = tag, .missing = count};
    enum status status = run_exchange(&e, NULL, deadline_ns, err);

    for (unsigned i = 0; i < count; i++)
        ret_here[i] = mesh_rank_set_has(&e.here, members[i]);
    return status;
}
