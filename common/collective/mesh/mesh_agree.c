/*
 * Agreement on who is left.  The lowest member that a rank does not know to be lost is its
 * coordinator.  Every rank reports to it whom it knows to be lost; the coordinator waits until each
 * member has reported or is lost, proposes the others (DECIDE), waits until all of them have
 * accepted, and then tells the list (COMMIT).  Whoever hears a commit passes it on, and tells those
 * that the list leaves out.
 *
 * A list may have been committed only if all of its members accepted it.  So a new coordinator,
 * after the loss of the old one, proposes the accepted list again when every living member of it
 * holds it, and a new list otherwise.  That list may then contain a rank that was lost meanwhile:
 * the group made of it fails at once, and is shrunk again.
 *
 * A side of a cut network must not go on while the other does: where ranks are cut off, the larger
 * side goes on, of two equal ones that with the lowest rank.
 */
#include "common/base/clock.h"
#include "common/base/memory.h"
#include "common/base/strbuf.h"
#include "common/collective/mesh/mesh_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct report {
    bool here;
    bool held;
    uint32_t round; /* of the held list */
    struct mesh_rank_set lost, ranks;
};

struct mesh_agreement {
    struct mesh_agreement *next;
    uint64_t tag;
    struct report *reports; /* owned, world_size */
    uint32_t *accepted;     /* owned, world_size: newest round that each rank accepted */
    bool held;              /* what this rank has accepted ... */
    uint32_t round;
    struct mesh_rank_set ranks;
    unsigned decider;
    bool done; /* `ranks` is committed */
    bool excluded;
};

static struct mesh_agreement *find_agreement(struct mesh *m, uint64_t tag)
{
    struct mesh_agreement *a = m->agreements;
    struct error err;

    while (a && a->tag != tag)
        a = a->next;
    if (a)
        return a;
    if (mem_calloc(1, sizeof(*a), "an agreement", &a, &err) != STATUS_OK)
        return NULL;
    a->tag = tag;
    if (mem_calloc(m->world_size, sizeof(*a->reports), "reports", &a->reports, &err) != STATUS_OK ||
        mem_calloc(m->world_size, sizeof(*a->accepted), "rounds", &a->accepted, &err) !=
            STATUS_OK) {
        free(a->reports);
        free(a);
        return NULL;
    }
    a->next = m->agreements;
    m->agreements = a;
    return a;
}

void mesh_agreements_release(struct mesh *m)
{
    while (m->agreements) {
        struct mesh_agreement *next = m->agreements->next;

        free(m->agreements->reports);
        free(m->agreements->accepted);
        free(m->agreements);
        m->agreements = next;
    }
}

static void send_step(struct mesh *m, unsigned rank, const struct mesh_agreement *a,
                      enum mesh_agree_step step, const struct mesh_rank_set *lost)
{
    struct mesh_message message = {
        .kind = MESH_AGREE,
        .agree = {
            .tag = a->tag, .round = a->round, .step = step, .held = a->held, .ranks = a->ranks}};

    if (lost)
        message.agree.lost = *lost;
    if (rank != m->rank)
        mesh_send(m, rank, &message);
}

/* The list stands: pass it on, and tell those outside. */
static void commit(struct mesh *m, struct mesh_agreement *a)
{
    if (a->done)
        return;
    a->done = true;
    for (unsigned r = 0; r < m->world_size; r++)
        send_step(m, r, a, mesh_rank_set_has(&a->ranks, r) ? MESH_AGREE_COMMIT : MESH_AGREE_EXCLUDE,
                  NULL);
}

/* ---- what comes; the mesh's thread ---- */

static void receive_report(struct mesh *m, unsigned rank, struct mesh_agreement *a,
                           const struct mesh_agree_message *message)
{
    a->reports[rank] = (struct report){.here = true,
                                       .held = message->held,
                                       .round = message->round,
                                       .lost = message->lost,
                                       .ranks = message->ranks};
    if (a->excluded)
        send_step(m, rank, a, MESH_AGREE_EXCLUDE, NULL);
    else if (a->done)
        send_step(m, rank, a,
                  mesh_rank_set_has(&a->ranks, rank) ? MESH_AGREE_COMMIT : MESH_AGREE_EXCLUDE,
                  NULL);
}

