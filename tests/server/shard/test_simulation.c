/*
 * Thousands of complete jobs in which connections break, workers die and are replaced, and servers
 * crash, each determined by its seed; see simulation.h.  Checked in every run:
 *
 *   - it ends: until all requests are answered, an event is always possible;
 *   - no contribution is applied twice, and none that was acknowledged is lost;
 *   - in exact runs every reply has the bits of the run without faults;
 *   - the server's record of a rank's copy equals that copy, compressed or not;
 *   - in ssp a reply at clock c includes all contributions up to c - s, and the rank's own;
 *   - every request has one reply, whose data does not change before it has arrived.
 *
 * SPARRING_SEEDS=n: the number of seeds.  SPARRING_SEED=s: run only this seed and print its plan.
 */
#include "tests/server/shard/simulation.h"

#include "tests/support/support.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEEDS_DEFAULT SUPPORT_DRAWS(20000u, 2000u)
#define EVENTS_MAX    200000u

static struct error err;
static struct sim sim; /* 1 MB */
static uint64_t seed;

uint64_t sim_random(struct sim *s)
{
    uint64_t x = s->random += 0x9e3779b97f4a7c15u;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

unsigned sim_below(struct sim *s, unsigned bound)
{
    return (unsigned)(sim_random(s) % bound);
}

static void print_plan(const struct sim *s, FILE *to)
{
    static const char *const losses[] = {"fail", "shrink", "wait"};
    static const char *const durabilities[] = {"nothing", "a journal", "a replica"};
    const struct sim_plan *p = &s->plan;

    (void)fprintf(to,
                  "SPARRING_SEED=%" PRIu64 ": %s staleness %" PRIu32 " backup %" PRIu32
                  ", %u ranks, %u servers, %u partitions, %u lanes, %" PRIu64
                  " rounds, %s%s, replies %s, on loss %s, with "
                  "%s, %u faults\n",
                  seed, consistency_name(p->consistency.mode), p->consistency.staleness,
                  p->consistency.backup, p->ranks, p->servers, p->partitions, p->lanes, p->rounds,
                  p->update ? "values" : "sums", p->exact ? ", exact" : "",
                  codec_name(p->compression.down.kind), losses[p->on_loss],
                  durabilities[p->durability], p->faults);
}

_Noreturn void sim_fail(const char *format, ...)
{
    va_list args;

    print_plan(&sim, stderr);
    va_start(args, format);
    (void)vfprintf(stderr, format, args);
    va_end(args);
    (void)fprintf(stderr, "\n");
    ck_abort_msg("seed %" PRIu64, seed);
    abort();
}

/* ------------------------------------------------------------------ queues, offsets */

void sim_enqueue(struct sim *s, struct sim_queue *q, struct sim_message m)
{
    (void)s;
    if (q->length == SIM_QUEUE)
        sim_fail("%u messages on one lane", SIM_QUEUE);
    q->messages[(q->first + q->length++) % SIM_QUEUE] = m;
}

struct sim_message sim_dequeue(struct sim_queue *q)
{
    struct sim_message m = q->messages[q->first];

    q->first = (q->first + 1) % SIM_QUEUE;
    q->length--;
    return m;
}

uint32_t sim_sum(const float *data, size_t count)
{
    uint32_t sum = 0, bits;

    for (size_t i = 0; i < count; i++) {
        memcpy(&bits, &data[i], sizeof(bits));
        sum = (sum << 1 | sum >> 31) + bits;
    }
    return sum;
}

uint32_t sim_sum_of(const struct sim_message *m)
{
    uint32_t sum = 0;

    for (size_t i = 0; m->coded && i < m->bytes; i++)
        sum = (sum << 1 | sum >> 31) + m->coded[i];
    return m->coded ? sum : sim_sum(m->data, m->count);
}

bool sim_is_lossy(const struct sim_plan *p)
{
    return codec_has_residual(&p->compression.down);
}

size_t sim_offset(uint32_t partition)
{
    return partition * SIM_FULL;
}

size_t sim_count(const struct sim *s, uint32_t partition)
{
    return partition + 1 == s->plan.partitions ? SIM_LAST : SIM_FULL;
}

/* ------------------------------------------------------------------ events */

enum event_kind { UP, DOWN, RECONNECT, LOSE, ADMIT, REPLICATE, ACKNOWLEDGE };

struct event {
    enum event_kind kind;
    unsigned rank, server, lane;
};

#define EVENTS (SIM_SERVERS * (SIM_RANKS * (2 * SIM_LANES + 3) + 2))

/* Is the process alive, and HELD at all servers? */
static bool is_held(const struct sim *s, unsigned rank)
{
    bool held = s->workers[rank].life == SIM_ALIVE;

    for (unsigned k = 0; k < s->plan.servers; k++)
        held = held && s->servers[k].ranks[rank].state == SIM_HELD;
    return held;
}

/* May the rank be lost?  Not if no other process could supply its values. */
static bool may_lose(const struct sim *s, unsigned rank)
{
    const struct sim_worker *w = &s->workers[rank];
    unsigned alive = 0;

    for (unsigned other = 0; other < s->plan.ranks; other++)
        alive += is_held(s, other);
    if (!is_held(s, rank) || s->plan.on_loss == SIM_FAIL)
        return false;
    if (s->plan.on_loss == SIM_WAIT)
        return true;
    return alive > 1 && (rank > 0 || w->phase != SIM_PULLING || s->plan.update);
}

static void kill_worker(struct sim *s, unsigned rank)
{
    struct sim_worker *w = &s->workers[rank];
    bool needed = rank == 0 && w->phase == SIM_PULLING; /* the initial values */

    for (unsigned k = 0; k < s->plan.servers; k++)
        sim_break(&s->servers[k], rank);
    w->killed = true;
    w->life = SIM_LOST;
    w->succeeded = s->plan.update && (needed || sim_below(s, 3) > 0);
    s->kills++;
}

/* One server loses a rank that is alive, as after a timeout; the worker detects it on reconnect. */
static void give_up(struct sim_server *v, unsigned rank)
{
    if (v->sim->plan.on_loss != SIM_SHRINK || v->ranks[rank].state != SIM_HELD)
        return;
    sim_break(v, rank);
    v->sim->workers[rank].killed = true;
    v->ranks[rank] = (struct sim_rank){.state = SIM_VACATING};
}

/* The possible events between a rank and a server. */
static unsigned find_rank_events(const struct sim *s, unsigned k, unsigned rank,
                                 struct event *events)
{
    const struct sim_worker *w = &s->workers[rank];
    const struct sim_link *link = &w->links[k];
    enum sim_rank_state state = s->servers[k].ranks[rank].state;
    bool waits = s->plan.on_loss == SIM_WAIT, lost = w->life == SIM_LOST;
    unsigned count = 0;

    for (unsigned lane = 0; lane < s->plan.lanes; lane++) {
        if (link->up[lane].length > 0)
            events[count++] = (struct event){UP, rank, k, lane};
        if (link->down[lane].length > 0)
            events[count++] = (struct event){DOWN, rank, k, lane};
    }
    if (w->life == SIM_ALIVE && !link->connected)
        events[count++] = (struct event){RECONNECT, rank, k, 0};
    if ((lost && state == SIM_HELD && !waits) || state == SIM_VACATING)
        events[count++] = (struct event){LOSE, rank, k, 0};
    if (lost && ((state == SIM_HELD && waits) || (state == SIM_VACANT && w->succeeded) ||
                 state == SIM_JOINING))
        events[count++] = (struct event){ADMIT, rank, k, 0};
    return count;
}

/* All possible events except faults. */
static unsigned find_events(const struct sim *s, struct event *events)
{
    unsigned count = 0;

    for (unsigned k = 0; k < s->plan.servers; k++) {
        const struct sim_server *v = &s->servers[k];

        for (unsigned rank = 0; rank < s->plan.ranks; rank++)
            count += find_rank_events(s, k, rank, events + count);
        if (v->durability == SIM_REPLICA && v->replicated < v->record_count)
            events[count++] = (struct event){REPLICATE, 0, k, 0};
        if (v->durability == SIM_REPLICA && v->acknowledged < v->replicated)
            events[count++] = (struct event){ACKNOWLEDGE, 0, k, 0};
    }
    return count;
}

static void run_event(struct sim *s, const struct event *e)
{
    struct sim_server *v = &s->servers[e->server];
    struct sim_link *link = &s->workers[e->rank].links[e->server];
    struct sim_message m;

    switch (e->kind) {
    case UP:
        m = sim_dequeue(&link->up[e->lane]);
        sim_server_take(v, e->rank, &m);
        break;
    case DOWN:
        m = sim_dequeue(&link->down[e->lane]);
        sim_check_arrival(s, e->rank, &m);
        sim_worker_decode(s, e->rank, &m);
        sim_check_reply(s, e->rank, &m);
        sim_worker_take_reply(s, e->rank, &m);
        break;
    case RECONNECT:
        if (v->ranks[e->rank].state == SIM_HELD)
            sim_worker_reconnect(s, e->rank, e->server);
        else
            kill_worker(s, e->rank); /* the rank was taken from it */
        break;
    case LOSE:
        sim_server_lose(v, e->rank);
        break;
    case ADMIT:
        sim_server_admit(v, e->rank);
        break;
    case REPLICATE:
        sim_server_replicate(v);
        break;
    case ACKNOWLEDGE:
        sim_server_acknowledge(v);
        break;
    }
}

static void inject_fault(struct sim *s)
{
    unsigned rank = sim_below(s, s->plan.ranks), kind = sim_below(s, 8);
    struct sim_server *v = &s->servers[sim_below(s, s->plan.servers)];

    if (kind < 3 && s->workers[rank].links[v->index].connected) {
        s->breaks++;
        sim_break(v, rank);
    } else if (kind == 3 && may_lose(s, rank)) {
        kill_worker(s, rank);
    } else if (kind == 4 && may_lose(s, rank)) {
        give_up(v, rank);
    } else if (v->durability == SIM_VOLATILE) {
        return;
    } else if (kind == 5) {
        sim_server_crash(v);
    } else if (kind == 6) {
        v->die_in = 1 + sim_below(s, 5);
    } else if (v->durability == SIM_JOURNAL) {
        sim_server_snapshot(v);
    }
}

static bool is_over(const struct sim *s)
{
    for (unsigned rank = 0; rank < s->plan.ranks; rank++) {
        const struct sim_worker *w = &s->workers[rank];

        if (w->life == SIM_DONE)
            continue;
        if (w->life == SIM_ALIVE || w->succeeded)
            return false;
        for (unsigned k = 0; k < s->plan.servers; k++)
            if (s->servers[k].ranks[rank].state != SIM_VACANT)
                return false;
    }
    return true;
}

/* Sometimes start a snapshot, or continue the one under way. */
static bool take_snapshot(struct sim *s)
{
    struct sim_server *v = &s->servers[sim_below(s, s->plan.servers)];

    if (v->durability != SIM_JOURNAL || sim_below(s, v->taken > 0 ? 4 : 128) != 0)
        return false;
    sim_server_snapshot(v);
    return true;
}

/* Run one job to its end. */
static void run_job(struct sim *s)
{
    unsigned faults = s->plan.faults;

    for (unsigned rank = 0; rank < s->plan.ranks; rank++)
        sim_worker_start(s, rank, false);
    for (unsigned i = 0; !is_over(s); i++) {
        struct event events[EVENTS];
        unsigned count = find_events(s, events);

        if (faults > 0 && sim_below(s, s->plan.calm) == 0) {
            faults--;
            inject_fault(s);
        } else if (take_snapshot(s)) {
            continue;
        } else if (count > 0) {
            run_event(s, &events[sim_below(s, count)]);
        } else {
            sim_fail("no event is possible");
        }
        if (i == EVENTS_MAX)
            sim_fail("no end after %u events", i);
    }
    sim_check_end(s);
}

/* ------------------------------------------------------------------ seeds */

/* fp16 and bf16 only where values are exact in 16 bits: integers, not shares such as 1/3. */
static struct compression choose_codec(struct sim *s, const struct sim_plan *p)
{
    enum codec_kind kind =
        (enum codec_kind)sim_below(s, CODEC_SELECTED_ROWS); /* without row selection */
    bool exact = p->exact || consistency_steps_per_push(&p->consistency);

    if ((kind == CODEC_FP16 || kind == CODEC_BF16) && !exact)
        kind = CODEC_NONE;
    return compression_make(CODEC_NONE, (uint32_t)kind, CODEC_PPM / 4);
}

static struct sim_plan choose_plan(struct sim *s)
{
    struct sim_plan p = {.ranks = 1 + sim_below(s, SIM_RANKS),
                         .partitions = 1 + sim_below(s, SIM_PARTITIONS),
                         .lanes = 1 + sim_below(s, SIM_LANES),
                         .rounds = 2 + sim_below(s, SIM_ROUNDS - 1),
                         .update = true,
                         .on_loss = (enum sim_loss)sim_below(s, 3),
                         .durability = (enum sim_durability)sim_below(s, 3),
                         .faults = sim_below(s, 12),
                         .calm = 4u << sim_below(s, 5)};
    unsigned mode = sim_below(s, 6);

    p.servers = 1 + sim_below(s, p.partitions < SIM_SERVERS ? p.partitions : SIM_SERVERS);
    if (mode < 2) {
        p.exact = true;
        p.update = p.on_loss == SIM_WAIT || sim_below(s, 2) == 0;
        if (p.on_loss == SIM_SHRINK)
            p.on_loss = SIM_FAIL;
    } else if (mode == 2) {
        p.update = p.on_loss == SIM_WAIT || sim_below(s, 2) == 0;
    } else if (mode == 3) {
        p.consistency.backup = sim_below(s, p.ranks);
    } else if (mode == 4) {
        p.consistency.mode = CONSISTENCY_SSP;
        p.consistency.staleness = sim_below(s, 4);
    } else {
        p.consistency.mode = CONSISTENCY_ASP;
    }
    p.compression = choose_codec(s, &p);
    return p;
}

static void run_plan(struct sim *s, const struct sim_plan *plan, struct sim_record *records,
                     float *history, bool writes_history)
{
    memset(s, 0, sizeof(*s));
    s->random = seed * 977 + !writes_history;
    s->plan = *plan;
    s->history = history;
    s->writes_history = writes_history;
    assert_ok(shard_map_make((plan->partitions - 1) * SIM_FULL + SIM_LAST, PARTITION_BYTES_MIN,
                             plan->servers, &s->map, &err));
    for (unsigned k = 0; k < plan->servers; k++)
        sim_server_open(s, k, records + k * SIM_RECORDS);
    run_job(s);
    for (unsigned k = 0; k < plan->servers; k++)
        sim_server_close(&s->servers[k]);
    shard_map_release(&s->map);
}

static void add_counts(struct sim *total, const struct sim *s)
{
    total->crashes += s->crashes;
    total->failovers += s->failovers;
    total->kills += s->kills;
    total->newcomers += s->newcomers;
    total->breaks += s->breaks;
    total->repeats += s->repeats;
    total->coded += s->coded;
}

static void run_seed(struct sim_record *records, float *history, struct sim *total, bool verbose)
{
    struct sim_plan plan, calm;

    sim.random = seed;
    plan = calm = choose_plan(&sim);
    calm.faults = 0;
    calm.durability = SIM_VOLATILE;
    sim.plan = plan;
    if (verbose)
        print_plan(&sim, stdout);
    if (plan.exact)
        run_plan(&sim, &calm, records, history, true);
    run_plan(&sim, &plan, records, history, false);
    add_counts(total, &sim);
}

static uint64_t env_number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);

    return text ? strtoull(text, NULL, 10) : otherwise;
}

