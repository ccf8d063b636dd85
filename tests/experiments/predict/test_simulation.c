/*
 * Simulated steps of jobs with servers: exact where nothing is shared, between bounds where links
 * are, the same for the same seed, and twice as long when all times are.
 */
#include "experiments/predict/simulation.h"
#include "tests/support/support.h"

#include <math.h>

#define MIB   1048576.0
#define BETA  (8 / 1e9)
#define QUEUE 1000.0 /* so long that every window fills the link */

static struct error err;
static struct shard_map map;

static void teardown(void)
{
    shard_map_release(&map);
}

static const struct cost_ready at_the_end[] = {{4 * MIB, 0.05}};
static const struct cost_ready step_by_step[] = {
    {1 * MIB, 0.02}, {2 * MIB, 0.03}, {3 * MIB, 0.04}, {4 * MIB, 0.05}};

static struct cost_inputs inputs_of(unsigned ranks, unsigned servers, size_t partition)
{
    shard_map_release(&map);
    assert_ok(shard_map_make((size_t)MIB, partition, servers, &map, &err));
    return (struct cost_inputs){
        .side = COST_SERVERS,
        .network = {.byte_s = BETA, .server_byte_s = BETA, .queue_s = QUEUE},
        .load = {.ready = at_the_end, .ready_count = 1, .compute_s = 0.05, .other_s = 0.001},
        .job = {.ranks = ranks, .servers = servers}};
}

static double simulate_with(const struct cost_inputs *in, unsigned ranks, uint64_t seed)
{
    double step_s = 0;

    assert_ok(simulation_run(
        in, &map,
        &(struct simulation_size){.ranks = ranks, .server_size = 1, .element_bytes = sizeof(float)},
        seed, &step_s, &err));
    return step_s;
}

static double simulate(const struct cost_inputs *in, uint64_t seed)
{
    return simulate_with(in, in->job.ranks, seed);
}

static void assert_near(double value, double wanted)
{
    ck_assert_msg(fabs(value - wanted) <= 1e-6 * wanted, "%.12g, wanted %.12g", value, wanted);
}

/* Links that take no time take a little. */
static void assert_about(double value, double wanted)
{
    ck_assert_msg(fabs(value - wanted) <= 1e-5 * wanted, "%.12g, wanted %.12g", value, wanted);
}

/* One rank, one server: the reply of the last partition follows its push. */
START_TEST(test_one_rank)
{
    struct cost_inputs in = inputs_of(1, 1, 1 << 20);

    assert_near(simulate(&in, 1), 0.051 + 5 * MIB * BETA);
    in.network.latency_s = 0.01;
    in.machine.exchange_s = 0.002;
    assert_near(simulate(&in, 1), 0.051 + 5 * MIB * BETA + 2 * 0.01 + 0.002);
    /* Three partitions are pushed while the last is computed. */
    in.load.ready = step_by_step;
    in.load.ready_count = 4;
    assert_near(simulate(&in, 1), 0.051 + 2 * MIB * BETA + 2 * 0.01 + 0.002);
    /* Software that is slower than the link. */
    in.machine.exchange_byte_s = 3 * BETA;
    assert_near(simulate(&in, 1), 0.02 + 0.001 + 5 * MIB * 3 * BETA + 2 * 0.01 + 0.002);
}
END_TEST

/* Two servers: the rank's link carries the pushes one beside the other. */
START_TEST(test_two_servers)
{
    struct cost_inputs in = inputs_of(1, 2, 2 << 20);

    in.network.server_byte_s = BETA / 100;
    ck_assert(simulate(&in, 1) >= 0.051 + 6 * MIB * BETA);
    ck_assert(simulate(&in, 1) <= 0.051 + 8 * MIB * BETA);
}
END_TEST

/* Ranks of one host share its link. */
START_TEST(test_ranks_of_one_host)
{
    struct cost_inputs in = inputs_of(4, 1, 4 << 20);

    in.network.server_byte_s = BETA / 1000;
    assert_about(simulate(&in, 1), 0.051 + 8 * MIB * BETA);
    in.job.ranks_per_host = 2;
    /* The first of the two to have its reply computes and pushes while the other still pulls. */
    ck_assert(simulate(&in, 1) > 0.051 + 12 * MIB * BETA);
    ck_assert(simulate(&in, 1) <= 0.051 + 16 * MIB * BETA + 1e-9);
}
END_TEST

/* What is beside its rank crosses no link. */
START_TEST(test_colocated)
{
    struct cost_inputs in = inputs_of(1, 1, 1 << 20);

    in.job.is_colocated = true;
    assert_near(simulate(&in, 1), 0.051);
    in = inputs_of(2, 1, 4 << 20);
    in.job.is_colocated = true; /* only rank 1 pushes over a link */
    assert_near(simulate(&in, 1), 0.051 + 8 * MIB * BETA);
}
END_TEST

