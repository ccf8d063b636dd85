/*
 * Ranks that ran other operations than the rest, found afterwards.  All members are queried about
 * one position of their trails, and by halving the first one at which their hashes differ is found:
 * the operation there is the one to name.  Trails keep the last thousand or so; a difference older
 * than that is reported as such.
 */
#include "common/base/clock.h"
#include "common/collective/verdict.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define REPLY_WAIT_MS 200
#define SEARCH_MS     5000 /* for all replies of a search: some members get little processor time */

static unsigned count_equal(const struct mesh_view *views, unsigned count, unsigned of)
{
    unsigned equal = 0;

    for (unsigned r = 0; r < count; r++)
        equal += views[r].trail.kept && views[r].trail.hash == views[of].trail.hash;
    return equal;
}

bool verdict_odd_trail(const struct mesh_view *views, unsigned count, unsigned *ret_culprit,
                       unsigned *ret_other)
{
    unsigned other = count;
    unsigned odd = count;

    for (unsigned r = 0; r < count; r++)
        if (views[r].trail.kept &&
            (other == count || count_equal(views, count, r) > count_equal(views, count, other)))
            other = r;
    for (unsigned r = 0; r < count; r++)
        if (views[r].trail.kept && views[r].trail.hash != views[other].trail.hash &&
            (odd == count || count_equal(views, count, r) < count_equal(views, count, odd)))
            odd = r;
    if (odd == count)
        return false;
    *ret_culprit = odd;
    *ret_other = other;
    return true;
}

static void ask_position(struct collective *g, uint64_t sequence, int64_t deadline_ns)
{
    mesh_ask_trail(g->mesh, g->members, g->world_size, g->id, g->generation, sequence, deadline_ns,
                   g->views);
}

/* Has every member that lives, and has not left, come to `sequence`? */
static bool ask_all(struct collective *g, const void *sequence)
{
    const uint64_t *position = sequence;

    ask_position(g, *position, clock_deadline_ns(REPLY_WAIT_MS));
    for (unsigned r = 0; r < g->world_size; r++) {
        const struct mesh_view *view = &g->views[r];
        uint64_t after;

        if (view->fault == FAULT_NONE && (!view->replied || view->trail.newest < *position) &&
            !mesh_left(g->mesh, g->members[r], g->id, g->generation, &after, NULL))
            return false;
    }
    return true;
}

/* What all that have reached `sequence` keep: positions [*ret_first, *ret_last]. */
static void common_positions(const struct collective *g, uint64_t sequence, uint64_t *ret_first,
                             uint64_t *ret_last)
{
    *ret_first = 1;
    *ret_last = UINT64_MAX;
    for (unsigned r = 0; r < g->world_size; r++) {
        const struct mesh_trail *t = &g->views[r].trail;

        if (!g->views[r].replied || t->newest < sequence)
            continue;
        if (t->oldest > *ret_first)
            *ret_first = t->oldest;
        if (t->newest < *ret_last)
            *ret_last = t->newest;
    }
}

static bool differ_at(struct collective *g, uint64_t position, int64_t deadline_ns)
{
    unsigned culprit;
    unsigned other;

    ask_position(g, position, deadline_ns);
    return verdict_odd_trail(g->views, g->world_size, &culprit, &other);
}

/* The first of the positions that is known to differ; views are about it then.  0: there is none.
 */
static uint64_t find_first(struct collective *g, uint64_t first, uint64_t last)
{
    int64_t deadline_ns = clock_deadline_ns(SEARCH_MS);

    if (first > last || !differ_at(g, last, deadline_ns))
        return 0;
    while (first < last) {
        uint64_t middle = first + (last - first) / 2;

        if (differ_at(g, middle, deadline_ns))
            last = middle;
        else
            first = middle + 1;
    }
    return differ_at(g, last, deadline_ns) ? last : 0;
}

