/*
 * simulation: the events are that a partition is ready and that a message arrives; between them
 * messages flow (flows.h).
 */
#include "experiments/predict/simulation.h"

#include "common/base/memory.h"
#include "common/base/priority_queue.h"
#include "common/base/random.h"
#include "experiments/predict/flows.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#define STEPS       24
#define WARM_UP     4
#define RANKS_LEAST 16 /* that stand for more */
#define NS_PER_S    1e9
#define WINDOW      0.75 /* mean of what a link and its queue hold, of their size */
#define WEIGHT_MIN  (2.0 / 3)
#define WEIGHT_MAX  (4.0 / 3)

/* One rank, or several that do the same at the same time. */
struct rank {
    unsigned size;
    double begin_s; /* less what the forward waited for its parameters */
    unsigned step;
    size_t ready;   /* partitions pushed in this step */
    size_t awaited; /* replies */
    unsigned done;  /* steps since warm_s */
    double warm_s, end_s;
};

struct event {
    double at_s;
    unsigned rank;
    const struct connection *arrives_on; /* NULL: the next partition of the rank is ready */
    uint32_t partition;
};

/* What a server knows of a rank and a partition. */
struct progress {
    uint64_t pushes;
    uint64_t round; /* that its next push is for */
    bool is_waiting;
};

struct simulation {
    const struct cost_inputs *in;
    const struct shard_map *map;
    size_t ranks, servers; /* ranks: those that stand for several count once */
    size_t rank_hosts;     /* the hosts of ranks come first, those of dedicated servers behind */
    double now_s;
    struct random random;
    struct connection *connections; /* owned: (direction, rank, server) */
    struct flows flows;             /* its memory is owned */
    uint32_t *messages;             /* owned */
    struct rank *states;            /* owned */
    struct progress *progress;      /* owned: (partition, rank) */
    double *came_s;                 /* owned: (rank, partition), its last reply */
    uint64_t *rounds;               /* owned, by partition: that have ended */
    struct event *events;           /* owned */
    struct event **unused;
    size_t unused_count;
    struct priority_queue queue;
    bool failed; /* no memory for an event */
};

static struct connection *connection_of(struct simulation *s, bool is_reply, size_t rank,
                                        size_t server)
{
    return &s->connections[((is_reply ? s->ranks : 0) + rank) * s->servers + server];
}

static double message_bytes(const void *user, const struct connection *c, uint32_t partition)
{
    const struct simulation *s = user;

    return (double)s->map->partitions[partition].count * sizeof(float) * s->states[c->rank].size;
}

/* ---- events */

static void add_event(struct simulation *s, double at_s, unsigned rank, const struct connection *on,
                      uint32_t partition)
{
    struct event *e = s->unused[--s->unused_count];

    *e = (struct event){at_s, rank, on, partition};
    s->failed =
        !priority_queue_push(&s->queue, UINT64_MAX - (uint64_t)(at_s * NS_PER_S), e) || s->failed;
}

/* When the gradients of a partition are ready, after the step began. */
static double ready_at(const struct simulation *s, size_t partition)
{
    const struct partition *p = &s->map->partitions[partition];

    return cost_ready_at(&s->in->load, (double)(p->offset + p->count) * sizeof(float));
}

/* By how much this step of a rank is longer than others, before its forward. */
static double delay_s(const struct simulation *s, unsigned rank)
{
    return cost_compute_s(&s->in->load, rank, s->states[rank].step) - s->in->load.compute_s;
}

/* When the rank has the gradients of its next partition. */
static void await_partition(struct simulation *s, unsigned rank)
{
    const struct rank *r = &s->states[rank];

    add_event(s, r->begin_s + fmax(0, ready_at(s, r->ready) + delay_s(s, rank)), rank, NULL, 0);
}

/* ---- messages */

static bool is_local(const struct connection *c)
{
    return c->from == c->to;
}

static double software_s(const struct simulation *s)
{
    return s->in->machine.exchange_s / 2;
}

static void send_message(struct simulation *s, struct connection *c, uint32_t partition)
{
    if (is_local(c)) {
        add_event(s, s->now_s + software_s(s), c->rank, c, partition);
        return;
    }
    flows_send(&s->flows, c, partition);
}

/* From now on it is on its way. */
static void arrive_later(void *user, const struct connection *c, uint32_t partition)
{
    struct simulation *s = user;

    add_event(s, s->now_s + s->in->network.latency_s + software_s(s), c->rank, c, partition);
}