void mesh_receive_agree(struct mesh *m, unsigned rank, const struct mesh_agree_message *message)
{
    struct mesh_agreement *a = find_agreement(m, message->tag);

    if (!a)
        return; /* no memory: the others see this rank stall */
    switch (message->step) {
    case MESH_AGREE_REPORT:
        receive_report(m, rank, a, message);
        break;
    case MESH_AGREE_DECIDE:
        if (a->done || a->excluded || m->peers[rank].state == MESH_PEER_LOST ||
            (a->held && message->round < a->round))
            break;
        a->held = true;
        a->round = message->round;
        a->ranks = message->ranks;
        a->decider = rank;
        send_step(m, rank, a, MESH_AGREE_ACCEPT, NULL);
        break;
    case MESH_AGREE_ACCEPT:
        a->accepted[rank] = message->round;
        break;
    case MESH_AGREE_COMMIT:
        if (a->done || a->excluded)
            break;
        a->held = true;
        a->round = message->round;
        a->ranks = message->ranks;
        commit(m, a);
        break;
    default:
        a->excluded = !a->done;
        break;
    }
}

/* ---- the call ---- */

struct agreeing {
    struct mesh *mesh;
    struct mesh_agreement *agreement;
    const unsigned *members;
    unsigned count;
    struct mesh_rank_set lost; /* of the members, as far as is known */
    unsigned reported_to;
    struct mesh_rank_set reported; /* `lost` as it was reported */
    bool has_reported;
    bool has_decided;
    struct mesh_rank_set decided;
};

static void note_losses(struct agreeing *g)
{
    for (unsigned i = 0; i < g->count; i++)
        if (g->members[i] != g->mesh->rank && g->mesh->peers[g->members[i]].state != MESH_PEER_UP)
            mesh_rank_set_add(&g->lost, g->members[i]);
}

static unsigned coordinator(const struct agreeing *g)
{
    for (unsigned i = 0; i < g->count; i++)
        if (!mesh_rank_set_has(&g->lost, g->members[i]))
            return g->members[i];
    return g->mesh->rank;
}

static void report_to(struct agreeing *g, unsigned rank)
{
    if (g->has_reported && g->reported_to == rank &&
        memcmp(&g->reported, &g->lost, sizeof(g->lost)) == 0)
        return;
    g->has_reported = true;
    g->reported_to = rank;
    g->reported = g->lost;
    send_step(g->mesh, rank, g->agreement, MESH_AGREE_REPORT, &g->lost);
}

/* Has every member that lives reported?  Their losses become ours. */
static bool all_reported(struct agreeing *g)
{
    bool complete = true;

    for (unsigned i = 0; i < g->count; i++) {
        const struct report *report = &g->agreement->reports[g->members[i]];

        if (g->members[i] == g->mesh->rank || mesh_rank_set_has(&g->lost, g->members[i]))
            continue;
        complete = complete && report->here;
        for (unsigned k = 0; report->here && k < g->count; k++)
            if (g->members[k] != g->mesh->rank && mesh_rank_set_has(&report->lost, g->members[k]))
                mesh_rank_set_add(&g->lost, g->members[k]);
    }
    return complete;
}

/* The list that an earlier coordinator may have committed: all its living members hold it. */
static bool find_held(const struct agreeing *g, struct mesh_rank_set *ret)
{
    const struct mesh_agreement *a = g->agreement;

    if (!a->held || a->decider == g->mesh->rank)
        return false;
    for (unsigned i = 0; i < g->count; i++) {
        unsigned rank = g->members[i];
        const struct report *report = &a->reports[rank];

        if (rank == g->mesh->rank || !mesh_rank_set_has(&a->ranks, rank) ||
            mesh_rank_set_has(&g->lost, rank))
            continue;
        if (!report->held || report->round != a->round ||
            memcmp(&report->ranks, &a->ranks, sizeof(a->ranks)) != 0)
            return false;
    }
    *ret = a->ranks;
    return true;
}

/* Is this the side of a cut network that may go on? */
static bool may_go_on(const struct agreeing *g)
{
    unsigned here = 0;
    unsigned cut_off = 0;
    bool has_lowest = false;

    for (unsigned i = 0; i < g->count; i++) {
        const struct mesh_peer *p = &g->mesh->peers[g->members[i]];
        bool lost = mesh_rank_set_has(&g->lost, g->members[i]);

        if (lost && p->state != MESH_PEER_UP && p->fault != FAULT_NETWORK)
            continue;
        if (here + cut_off == 0)
            has_lowest = !lost;
        here += !lost;
        cut_off += lost;
    }
    return here > cut_off || (here == cut_off && has_lowest);
}