static void describe_difference(const struct collective *g, uint64_t position, uint64_t oldest,
                                unsigned culprit, unsigned other, struct mesh_verdict *ret)
{
    const struct mesh_trail *odd = &g->views[culprit].trail;
    const struct mesh_trail *rest = &g->views[other].trail;
    char odd_text[COLLECTIVE_TEXT_SIZE];
    char rest_text[COLLECTIVE_TEXT_SIZE];

    signature_text(&odd->signature, odd_text);
    signature_text(&rest->signature, rest_text);
    if (signature_equal(&odd->signature, &rest->signature))
        (void)snprintf(ret->text, sizeof(ret->text),
                       "its operations up to #%" PRIu64 " were not those of rank %u, and the first "
                       "that differs is not kept any more: it came before #%" PRIu64,
                       position, g->members[other], oldest);
    else
        (void)snprintf(ret->text, sizeof(ret->text), "it ran %.90s, rank %u ran %.90s%s", odd_text,
                       g->members[other], rest_text,
                       position == oldest && oldest > 1 ? ", and earlier ones may differ" : "");
}

bool verdict_explain_trail(struct collective *g, uint64_t sequence, unsigned peer,
                           struct mesh_verdict *ret)
{
    uint64_t first;
    uint64_t last;
    uint64_t position;
    unsigned culprit = 0;
    unsigned other = 0;

    if (!verdict_await_members(g, ask_all, &sequence))
        return false;
    ret->fault = FAULT_DESYNC;
    common_positions(g, sequence, &first, &last);
    position = find_first(g, first, last);
    if (position > 0 && verdict_odd_trail(g->views, g->world_size, &culprit, &other)) {
        ret->culprit = g->members[culprit];
        describe_difference(g, position, first, culprit, other, ret);
        return true;
    }
    ret->culprit = peer;
    (void)snprintf(ret->text, sizeof(ret->text),
                   "its operations up to #%" PRIu64 " were not those of rank %u, and which differs "
                   "first is not kept any more",
                   sequence, g->members[g->rank]);
    return true;
}

bool verdict_find_difference(struct collective *g, struct mesh_verdict *ret)
{
    uint64_t sequence;
    unsigned peer;

    if (!g->keeps_trail || !mesh_find_difference(g->mesh, g->mesh_group_index, &peer, &sequence))
        return false;
    (void)verdict_explain_trail(g, sequence, peer, ret);
    return true;
}

/* ---- at the end ---- */

/* The last position of a member that this rank can compare; false: there is none. */
static bool compare_end(const struct collective *g, unsigned member, uint64_t newest,
                        uint64_t *ret_position, bool *ret_differs)
{
    const struct mesh_trail *t = &g->views[member].trail;
    uint64_t position = newest;
    uint64_t theirs = t->hash;
    uint64_t mine;
    bool is_known = g->views[member].replied && t->kept;

    if (mesh_left(g->mesh, g->members[member], g->id, g->generation, &position, &theirs))
        is_known = true;
    if (!is_known || !mesh_own_hash(g->mesh, g->mesh_group_index, position, &mine))
        return false;
    *ret_position = position;
    *ret_differs = mine != theirs;
    return true;
}

/* The first member whose operations differ from this rank's; false: none. */
static bool find_at_end(struct collective *g, unsigned *ret_peer, uint64_t *ret_position)
{
    uint64_t newest = mesh_own_newest(g->mesh, g->mesh_group_index);

    if (mesh_find_difference(g->mesh, g->mesh_group_index, ret_peer, ret_position))
        return true;
    if (newest == 0)
        return false;
    ask_position(g, newest, clock_deadline_ns(g->heartbeat_timeout_ms));
    for (unsigned r = 0; r < g->world_size; r++) {
        bool differs = false;

        *ret_peer = g->members[r];
        if (r != g->rank && compare_end(g, r, newest, ret_position, &differs) && differs)
            return true;
    }
    return false;
}

enum status verdict_check_trails(struct collective *g, struct error *err)
{
    struct mesh_verdict v = {.group = g->id, .generation = g->generation};
    uint64_t position;
    unsigned peer;

    if (!find_at_end(g, &peer, &position))
        return STATUS_OK;
    if (!mesh_await_verdict(g->mesh, g->id, g->generation, &v)) {
        if (verdict_explain_trail(g, position, peer, &v))
            mesh_send_verdict(g->mesh, &v);
        (void)mesh_await_verdict(g->mesh, g->id, g->generation, &v);
    }
    g->fault = v.fault;
    g->culprit = (int)v.culprit;
    return error_set(err, STATUS_MISMATCH, "group '%s' ends: rank %u is desynchronised: %s",
                     g->name, v.culprit, v.text);
}
