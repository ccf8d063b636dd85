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

#define WARM_UP  4
#define NS_PER_S 1e9

#define WINDOW     0.75 /* mean of what a link and its queue hold, of their size */
#define WEIGHT_MIN (2.0 / 3)
#define WEIGHT_MAX (4.0 / 3)

/* One rank, or several that do the same at the same time. */
struct rank {
    unsigned size;
    double begin_s; /* less what the forward waited for its parameters */
    unsigned step;
    size_t ready;   /* partitions pushed in this step */
    size_t awaited; /* replies */
    unsigned done;  /* steps */
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
    double server_size;    /* servers that one stands for */
    double element_bytes;  /* of the map's elements */
    size_t rank_hosts;     /* the hosts of ranks come first, those of dedicated servers behind */
    double now_s;
    struct random random;
    struct connection *connections; /* owned: (direction, rank, server) */
    struct flows flows;             /* its memory is owned */
    uint32_t *messages;             /* owned */
    struct rank *states;            /* owned */
    double *ends_s;                 /* owned: (rank, step that it has done) */
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

    return (double)s->map->partitions[partition].count * s->element_bytes * s->states[c->rank].size;
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

    return cost_ready_at(&s->in->load, (double)(p->offset + p->count) * s->element_bytes);
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

/* Hosts that stand for several have links between them. */
static bool is_local(const struct simulation *s, const struct connection *c)
{
    return c->from == c->to && s->ranks == s->in->job.ranks;
}

static double software_s(const struct simulation *s)
{
    return s->in->machine.exchange_s / 2;
}

static void send_message(struct simulation *s, struct connection *c, uint32_t partition)
{
    if (is_local(s, c)) {
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
    if (s->in->network.queue_s <= 0 && s->in->job.servers == 1 && !c->is_reply)
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
    for (size_t i = 0; i < 2 * s->servers; i++) {
        struct connection *c = connection_of(s, i % 2, rank, i / 2);

        c->weight = r->size * draw_weight(s, c);
        c->limit = s->server_size *
                   fmin(r->size * link_rate(s->in->machine.exchange_byte_s), window_rate(s, c));
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

static double *step_ends_s(const struct simulation *s, size_t rank)
{
    return &s->ends_s[rank * SIMULATION_STEPS];
}

static void take_reply(struct simulation *s, unsigned rank, uint32_t partition)
{
    struct rank *r = &s->states[rank];
    const bool overlaps = s->in->job.overlaps_forward;
    double begin_s, end_s;

    flows_replied(&s->flows, connection_of(s, false, rank, s->map->partitions[partition].server),
                  partition);
    s->came_s[rank * s->map->length + partition] = s->now_s;
    if (--r->awaited > 0)
        return;
    end_s = r->begin_s + cost_compute_s(&s->in->load, rank, r->step);
    end_s = (overlaps ? end_s : fmax(s->now_s, end_s)) + s->in->load.other_s;
    step_ends_s(s, rank)[r->done++] = end_s;
    r->step = next_step(s, rank);
    begin_s = end_s;
    if (overlaps)
        begin_s = forward_begin_s(s, rank, end_s + delay_s(s, rank)) - delay_s(s, rank);
    if (r->step < SIMULATION_STEPS)
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

/* Of the steps without the first ones.  Where ranks do not wait for each other, of those whose
 * middle lies between when one rank is warm and when the first ends: alone a rank is faster. */
static double mean_step_s(const struct simulation *s)
{
    const bool is_lockstep = consistency_is_lockstep(&s->in->job.consistency);
    double warm_s = DBL_MAX, ended_s = DBL_MAX, sum_s = 0, count = 0;

    for (size_t r = 0; r < s->ranks; r++) {
        const unsigned done = s->states[r].done;

        warm_s = done > WARM_UP ? fmin(warm_s, step_ends_s(s, r)[WARM_UP - 1]) : warm_s;
        ended_s = fmin(ended_s, step_ends_s(s, r)[done - 1]);
    }
    for (size_t r = 0; r < s->ranks; r++) {
        double begin_s = 0;

        for (size_t i = 0; i < s->states[r].done; i++) {
            const double end_s = step_ends_s(s, r)[i], middle_s = (begin_s + end_s) / 2;

            if (is_lockstep ? i >= WARM_UP : middle_s > warm_s && middle_s < ended_s) {
                sum_s += s->states[r].size * (end_s - begin_s);
                count += s->states[r].size;
            }
            begin_s = end_s;
        }
    }
    return sum_s / count;
}

/* ---- memory */

static void make_connection(struct simulation *s, struct connection *c, uint32_t **messages)
{
    const unsigned rank_host = (unsigned)(c->rank * s->rank_hosts / s->ranks);
    const unsigned server_host =
        (unsigned)(s->in->job.is_colocated ? c->server : s->rank_hosts + c->server);
    const uint32_t *held;

    c->from = c->is_reply ? server_host : rank_host;
    c->to = c->is_reply ? rank_host : server_host;
    c->messages = *messages;
    c->capacity = shard_map_held(s->map, c->server, &held);
    *messages += c->capacity;
}

static void make_connections(struct simulation *s)
{
    uint32_t *messages = s->messages;

    for (int way = 0; way < 2; way++)
        for (unsigned rank = 0; rank < s->ranks; rank++)
            for (unsigned server = 0; server < s->servers; server++) {
                struct connection *c = connection_of(s, way == 1, rank, server);

                c->is_reply = way == 1;
                c->ahead.most = c->is_reply || s->in->job.in_order ? 0 : s->in->job.pushes_ahead;
                c->rank = rank;
                c->server = server;
                make_connection(s, c, &messages);
            }
}

/* Ranks that stand for several have as many hosts as those. */
static void make_hosts(struct simulation *s)
{
    const struct cost_job *job = &s->in->job;

    for (size_t h = 0; h < s->flows.host_count; h++)
        s->flows.hosts[h].rate =
            h < s->rank_hosts ? 0 : s->server_size * link_rate(s->in->network.server_byte_s);
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
    free(s->flows.unfilled);
    free(s->messages);
    free(s->states);
    free(s->ends_s);
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
        status = mem_calloc(2 * s->flows.host_count, sizeof(struct flow_link *), what,
                            &s->flows.unfilled, err);
    if (status == STATUS_OK)
        status = mem_calloc(messages, sizeof(*s->messages), what, &s->messages, err);
    if (status == STATUS_OK)
        status = mem_calloc(s->ranks, sizeof(*s->states), what, &s->states, err);
    if (status == STATUS_OK)
        status = mem_calloc(s->ranks * SIMULATION_STEPS, sizeof(*s->ends_s), what, &s->ends_s, err);
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

enum status simulation_run(const struct cost_inputs *in, const struct shard_map *map,
                           const struct simulation_size *size, uint64_t seed, double *ret_step_s,
                           struct error *err)
{
    struct simulation s = {.in = in,
                           .map = map,
                           .ranks = size->ranks,
                           .servers = map->server_count,
                           .server_size = size->server_size,
                           .element_bytes = size->element_bytes};
    enum status status;

    s.rank_hosts = s.ranks < in->job.ranks ? s.ranks : cost_hosts(&in->job);
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
        if (!s.failed)
            *ret_step_s = mean_step_s(&s);
    }
    if (s.failed)
        status = error_set(err, STATUS_NO_MEMORY, "no memory for a simulation");
    release(&s);
    return status;
}
