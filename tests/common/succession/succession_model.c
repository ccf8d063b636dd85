#include "tests/common/succession/succession_model.h"

#include <string.h>

struct world world;

/* ------------------------------------------------------------------ the real rules */

static struct succession_primary primary_of(const struct state *s, bool *settled)
{
    struct succession_primary p;

    succession_primary_init(&p, 1, world.workers, settled);
    p.role = (enum succession_role)s->role;
    p.epoch = 1 + (s->role == SUCCESSION_STANDALONE);
    for (unsigned k = 0; k < world.workers; k++)
        settled[k] = s->settled >> k & 1;
    return p;
}

static void keep_primary(struct state *s, const struct succession_primary *p)
{
    s->role = (uint8_t)p->role;
    s->settled = 0;
    for (unsigned k = 0; k < world.workers; k++)
        s->settled |= (uint8_t)(p->settled[k] << k);
}

static bool may_acknowledge(const struct state *s, unsigned entry)
{
    bool settled[WORKERS_MAX];
    struct succession_primary p = primary_of(s, settled);

    return succession_may_acknowledge(&p, entry < s->acknowledged && !s->restarted);
}

/* ------------------------------------------------------------------ histories */

/* Number of entries up to and including step `steps`. */
static unsigned entries_of(const struct history *h, unsigned steps)
{
    return steps + (h->vacates < steps ? 1 : 0);
}

unsigned model_steps(const struct history *h)
{
    return (unsigned)h->length - (h->vacates < h->length ? 1 : 0);
}

bool model_is_part(const struct history *less, const struct history *more)
{
    uint8_t mask = (uint8_t)((1u << less->length) - 1);

    return less->length <= more->length && (more->own & mask) == less->own &&
           (less->vacates == more->vacates ||
            (less->vacates == NEVER && more->vacates >= less->length));
}

static void append_entry(struct history *h, bool own, bool vacates)
{
    if (vacates)
        h->vacates = h->length;
    h->own |= (uint8_t)(own << h->length);
    h->length++;
}

bool model_is_vacant(const struct state *s)
{
    return s->primary.vacates != NEVER &&
           (s->primary.vacates < s->acknowledged || may_acknowledge(s, s->primary.vacates));
}

static uint8_t all_workers(bool vacant)
{
    return (uint8_t)(((1u << world.workers) - 1) & ~(unsigned)vacant);
}

/* ------------------------------------------------------------------ failures */

bool model_lives(const struct state *s, unsigned bit)
{
    return (s->dead & bit) == 0;
}

static bool are_linked(const struct state *s, unsigned pair)
{
    return (s->cut >> pair & 1) == 0;
}

/* May one side of the pair believe that `bit` is lost? */
static bool may_suspect(const struct state *s, unsigned bit, unsigned pair)
{
    return !world.progress || !model_lives(s, bit) || !are_linked(s, pair);
}

/* ------------------------------------------------------------------ the primary */

static void sum_at_primary(const struct state *from, unsigned k)
{
    struct state s = *from;
    bool vacant = model_is_vacant(from);
    bool pending = from->primary.vacates != NEVER && !vacant;
    unsigned step = model_steps(&from->primary) + 1;

    if (step > world.steps || pending || from->role == SUCCESSION_SUPERSEDED ||
        from->workers[k].pushed < step || (k == 0 && vacant) || !are_linked(from, CUT_PRIMARY + k))
        return;
    s.primary_sum |= (uint8_t)(1u << k);
    if ((s.primary_sum | vacant) == all_workers(false)) {
        append_entry(&s.primary, false, false);
        s.primary_sum = 0;
    }
    visit(&s);
}

/* The primary considers worker 0 lost and ends its session. */
static void vacate_at_primary(const struct state *from)
{
    struct state s = *from;

    if (!world.vacates || from->primary.vacates != NEVER || from->role == SUCCESSION_SUPERSEDED ||
        !may_suspect(from, 1, CUT_PRIMARY))
        return;
    append_entry(&s.primary, false, true);
    s.primary_sum &= (uint8_t)~1u;
    visit(&s);
}

static void answer_from_primary(const struct state *from, unsigned k)
{
    struct state s = *from;
    struct worker *w = &s.workers[k];
    unsigned step = model_steps(&w->is) + 1;
    unsigned end = entries_of(&from->primary, step);

    if (w->at != 0 || w->asks == 2 || w->left || end > from->primary.length ||
        !may_acknowledge(from, end - 1) || !are_linked(from, CUT_PRIMARY + k) ||
        !model_lives(from, 1u << k))
        return;
    w->is = from->primary;
    w->is.length = (uint8_t)end;
    w->is.own &= (uint8_t)((1u << end) - 1);
    if (w->is.vacates >= end)
        w->is.vacates = NEVER;
    w->pushed = (uint8_t)(step < world.steps ? step + 1 : step);
    visit(&s);
}