/* Every server's link carries the bytes of all ranks in each direction, and every rank's its own; a
 * step is never longer than all pushes, then all replies, one after the other over one link. */
START_TEST(test_bounds)
{
    for (int i = 0; i < SUPPORT_DRAWS(100, 20); i++) {
        const unsigned ranks = 1 + (unsigned)(support_random() * 6);
        const unsigned servers = 1 + (unsigned)(support_random() * 4);
        struct cost_inputs in = inputs_of(ranks, servers, 256 << 10);
        double step_s, most = 0, again;

        in.load.ready = step_by_step;
        in.load.ready_count = 4;
        in.network.server_byte_s = BETA * (0.2 + support_random());
        in.network.latency_s = 0.01 * support_random();
        in.job.is_colocated = support_random() < 0.3;
        for (unsigned k = 0; k < servers; k++)
            most = fmax(most, (double)map.server_elements[k] * sizeof(float));
        step_s = simulate(&in, (uint64_t)i);
        ck_assert_msg(step_s >= 0.051 - 1e-9, "%.9g", step_s);
        if (!in.job.is_colocated)
            ck_assert(step_s >=
                      fmax(ranks * most * in.network.server_byte_s, 4 * MIB * BETA) - 1e-9);
        ck_assert(step_s <= 0.051 + 2 * in.network.latency_s +
                                2 * ranks * 4 * MIB * fmax(BETA, in.network.server_byte_s));
        ck_assert(simulate(&in, (uint64_t)i) == step_s);
        again = simulate(&in, (uint64_t)i + 1000);
        ck_assert(fabs(again / step_s - 1) < 0.2);
    }
}
END_TEST

START_TEST(test_twice_as_long)
{
    static const struct cost_ready twice[] = {
        {1 * MIB, 0.04}, {2 * MIB, 0.06}, {3 * MIB, 0.08}, {4 * MIB, 0.1}};
    struct cost_inputs in = inputs_of(4, 3, 256 << 10);
    double step_s;

    in.load.ready = step_by_step;
    in.load.ready_count = 4;
    in.network.latency_s = 0.003;
    in.network.queue_s = 0.02;
    step_s = simulate(&in, 5);
    in.load.ready = twice;
    in.load.compute_s *= 2;
    in.load.other_s *= 2;
    in.network.byte_s *= 2;
    in.network.server_byte_s *= 2;
    in.network.latency_s *= 2;
    in.network.queue_s *= 2;
    assert_near(simulate(&in, 5), 2 * step_s);
}
END_TEST

/* A short queue keeps windows small, so that the last flow does not fill the link. */
START_TEST(test_windows)
{
    struct cost_inputs in = inputs_of(4, 1, 1 << 20);
    double step_s = simulate(&in, 1);

    in.network.queue_s = 1e-12;
    in.network.latency_s = 1e-9;
    ck_assert(simulate(&in, 1) > step_s * 1.05);
    /* Without a bound nothing is lost, and pushes to one server are equally fast.  Replies are not:
     * a rank that has its own goes on while the others wait. */
    in.network.queue_s = 0;
    in.network.latency_s = 0;
    step_s = simulate(&in, 1);
    ck_assert(step_s < 0.051 + (4 * 4 + 4) * MIB * BETA);
    ck_assert(step_s > 0.051 + (4 * 4 + 3) * MIB * BETA);
}
END_TEST

/* Four ranks of which one computes 50 ms, the others 10, over links that take no time: bsp is as
 * slow as it, with a backup worker the others are not, asp lets each go its own pace, and ssp in
 * the long run the pace of the slowest. */
#define TRACE_STEPS 3

static const double straggler[4 * TRACE_STEPS] = {0.01, 0.01, 0.01, 0.01, 0.01, 0.01,
                                                  0.01, 0.01, 0.01, 0.05, 0.05, 0.05};
static const struct cost_ready late[] = {{4 * MIB, 0.05}};

static struct cost_inputs with_straggler(void)
{
    struct cost_inputs in = inputs_of(4, 2, 1 << 20);

    in.network = (struct cost_network){.byte_s = 0};
    in.load = (struct cost_load){.ready = late,
                                 .ready_count = 1,
                                 .compute_s = 0.05,
                                 .computes = straggler,
                                 .compute_ranks = 4,
                                 .compute_steps = TRACE_STEPS};
    return in;
}

