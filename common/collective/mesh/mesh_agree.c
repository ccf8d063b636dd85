/*
 * Agreement on the remaining ranks.  The lowest member that a rank has not found lost is its
 * coordinator.  Every rank reports the losses it has found to it; the coordinator waits until each
 * member has reported or is lost, proposes the others (PROPOSE), waits until all of them have
 * accepted, and then sends the list (COMMIT).  Each receiver of a commit forwards it, and sends
 * EXCLUDE to the ranks that the list leaves out.
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

struct member_report {
    bool here;
    bool held;
    uint32_t round; /* of the held list */
    struct mesh_rank_set lost, ranks;
};

struct mesh_agreement {
    struct mesh_agreement *next;
    uint64_t tag;
    struct member_report *reports; /* owned, world_size */
    uint32_t *accepted;            /* owned, world_size: newest round that each rank accepted */
    bool held;                     /* what this rank has accepted ... */
    uint32_t round;
    struct mesh_rank_set ranks;
    unsigned proposer;
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

/* The list is final: forward it, and send EXCLUDE to the ranks outside. */
static void commit_list(struct mesh *m, struct mesh_agreement *a)
{
    if (a->done)
        return;
    a->done = true;
    for (unsigned r = 0; r < m->world_size; r++)
        send_step(m, r, a, mesh_rank_set_has(&a->ranks, r) ? MESH_AGREE_COMMIT : MESH_AGREE_EXCLUDE,
                  NULL);
}

/* ---- incoming messages; the mesh's thread ---- */

static void receive_report(struct mesh *m, unsigned rank, struct mesh_agreement *a,
                           const struct mesh_agree_message *message)
{
    a->reports[rank] = (struct member_report){.here = true,
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
        return; /* no memory: this rank stalls the agreement, and the others time out */
    switch (message->step) {
    case MESH_AGREE_REPORT:
        receive_report(m, rank, a, message);
        break;
    case MESH_AGREE_PROPOSE:
        if (a->done || a->excluded || m->peers[rank].state == MESH_PEER_LOST ||
            (a->held && message->round < a->round))
            break;
        a->held = true;
        a->round = message->round;
        a->ranks = message->ranks;
        a->proposer = rank;
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
        commit_list(m, a);
        break;
    default:
        a->excluded = !a->done;
        break;
    }
}

/* ---- the call ---- */

struct agreement_call {
    struct mesh *mesh;
    struct mesh_agreement *agreement;
    const unsigned *members;
    unsigned count;
    struct mesh_rank_set lost; /* members found lost so far */
    unsigned reported_to;
    struct mesh_rank_set reported; /* `lost` as it was reported */
    bool has_reported;
    bool has_proposed;
    struct mesh_rank_set proposed;
};

static void note_losses(struct agreement_call *g)
{
    for (unsigned i = 0; i < g->count; i++)
        if (g->members[i] != g->mesh->rank && g->mesh->peers[g->members[i]].state != MESH_PEER_UP)
            mesh_rank_set_add(&g->lost, g->members[i]);
}

static unsigned coordinator(const struct agreement_call *g)
{
    for (unsigned i = 0; i < g->count; i++)
        if (!mesh_rank_set_has(&g->lost, g->members[i]))
            return g->members[i];
    return g->mesh->rank;
}

static void report_losses(struct agreement_call *g, unsigned rank)
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
static bool all_reported(struct agreement_call *g)
{
    bool complete = true;

    for (unsigned i = 0; i < g->count; i++) {
        const struct member_report *report = &g->agreement->reports[g->members[i]];

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
static bool find_accepted_list(const struct agreement_call *g, struct mesh_rank_set *ret)
{
    const struct mesh_agreement *a = g->agreement;

    if (!a->held || a->proposer == g->mesh->rank)
        return false;
    for (unsigned i = 0; i < g->count; i++) {
        unsigned rank = g->members[i];
        const struct member_report *report = &a->reports[rank];

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
static bool is_surviving_side(const struct agreement_call *g)
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

static void propose_list(struct agreement_call *g)
{
    struct mesh_agreement *a = g->agreement;
    struct mesh_rank_set list = {.bits = {0}};

    if (!find_accepted_list(g, &list))
        for (unsigned i = 0; i < g->count; i++)
            if (!mesh_rank_set_has(&g->lost, g->members[i]))
                mesh_rank_set_add(&list, g->members[i]);
    for (unsigned i = 0; i < g->count; i++)
        if (a->reports[g->members[i]].round > a->round)
            a->round = a->reports[g->members[i]].round;
    a->round++;
    a->held = true;
    a->proposer = g->mesh->rank;
    a->ranks = list;
    g->proposed = g->lost;
    g->has_proposed = true;
    for (unsigned r = 0; r < g->mesh->world_size; r++)
        if (mesh_rank_set_has(&list, r))
            send_step(g->mesh, r, a, MESH_AGREE_PROPOSE, NULL);
}

static bool all_accepted(const struct agreement_call *g)
{
    const struct mesh_agreement *a = g->agreement;

    for (unsigned r = 0; r < g->mesh->world_size; r++)
        if (r != g->mesh->rank && mesh_rank_set_has(&a->ranks, r) &&
            !mesh_rank_set_has(&g->lost, r) && a->accepted[r] != a->round)
            return false;
    return true;
}

static void run_coordinator(struct agreement_call *g)
{
    struct mesh_agreement *a = g->agreement;

    if (!all_reported(g))
        return;
    if (!is_surviving_side(g)) {
        a->excluded = true;
        for (unsigned i = 0; i < g->count; i++)
            send_step(g->mesh, g->members[i], a, MESH_AGREE_EXCLUDE, NULL);
        return;
    }
    if (!g->has_proposed || memcmp(&g->proposed, &g->lost, sizeof(g->lost)) != 0)
        propose_list(g);
    if (all_accepted(g))
        commit_list(g->mesh, a);
}

static void advance_agreement(struct agreement_call *g)
{
    unsigned coordinator_rank;

    note_losses(g);
    coordinator_rank = coordinator(g);
    if (coordinator_rank == g->mesh->rank)
        run_coordinator(g);
    else
        report_losses(g, coordinator_rank);
}

/* Has a member not reported, or, once all have, not accepted? */
static bool is_awaited(const struct agreement_call *g, unsigned rank)
{
    const struct mesh_agreement *a = g->agreement;

    return g->has_proposed ? mesh_rank_set_has(&a->ranks, rank) && a->accepted[rank] != a->round
                           : !a->reports[rank].here;
}

static enum status agreement_timed_out(const struct agreement_call *g, struct error *err)
{
    struct strbuf missing = STRBUF_INIT;
    unsigned coordinator_rank = coordinator(g);

    if (coordinator_rank != g->mesh->rank)
        return error_set(err, STATUS_TIMEOUT, "rank %u did not say in time which ranks are left",
                         coordinator_rank);
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
    struct agreement_call g = {.mesh = m, .members = members, .count = count};
    struct mesh_agreement *a;
    enum status status = STATUS_OK;

    (void)pthread_mutex_lock(&m->lock);
    a = g.agreement = find_agreement(m, signature_group_id(tag));
    while (a && status == STATUS_OK) {
        if (!a->done && !a->excluded)
            advance_agreement(&g);
        if (a->done || a->excluded)
            break;
        if (clock_now_ns() >= deadline_ns)
            status = agreement_timed_out(&g, err);
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