/* ---- the job */

static double link_rate(double byte_s)
{
    return byte_s > 0 ? 1 / byte_s : FLOWS_RATE_MAX;
}

/* A flow's share of a link with others: equal where no packet is lost and each comes from another
 * host. */
static double draw_weight(struct simulation *s, const struct connection *c)
{
    if (s->in->network.queue_s <= 0 && s->servers == 1 && !c->is_reply)
        return 1;
    return WEIGHT_MIN + (WEIGHT_MAX - WEIGHT_MIN) * random_u32(&s->random) / UINT32_MAX;
}

/* A flow alone on the server's link: its window in a round trip, the queue being empty. */
static double window_rate(const struct simulation *s, const struct connection *c)
{
    const struct cost_network *n = &s->in->network;
    const bool is_dedicated = (c->is_reply ? c->from : c->to) >= s->rank_hosts;
    const double flows = is_dedicated ? s->in->job.ranks : fmax(1, (double)s->in->job.ranks - 1);
    const double trip_s = fmax(2 * n->latency_s, 1e-9);

    if (n->queue_s <= 0)
        return FLOWS_RATE_MAX;
    return c->weight * WINDOW / flows * link_rate(is_dedicated ? n->server_byte_s : n->byte_s) *
           (1 + n->queue_s / trip_s);
}

static void begin_step(struct simulation *s, unsigned rank, double at_s)
{
    struct rank *r = &s->states[rank];

    r->begin_s = at_s;
    r->ready = 0;
    r->awaited = s->map->length;
    s->flows.has_changed = true;
    for (size_t i = 0; i < 2 * s->servers; i++) {
        struct connection *c = connection_of(s, i % 2, rank, i / 2);

        c->weight = r->size * draw_weight(s, c);
        c->limit = fmin(r->size * link_rate(s->in->machine.exchange_byte_s), window_rate(s, c));
    }
    await_partition(s, rank);
}

static void push_partition(struct simulation *s, unsigned rank)
{
    struct rank *r = &s->states[rank];
    const uint32_t partition = (uint32_t)r->ready++;

    send_message(s, connection_of(s, false, rank, s->map->partitions[partition].server), partition);
    if (r->ready < s->map->length)
        await_partition(s, rank);
}

static struct progress *progress_of(struct simulation *s, uint32_t partition)
{
    return &s->progress[partition * s->ranks];
}

static void reply(struct simulation *s, unsigned rank, uint32_t partition)
{
    struct progress *own = &progress_of(s, partition)[rank];

    own->is_waiting = false;
    own->round = s->rounds[partition];
    send_message(s, connection_of(s, true, rank, s->map->partitions[partition].server), partition);
}

/* A round ends with as many pushes as it needs; one that comes later is dropped, and its rank gets
 * the newest values. */
static void sum_round(struct simulation *s, unsigned rank, uint32_t partition)
{
    struct progress *members = progress_of(s, partition);
    size_t pushed = 0;

    if (members[rank].round < s->rounds[partition]) {
        reply(s, rank, partition);
        return;
    }
    for (size_t r = 0; r < s->ranks; r++)
        pushed += members[r].is_waiting ? s->states[r].size : 0;
    if (pushed + s->in->job.consistency.backup < s->in->job.ranks)
        return;
    s->rounds[partition]++;
    for (unsigned r = 0; r < s->ranks; r++)
        if (members[r].is_waiting)
            reply(s, r, partition);
}

/* A rank reads once every rank has pushed as often as it has, but for the staleness. */
static void answer_stale(struct simulation *s, uint32_t partition)
{
    struct progress *members = progress_of(s, partition);
    uint64_t least = UINT64_MAX;

    for (size_t r = 0; r < s->ranks; r++)
        least = members[r].pushes < least ? members[r].pushes : least;
    for (unsigned r = 0; r < s->ranks; r++)
        if (members[r].is_waiting && members[r].pushes <= least + s->in->job.consistency.staleness)
            reply(s, r, partition);
}

static void take_push(struct simulation *s, unsigned rank, uint32_t partition)
{
    struct progress *own = &progress_of(s, partition)[rank];

    own->pushes++;
    own->is_waiting = true;
    if (s->in->job.consistency.mode == CONSISTENCY_ASP)
        reply(s, rank, partition);
    else if (s->in->job.consistency.mode == CONSISTENCY_SSP)
        answer_stale(s, partition);
    else
        sum_round(s, rank, partition);
}