START_TEST(test_straggler)
{
    struct cost_inputs in = with_straggler();

    assert_about(simulate(&in, 1), 0.05);
    in.job.consistency.backup = 1; /* 20 steps of the others, 4 of the straggler */
    assert_about(simulate(&in, 1), (3 * 0.2 + 0.2) / (3 * 20 + 4));
    in.job.consistency = (struct consistency){.mode = CONSISTENCY_ASP};
    assert_about(simulate(&in, 1), (3 * 0.2 + 0.2) / (3 * 20 + 4));
    in.job.consistency = (struct consistency){.mode = CONSISTENCY_SSP, .staleness = 2};
    assert_about(simulate(&in, 1), 0.05);
    /* A bound that is never reached is none. */
    in.job.consistency.staleness = 100;
    assert_about(simulate(&in, 1), (3 * 0.2 + 0.2) / (3 * 20 + 4));
    in.job.consistency.staleness = 0;
    assert_about(simulate(&in, 1), 0.05);
}
END_TEST

/* Each rank is slow in turn: bsp takes the slowest of every step, asp the mean. */
START_TEST(test_in_turn)
{
    static const double in_turn[4 * 4] = {0.05, 0.01, 0.01, 0.01, 0.01, 0.05, 0.01, 0.01,
                                          0.01, 0.01, 0.05, 0.01, 0.01, 0.01, 0.01, 0.05};
    struct cost_inputs in = with_straggler();

    in.load.computes = in_turn;
    in.load.compute_steps = 4;
    assert_about(simulate(&in, 1), 0.05);
    assert_about(
        cost_of(&(struct cost_inputs){.side = COST_CONTROL, .load = in.load, .job = {.ranks = 4}})
            .step_s,
        0.02);
    in.job.consistency.mode = CONSISTENCY_ASP;
    assert_about(simulate(&in, 1), 0.02);
}
END_TEST

/* Every second step is longer before its forward, and the parameters come meanwhile if the forward
 * may start without them. */
START_TEST(test_overlapped_forward)
{
    const double trip_s = 0.04, delays_s[] = {0.5 * trip_s, 2 * trip_s};

    for (size_t i = 0; i < 2; i++) {
        const double hidden_s = fmin(delays_s[i], trip_s);
        const double computes[] = {0.05, 0.05 + delays_s[i], 0.05, 0.05 + delays_s[i]};
        struct cost_inputs in = inputs_of(2, 2, 1 << 20);

        in.network = (struct cost_network){.byte_s = 0, .latency_s = trip_s / 2};
        in.load = (struct cost_load){.ready = step_by_step,
                                     .ready_count = 4,
                                     .compute_s = 0.05,
                                     .forward_s = 0.01,
                                     .computes = computes,
                                     .compute_ranks = 2,
                                     .compute_steps = 2};
        assert_about(simulate(&in, 1), 0.05 + trip_s + delays_s[i] / 2);
        in.job.overlaps_forward = true;
        assert_about(simulate(&in, 1), 0.05 + trip_s + (delays_s[i] - hidden_s) / 2);
    }
}
END_TEST

/* One rank pushes four partitions, each of which takes 100 ms: the first is on its way and the
 * second behind it when the others are ready, and then the last is next, whose parameters the next
 * forward reads first. */
START_TEST(test_priority)
{
    struct cost_inputs in = inputs_of(1, 1, 1 << 20);

    in.network = (struct cost_network){.byte_s = 0.1 / MIB, .server_byte_s = 0.1 / MIB};
    in.load = (struct cost_load){
        .ready = step_by_step, .ready_count = 4, .compute_s = 0.05, .forward_s = 0.01};
    in.job.overlaps_forward = true;
    assert_near(simulate(&in, 1), 0.02 + 5 * 0.1 + 3 * 0.01 / 4 - 0.01);
    in.job.in_order = true;
    assert_near(simulate(&in, 1), 0.02 + 5 * 0.1 + 4 * 0.01 / 4 - 0.01);
}
END_TEST

/* Ranks that stand for several: as long a step as with all, but for the slowest of the windows that
 * are drawn, which are fewer. */
static const struct consistency consistencies[] = {
    {.mode = CONSISTENCY_BSP},
    {.mode = CONSISTENCY_SSP, .staleness = 2},
    {.mode = CONSISTENCY_ASP},
};

START_TEST(test_ranks_that_stand_for_several)
{
    static const unsigned ranks[] = {33, 100, 256};

    for (size_t i = 0; i < 3; i++) {
        struct cost_inputs in = inputs_of(ranks[i], 1 + (unsigned)(i % 2), 1 << 20);
        double all, some;

        in.load.ready = step_by_step;
        in.load.ready_count = 4;
        in.network.latency_s = 0.001;
        in.job.consistency = consistencies[_i];
        all = simulate(&in, 1);
        some = simulate_with(&in, 16, 2);
        ck_assert_msg(fabs(some / all - 1) < 0.05, "%u ranks: %.6g s, with 16: %.6g s", ranks[i],
                      all, some);
    }
}
END_TEST