static void take_acknowledgement(const struct state *from)
{
    bool settled[WORKERS_MAX];
    struct succession_primary p = primary_of(from, settled);
    struct state s = *from;

    if (from->acknowledged >= from->taken || from->restarted || !are_linked(from, CUT_SERVERS))
        return;
    if (from->acknowledged == from->primary.vacates) {
        succession_membership_changed(&p, p.epoch, 0, false);
        (void)succession_mark_settled(&p, 0);
        keep_primary(&s, &p);
    }
    s.acknowledged++;
    visit(&s);
}

static void suspect_replica(const struct state *from)
{
    bool settled[WORKERS_MAX];
    struct succession_primary p = primary_of(from, settled);
    struct state s = *from;

    if (!may_suspect(from, DEAD_REPLICA, CUT_SERVERS))
        return;
    (void)succession_lose_replica(&p);
    keep_primary(&s, &p);
    visit(&s);
}

/* The primary proposes, and receives the worker's vote. */
static void vote_alone(const struct state *from, unsigned k)
{
    bool settled[WORKERS_MAX];
    struct succession_primary p = primary_of(from, settled);
    struct state s = *from;
    struct worker *w = &s.workers[k];
    struct succession_worker voter = {.vote = (enum succession_vote)w->vote};
    uint64_t vote;

    if (from->role != SUCCESSION_PROPOSING || w->at != 0 || w->left ||
        !model_lives(from, 1u << k) || !are_linked(from, CUT_PRIMARY + k))
        return;
    vote = succession_worker_propose(&voter, p.epoch + 1);
    w->vote = (uint8_t)voter.vote;
    visit(&s); /* the worker has voted, and the reply is late or lost */
    (void)succession_count_vote(&p, k, vote);
    keep_primary(&s, &p);
    visit(&s);
}

static void leave_in_order(const struct state *from, unsigned k)
{
    bool settled[WORKERS_MAX];
    struct succession_primary p = primary_of(from, settled);
    struct state s = *from;

    if (model_steps(&from->workers[k].is) < world.steps || from->workers[k].at != 0 ||
        from->workers[k].asks == 2 || !model_lives(from, 1u << k))
        return;
    s.workers[k].left = true;
    visit(&s);
    if (!are_linked(from, CUT_PRIMARY + k))
        return;
    (void)succession_mark_settled(&p, k);
    keep_primary(&s, &p);
    visit(&s);
}

/* The primary crashed and restarts from its disk.  `alone`: the disk has that role. */
static void start_again(const struct state *from, bool alone)
{
    bool known = from->primary.vacates == NEVER || from->primary.vacates < from->acknowledged;
    bool settled[WORKERS_MAX];
    struct succession_primary p;
    struct state s = *from;

    if (alone && from->role != SUCCESSION_STANDALONE)
        return;
    s.restarted = true;
    s.forgot_alone = from->forgot_alone || (from->role == SUCCESSION_STANDALONE && !alone);
    s.primary_sum = 0;
    if (!alone && !known) { /* the voters are unknown from the disk: it cannot continue */
        s.dead |= DEAD_PRIMARY;
    } else if (!alone) {
        for (unsigned k = 0; k < world.workers; k++)
            settled[k] = (s.settled >> k & 1) &&
                         (s.workers[k].left || (k == 0 && s.primary.vacates != NEVER));
        succession_primary_restore(&p, 1, world.workers, settled);
        keep_primary(&s, &p);
    }
    if (world.progress)
        s.failures = 1;
    visit(&s);
}

/* The role "alone" is on disk at the latest when a rank leaves or joins. */
static void restart_primary(const struct state *from)
{
    bool lately = from->primary.vacates == NEVER || from->primary.vacates < from->acknowledged;

    if (!model_lives(from, DEAD_PRIMARY) || (world.progress && from->failures > 0))
        return;
    start_again(from, true);
    if (from->role != SUCCESSION_STANDALONE || lately)
        start_again(from, false);
}

/* ------------------------------------------------------------------ the replica */

static void take_record(const struct state *from)
{
    struct succession_replica r = {.epoch = 1, .promoted = from->promoted};
    bool settled[WORKERS_MAX];
    struct succession_primary p = primary_of(from, settled);
    struct state s = *from;

    if (!are_linked(from, CUT_SERVERS))
        return;
    if (!succession_replica_record(&r, 1)) {
        succession_supersede(&p); /* the refusal is received */
        keep_primary(&s, &p);
        visit(&s);
        return;
    }
    if (from->taken >= from->primary.length || from->restarted)
        return; /* equivalent to receiving the message before the restart */
    append_entry(&s.replica, false, from->primary.vacates == from->taken);
    s.taken++;
    visit(&s);
}

static void come_to_replica(const struct state *from, unsigned k)
{
    struct succession_replica r = {.epoch = 1, .promoted = from->promoted};
    struct state s = *from;
    const struct worker *w = &from->workers[k];
    bool promotes = w->asks == 2;

    if (w->asks == 0 || (k == 0 && from->replica.vacates != NEVER) ||
        !are_linked(from, CUT_REPLICA + k))
        return;
    if (succession_replica_join(&r, promotes) == SUCCESSION_REFUSED)
        return;
    s.promoted = r.promoted;
    s.joined |= (uint8_t)(1u << k);
    visit(&s);
    if (!model_lives(from, 1u << k) || w->left)
        return;
    s.workers[k].at = 1; /* it has its reply */
    visit(&s);
}