/* A rank whose pushes came too late goes on with the newest round. */
static unsigned next_step(struct simulation *s, unsigned rank)
{
    const struct progress *newest = &progress_of(s, (uint32_t)s->map->length - 1)[rank];

    return s->in->job.consistency.backup > 0 ? (unsigned)newest->round : s->states[rank].step + 1;
}

/* When a forward that is free to begin at at_s ends, less its length: where its layers wait for
 * parameters, later than at_s.  A layer takes as large a part of forward as of backward. */
static double forward_begin_s(const struct simulation *s, unsigned rank, double at_s)
{
    const struct cost_load *load = &s->in->load;
    const double backward_s = ready_at(s, s->map->length - 1) - load->forward_s;
    double end_s = at_s;

    for (size_t i = s->map->length; i-- > 0;) {
        const double layer_s = ready_at(s, i) - (i > 0 ? ready_at(s, i - 1) : load->forward_s);

        end_s = fmax(end_s, s->came_s[rank * s->map->length + i]);
        if (backward_s > 0)
            end_s += load->forward_s * layer_s / backward_s;
    }
    return fmax(at_s, end_s - load->forward_s);
}

static void take_reply(struct simulation *s, unsigned rank, uint32_t partition)
{
    struct rank *r = &s->states[rank];
    const bool is_warm = r->step >= WARM_UP, overlaps = s->in->job.overlaps_forward;
    double begin_s;

    s->came_s[rank * s->map->length + partition] = s->now_s;
    if (--r->awaited > 0)
        return;
    r->end_s = r->begin_s + cost_compute_s(&s->in->load, rank, r->step);
    r->end_s = (overlaps ? r->end_s : fmax(s->now_s, r->end_s)) + s->in->load.other_s;
    r->step = next_step(s, rank);
    begin_s = r->end_s;
    if (overlaps)
        begin_s = forward_begin_s(s, rank, r->end_s + delay_s(s, rank)) - delay_s(s, rank);
    r->done += is_warm;
    if (!is_warm && r->step >= WARM_UP)
        r->warm_s = r->end_s;
    if (r->step < STEPS)
        begin_step(s, rank, begin_s);
}

static void run_event(struct simulation *s, const struct event *e)
{
    if (!e->arrives_on)
        push_partition(s, e->rank);
    else if (!e->arrives_on->is_reply)
        take_push(s, e->rank, e->partition);
    else
        take_reply(s, e->rank, e->partition);
}

static void play(struct simulation *s)
{
    const struct event *e;

    for (unsigned r = 0; r < s->ranks; r++)
        begin_step(s, r, 0);
    while ((e = priority_queue_first(&s->queue)) || s->flows.active_count > 0) {
        const double event_s = e ? fmax(0, e->at_s - s->now_s) : DBL_MAX;
        const double passed_s = fmin(event_s, flows_next_s(&s->flows));

        /* Without the rounding of the difference, where an event is next. */
        s->now_s = e && passed_s == event_s ? fmax(s->now_s, e->at_s) : s->now_s + passed_s;
        flows_advance(&s->flows, passed_s);
        while ((e = priority_queue_first(&s->queue)) && e->at_s <= s->now_s) {
            struct event now = *e;

            s->unused[s->unused_count++] = priority_queue_pop(&s->queue);
            run_event(s, &now);
        }
    }
}

/* ---- memory */

static void make_connections(struct simulation *s)
{
    const bool is_colocated = s->in->job.is_colocated;
    uint32_t *messages = s->messages;

    for (size_t i = 0; i < 2 * s->ranks * s->servers; i++) {
        struct connection *c = &s->connections[i];
        const uint32_t *held;
        unsigned rank_host, server_host;

        c->is_reply = i >= s->ranks * s->servers;
        c->rank = (unsigned)(i / s->servers % s->ranks);
        c->server = (unsigned)(i % s->servers);
        rank_host = (unsigned)(c->rank * s->rank_hosts / s->ranks);
        server_host = (unsigned)(is_colocated ? c->server : s->rank_hosts + c->server);
        c->from = c->is_reply ? server_host : rank_host;
        c->to = c->is_reply ? rank_host : server_host;
        c->messages = messages;
        c->capacity = shard_map_held(s->map, c->server, &held);
        messages += c->capacity;
    }
}