/* Fewer ranks, servers and partitions together, where each mode waits for others in its own way. */
static const struct consistency without_closed_form[] = {
    {.mode = CONSISTENCY_SSP, .staleness = 2},
    {.mode = CONSISTENCY_ASP},
    {.mode = CONSISTENCY_BSP, .backup = 4},
};

START_TEST(test_groups)
{
    for (int colocated = 0; colocated < (without_closed_form[_i].backup > 0 ? 1 : 2); colocated++) {
        const unsigned ranks = colocated ? 24 : 32, servers = colocated ? 24 : 8;
        struct cost_inputs in = inputs_of(ranks, servers, colocated ? 174764 : 128 << 10);
        const struct simulation_size size = {.ranks = colocated ? 12 : 16,
                                             .servers = colocated ? 12 : 4,
                                             .server_size = 2,
                                             .partition_bytes = 4 * MIB / (colocated ? 12 : 16),
                                             .element_bytes = colocated ? 4 : 32};
        double all, grouped = 0;

        in.load.ready = step_by_step;
        in.load.ready_count = 4;
        in.network.latency_s = 0.001;
        in.network.queue_s = 0.01;
        in.job.consistency = without_closed_form[_i];
        in.job.is_colocated = colocated;
        all = simulate(&in, 1);
        shard_map_release(&map);
        assert_ok(simulation_make_map(&size, 4 * MIB, NULL, &map, &err));
        assert_ok(simulation_run(&in, &map, &size, 2, &grouped, &err));
        ck_assert_msg(fabs(grouped / all - 1) < 0.1, "%s: %.6g s, with groups: %.6g s",
                      colocated ? "colocated" : "dedicated", all, grouped);
    }
}
END_TEST

static struct simulation_size size_of(const struct cost_job *job, double bytes, bool is_required)
{
    struct simulation_size size;

    if (!simulation_size_of(job, bytes, is_required, &size))
        size = (struct simulation_size){0};
    return size;
}

START_TEST(test_sizes)
{
    const double bytes = 25 * MIB;
    struct cost_job job = {.ranks = 8, .servers = 1, .partition_bytes = MIB};
    struct simulation_size size = size_of(&job, bytes, false);

    ck_assert(size.ranks == 8 && size.servers == 1 && size.server_size == 1 &&
              size.partition_bytes == MIB);
    job.ranks = 10000;
    size = size_of(&job, bytes, false);
    ck_assert(size.ranks >= 16 && size.ranks < 100 && size.servers == 1);
    /* A closed form takes over, or all in groups. */
    job.servers = 100;
    job.partition_bytes = MIB / 16;
    ck_assert_uint_eq(size_of(&job, bytes, false).ranks, 0);
    size = size_of(&job, bytes, true); /* four partitions of each server */
    ck_assert(size.ranks == 16 && size.servers == 8 && size.server_size == 12.5);
    ck_assert(size.partition_bytes * 32 == bytes && size.element_bytes == 4);
    job.partition_bytes = MIB; /* for 25 of the servers */
    ck_assert(size_of(&job, bytes, true).server_size == 25.0 / 8);
    /* As many ranks as one of them may be left out. */
    job.consistency.backup = 500;
    ck_assert(size_of(&job, bytes, true).ranks == 20);
    job.consistency.backup = 1;
    ck_assert_uint_eq(size_of(&job, bytes, true).ranks, 0);
    /* Each rank has a server beside it, or the closed form adds up. */
    job.consistency.backup = 0;
    job.is_colocated = true;
    ck_assert_uint_eq(size_of(&job, bytes, true).ranks, 0);
    job.servers = job.ranks;
    ck_assert_uint_eq(size_of(&job, bytes, true).ranks, 0); /* most servers have nothing */
    job.partition_bytes = 2048;
    size = size_of(&job, bytes, true);
    ck_assert(size.ranks == 8 && size.servers == 8 && size.server_size == 1250);
    job.ranks = job.servers = 95; /* 13 times 7, and four */
    job.partition_bytes = MIB / 4;
    ck_assert_uint_eq(size_of(&job, bytes, true).ranks, 13);
    job.consistency.backup = 7;
    ck_assert_uint_eq(size_of(&job, bytes, true).ranks, 0);
    ck_assert_uint_eq(size_of(&job, bytes, false).ranks, 0);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("predict_simulation", 60, CHECKED_FIXTURE(NULL, teardown),
                       TEST(test_one_rank), TEST(test_two_servers), TEST(test_ranks_of_one_host),
                       TEST(test_colocated), TEST(test_bounds), TEST(test_twice_as_long),
                       TEST(test_windows), TEST(test_straggler), TEST(test_in_turn),
                       TEST(test_overlapped_forward), TEST(test_priority),
                       LOOP_TEST(test_ranks_that_stand_for_several, 0, 3),
                       LOOP_TEST(test_groups, 0, 3), TEST(test_sizes));
}