static void sum_at_replica(const struct state *from, unsigned k)
{
    struct state s = *from;
    bool vacant = from->replica.vacates != NEVER;

    if (!from->promoted || from->workers[k].at != 1 || !are_linked(from, CUT_REPLICA + k) ||
        model_steps(&from->workers[k].is) != model_steps(&from->replica) ||
        model_steps(&from->replica) >= world.steps || (k == 0 && vacant))
        return;
    s.replica_sum |= (uint8_t)(1u << k);
    if ((s.replica_sum | vacant) == all_workers(false)) {
        append_entry(&s.replica, true, false);
        s.replica_sum = 0;
    }
    visit(&s);
}

static void vacate_at_replica(const struct state *from)
{
    struct state s = *from;

    if (!world.vacates || !from->promoted || from->replica.vacates != NEVER ||
        !may_suspect(from, 1, CUT_REPLICA))
        return;
    append_entry(&s.replica, true, true);
    s.replica_sum &= (uint8_t)~1u;
    visit(&s);
}

static void answer_from_replica(const struct state *from, unsigned k)
{
    struct state s = *from;
    struct worker *w = &s.workers[k];
    unsigned step = model_steps(&w->is) + 1;
    unsigned end = entries_of(&from->replica, step);

    if (!from->promoted || w->at != 1 || end > from->replica.length ||
        !are_linked(from, CUT_REPLICA + k) || !model_lives(from, 1u << k))
        return;
    w->is = from->replica;
    w->is.length = (uint8_t)end;
    w->is.own &= (uint8_t)((1u << end) - 1);
    if (w->is.vacates >= end)
        w->is.vacates = NEVER;
    visit(&s);
}

/* ------------------------------------------------------------------ the workers */

/* This worker has lost the primary, or the primary reports that it is superseded. */
static void leave_primary(const struct state *from, unsigned k)
{
    struct state s = *from;
    struct worker *w = &s.workers[k];
    struct succession_worker voter = {.vote = (enum succession_vote)w->vote};
    bool told = from->role == SUCCESSION_SUPERSEDED && are_linked(from, CUT_PRIMARY + k);
    bool stuck = from->role == SUCCESSION_PROPOSING && w->vote == SUCCESSION_ALONE;

    if (w->at != 0 || w->left || !model_lives(from, 1u << k) ||
        (!told && !stuck && !from->restarted && !may_suspect(from, DEAD_PRIMARY, CUT_PRIMARY + k)))
        return;
    w->asks = succession_worker_leave(&voter) ? 2 : 1;
    w->vote = (uint8_t)voter.vote;
    visit(&s);
}

/* ------------------------------------------------------------------ all of them */

void model_move(const struct state *from)
{
    bool primary = model_lives(from, DEAD_PRIMARY), replica = model_lives(from, DEAD_REPLICA);

    if (!world.progress)
        restart_primary(from);
    if (primary) {
        vacate_at_primary(from);
        take_acknowledgement(from);
        suspect_replica(from);
    }
    if (primary && replica)
        take_record(from);
    if (replica)
        vacate_at_replica(from);
    for (unsigned k = 0; k < world.workers; k++) {
        leave_primary(from, k);
        if (primary) {
            sum_at_primary(from, k);
            answer_from_primary(from, k);
            vote_alone(from, k);
            leave_in_order(from, k);
        }
        if (replica) {
            come_to_replica(from, k);
            sum_at_replica(from, k);
            answer_from_replica(from, k);
        }
    }
}

void model_fail(const struct state *from)
{
    unsigned bits = WORKERS_MAX + 2, pairs = 2 * WORKERS_MAX + 1;

    if (!world.progress || from->failures > 0)
        return;
    for (unsigned i = 0; i < bits; i++) {
        struct state s = *from;

        /* A dead worker whose session does not end ends the job. */
        if (i < WORKERS_MAX && (i > 0 || !world.vacates))
            continue;
        s.dead = (uint8_t)(1u << i);
        s.failures = 1;
        visit(&s);
    }
    for (unsigned i = 0; i < pairs; i++) {
        struct state s = *from;

        if (i < 2 * WORKERS_MAX && i % WORKERS_MAX >= world.workers)
            continue;
        s.cut = (uint8_t)(1u << i);
        s.failures = 1;
        visit(&s);
    }
    restart_primary(from);
}

void model_start(struct state *s)
{
    memset(s, 0, sizeof(*s));
    s->primary.vacates = s->replica.vacates = NEVER;
    for (unsigned k = 0; k < WORKERS_MAX; k++) {
        s->workers[k].is.vacates = NEVER;
        s->workers[k].pushed = 1;
    }
}