/* Ranks that stand for several have as many hosts as those. */
static void make_hosts(struct simulation *s)
{
    const struct cost_job *job = &s->in->job;

    for (size_t h = 0; h < s->flows.host_count; h++)
        s->flows.hosts[h].rate = h < s->rank_hosts ? 0 : link_rate(s->in->network.server_byte_s);
    for (size_t r = 0; r < s->ranks; r++) {
        s->states[r].size = (unsigned)((job->ranks - r - 1) / s->ranks + 1);
        s->flows.hosts[r * s->rank_hosts / s->ranks].rate +=
            s->states[r].size * link_rate(s->in->network.byte_s) / cost_ranks_per_host(job);
    }
}

static void release(struct simulation *s)
{
    free(s->connections);
    free(s->flows.active);
    free(s->messages);
    free(s->states);
    free(s->flows.hosts);
    free(s->progress);
    free(s->came_s);
    free(s->rounds);
    free(s->events);
    free(s->unused);
    priority_queue_release(&s->queue);
}

static enum status allocate(struct simulation *s, struct error *err)
{
    const size_t connections = 2 * s->ranks * s->servers, messages = 2 * s->ranks * s->map->length;
    const size_t events = messages + s->ranks;
    const char *what = "a simulation";
    enum status status =
        mem_calloc(connections, sizeof(*s->connections), what, &s->connections, err);

    if (status == STATUS_OK)
        status = mem_calloc(connections, sizeof(struct connection *), what, &s->flows.active, err);
    if (status == STATUS_OK)
        status = mem_calloc(messages, sizeof(*s->messages), what, &s->messages, err);
    if (status == STATUS_OK)
        status = mem_calloc(s->ranks, sizeof(*s->states), what, &s->states, err);
    if (status == STATUS_OK)
        status =
            mem_calloc(s->flows.host_count, sizeof(*s->flows.hosts), what, &s->flows.hosts, err);
    if (status == STATUS_OK)
        status =
            mem_calloc(s->map->length * s->ranks, sizeof(*s->progress), what, &s->progress, err);
    if (status == STATUS_OK)
        status = mem_calloc(s->map->length * s->ranks, sizeof(*s->came_s), what, &s->came_s, err);
    if (status == STATUS_OK)
        status = mem_calloc(s->map->length, sizeof(*s->rounds), what, &s->rounds, err);
    if (status == STATUS_OK)
        status = mem_calloc(events, sizeof(*s->events), what, &s->events, err);
    if (status == STATUS_OK)
        status = mem_calloc(events, sizeof(struct event *), what, &s->unused, err);
    for (size_t i = 0; i < events && status == STATUS_OK; i++)
        s->unused[s->unused_count++] = &s->events[i];
    return status;
}

unsigned simulation_ranks(const struct cost_job *job, double partitions, double work_max)
{
    const double events = 2 * STEPS * partitions, flows = 2.0 * job->servers; /* of one rank */
    const double most = sqrt(work_max / events / flows);

    if (job->ranks <= most)
        return job->ranks;
    return most < RANKS_LEAST || job->is_colocated || job->consistency.backup > 0 ? 0
                                                                                  : (unsigned)most;
}

enum status simulation_run(const struct cost_inputs *in, const struct shard_map *map,
                           unsigned ranks, uint64_t seed, double *ret_step_s, struct error *err)
{
    struct simulation s = {.in = in, .map = map, .ranks = ranks, .servers = map->server_count};
    double sum_s = 0, count = 0;
    enum status status;

    s.rank_hosts = ranks < in->job.ranks ? ranks : cost_hosts(&in->job);
    s.flows.host_count = s.rank_hosts + s.servers;
    if (in->job.is_colocated) /* one rank on each host */
        s.flows.host_count = s.servers > s.ranks ? s.servers : s.ranks;
    status = allocate(&s, err);
    if (status == STATUS_OK) {
        random_seed(&s.random, seed);
        s.flows.in_order = in->job.in_order;
        s.flows.bytes = message_bytes;
        s.flows.ended = arrive_later;
        s.flows.user = &s;
        make_hosts(&s);
        make_connections(&s);
        play(&s);
        for (size_t r = 0; r < s.ranks; r++) {
            sum_s += s.states[r].size * (s.states[r].end_s - s.states[r].warm_s);
            count += (double)s.states[r].size * s.states[r].done;
        }
        *ret_step_s = sum_s / count;
    }
    if (s.failed)
        status = error_set(err, STATUS_NO_MEMORY, "no memory for a simulation");
    release(&s);
    return status;
}