START_TEST(test_whole_jobs)
{
    struct sim_record *records = calloc(SIM_SERVERS * SIM_RECORDS, sizeof(*records));
    float *history = calloc(SIM_ROUNDS + 1, SIM_ELEMENTS * sizeof(*history));
    static struct sim total;
    uint64_t count = env_number("SPARRING_SEEDS", SEEDS_DEFAULT);

    ck_assert(records && history);
    if (getenv("SPARRING_SEED")) {
        seed = env_number("SPARRING_SEED", 0);
        run_seed(records, history, &total, true);
    } else {
        for (seed = 1; seed <= count; seed++)
            run_seed(records, history, &total, false);
    }
    printf("%zu crashes, %zu of them failovers, %zu workers killed, %zu newcomers, %zu broken "
           "connections, %zu messages sent again, %zu coded replies\n",
           total.crashes, total.failovers, total.kills, total.newcomers, total.breaks,
           total.repeats, total.coded);
    if (!getenv("SPARRING_SEED") && count >= SEEDS_DEFAULT)
        ck_assert(total.crashes > total.failovers && total.failovers > 0 && total.kills > 0 &&
                  total.newcomers > 0 && total.breaks > 0 && total.repeats > 0 && total.coded > 0);
    free(records);
    free(history);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("simulation", 120 + (double)env_number("SPARRING_SEEDS", 0) / 20,
                       TEST(test_whole_jobs));
}