static void decide(struct agreeing *g)
{
    struct mesh_agreement *a = g->agreement;
    struct mesh_rank_set list = {.bits = {0}};

    if (!find_held(g, &list))
        for (unsigned i = 0; i < g->count; i++)
            if (!mesh_rank_set_has(&g->lost, g->members[i]))
                mesh_rank_set_add(&list, g->members[i]);
    for (unsigned i = 0; i < g->count; i++)
        if (a->reports[g->members[i]].round > a->round)
            a->round = a->reports[g->members[i]].round;
    a->round++;
    a->held = true;
    a->decider = g->mesh->rank;
    a->ranks = list;
    g->decided = g->lost;
    g->has_decided = true;
    for (unsigned r = 0; r < g->mesh->world_size; r++)
        if (mesh_rank_set_has(&list, r))
            send_step(g->mesh, r, a, MESH_AGREE_DECIDE, NULL);
}

static bool all_accepted(const struct agreeing *g)
{
    const struct mesh_agreement *a = g->agreement;

    for (unsigned r = 0; r < g->mesh->world_size; r++)
        if (r != g->mesh->rank && mesh_rank_set_has(&a->ranks, r) &&
            !mesh_rank_set_has(&g->lost, r) && a->accepted[r] != a->round)
            return false;
    return true;
}

static void coordinate(struct agreeing *g)
{
    struct mesh_agreement *a = g->agreement;

    if (!all_reported(g))
        return;
    if (!may_go_on(g)) {
        a->excluded = true;
        for (unsigned i = 0; i < g->count; i++)
            send_step(g->mesh, g->members[i], a, MESH_AGREE_EXCLUDE, NULL);
        return;
    }
    if (!g->has_decided || memcmp(&g->decided, &g->lost, sizeof(g->lost)) != 0)
        decide(g);
    if (all_accepted(g))
        commit(g->mesh, a);
}

static void step(struct agreeing *g)
{
    unsigned chief;

    note_losses(g);
    chief = coordinator(g);
    if (chief == g->mesh->rank)
        coordinate(g);
    else
        report_to(g, chief);
}

/* Has a member not reported, or, once all have, not accepted? */
static bool is_awaited(const struct agreeing *g, unsigned rank)
{
    const struct mesh_agreement *a = g->agreement;

    return g->has_decided ? mesh_rank_set_has(&a->ranks, rank) && a->accepted[rank] != a->round
                          : !a->reports[rank].here;
}

static enum status timed_out(const struct agreeing *g, struct error *err)
{
    struct strbuf missing = STRBUF_INIT;
    unsigned chief = coordinator(g);

    if (chief != g->mesh->rank)
        return error_set(err, STATUS_TIMEOUT, "rank %u did not say in time which ranks are left",
                         chief);
    for (unsigned i = 0; i < g->count; i++) {
        unsigned rank = g->members[i];

        if (rank != g->mesh->rank && !mesh_rank_set_has(&g->lost, rank) && is_awaited(g, rank))
            strbuf_addf(&missing, "%s%u", missing.length > 0 ? ", " : "", rank);
    }
    (void)error_set(err, STATUS_TIMEOUT,
                    "rank %s lives, and did not come to agree on which ranks are left",
                    missing.text);
    strbuf_release(&missing);
    return STATUS_TIMEOUT;
}

enum status mesh_agree(struct mesh *m, const unsigned *members, unsigned count, const char *tag,
                       int64_t deadline_ns, unsigned *ret_members, unsigned *ret_count,
                       struct error *err)
{
    struct agreeing g = {.mesh = m, .members = members, .count = count};
    struct mesh_agreement *a;
    enum status status = STATUS_OK;

    (void)pthread_mutex_lock(&m->lock);
    a = g.agreement = find_agreement(m, signature_group_id(tag));
    while (a && status == STATUS_OK) {
        if (!a->done && !a->excluded)
            step(&g);
        if (a->done || a->excluded)
            break;
        if (clock_now_ns() >= deadline_ns)
            status = timed_out(&g, err);
        else
            mesh_wait(m, deadline_ns);
    }
    if (!a)
        status = error_set(err, STATUS_NO_MEMORY, "no memory to agree on which ranks are left");
    else if (status == STATUS_OK && (a->excluded || !mesh_rank_set_has(&a->ranks, m->rank)))
        status = error_set(err, STATUS_PEER_LOST, "the others go on without this rank %u", m->rank);
    if (a && status == STATUS_OK) {
        *ret_count = 0;
        for (unsigned i = 0; i < count; i++)
            if (mesh_rank_set_has(&a->ranks, members[i]))
                ret_members[(*ret_count)++] = members[i];
    }
    (void)pthread_mutex_unlock(&m->lock);
    return status;
}
