/*
 * The cost model against what it must be in its limits, and against itself with random inputs.
 */
#include "experiments/predict/cost_model.h"
#include "tests/support/support.h"

#include <math.h>
#include <string.h>

#define MIB   1048576.0
#define BYTES (25 * MIB)
#define BETA  (8 / 1e9)

static const struct cost_machine no_machine = {.ring_byte_s = 0};

/* All gradients are ready when backward ends, after 50 ms. */
static const struct cost_ready at_the_end[] = {{BYTES, 0.05}};
static const struct cost_load one_lump = {
    .ready = at_the_end, .ready_count = 1, .compute_s = 0.05, .other_s = 0.002, .cpu_s = 0.01};
static const double one_bucket[] = {BYTES};

static struct cost_job job_of(unsigned ranks, unsigned servers)
{
    return (struct cost_job){.ranks = ranks,
                             .servers = servers,
                             .buckets = one_bucket,
                             .bucket_count = 1,
                             .partition_bytes = MIB};
}

static void assert_near(double value, double wanted)
{
    ck_assert_msg(fabs(value - wanted) <= 1e-12 * fabs(wanted), "%.15g, wanted %.15g", value,
                  wanted);
}

/* 2 (n-1)/n S beta and one latency where bytes are the limit, else 2 (n-1) latencies and one chunk.
 */
START_TEST(test_ring)
{
    const struct cost_network n = {.byte_s = BETA, .latency_s = 0.003};
    const struct cost_job job = job_of(4, 0);
    struct cost c = cost_of_ring(&no_machine, &n, &one_lump, &job);

    assert_near(c.exposed_s, 2.0 * 3 / 4 * BYTES * BETA + 0.003);
    assert_near(c.step_s, 0.052 + c.exposed_s);
    ck_assert_int_eq(c.limit, COST_BYTES);
    c = cost_of_ring(&no_machine, &(struct cost_network){.byte_s = BETA, .latency_s = 0.3},
                     &one_lump, &job);
    assert_near(c.exposed_s, 6 * 0.3 + BYTES / 4 * BETA);
    ck_assert_int_eq(c.limit, COST_MESSAGES);
}
END_TEST

START_TEST(test_ring_of_one)
{
    const struct cost_network n = {.byte_s = BETA, .latency_s = 0.003};
    const struct cost_job job = job_of(1, 0);

    assert_near(cost_of_ring(&no_machine, &n, &one_lump, &job).step_s, 0.052);
}
END_TEST

/* Of two ranks on each host only every second message crosses a link; on one host none does. */
START_TEST(test_ring_on_few_hosts)
{
    const struct cost_network n = {.byte_s = BETA, .latency_s = 0.3};
    struct cost_job job = job_of(4, 0);

    job.ranks_per_host = 2;
    assert_near(cost_of_ring(&no_machine, &n, &one_lump, &job).exposed_s,
                6 * 0.15 + BYTES / 4 * BETA);
    job.ranks_per_host = 4;
    ck_assert(cost_of_ring(&no_machine, &n, &one_lump, &job).exposed_s == 0);
}
END_TEST

/* Chunks of 2 MiB on hosts of two ranks: 13 of them, the last of 1 MiB. */
START_TEST(test_two_levels)
{
    const struct cost_network n = {.byte_s = BETA, .latency_s = 0.001};
    const struct cost_machine m = {.local_s = 0.0002, .local_byte_s = 1e-10};
    struct cost_job job = job_of(8, 0);

    job.ranks_per_host = 2;
    job.is_two_level = true;
    /* 2 (H-1) / H of the bytes and a latency for every chunk; in before the first and out after the
     * last. */
    assert_near(cost_of_two_level(&m, &n, &one_lump, &job).exposed_s,
                1.5 * BYTES * BETA + 13 * 0.001 + 0.0001 + 2 * MIB * 1e-10 / 2 + 0.0001 +
                    MIB * 1e-10 / 2);
    job.ranks_per_host = 8; /* nothing between hosts */
    assert_near(cost_of_two_level(&m, &n, &one_lump, &job).exposed_s,
                (4 + 1) * 0.0001 + (BYTES + MIB) * 1e-10 / 2);
}
END_TEST

/* The same as a ring where each host has one rank and a bucket is one chunk. */
START_TEST(test_two_levels_of_one)
{
    for (int i = 0; i < 100; i++) {
        const struct cost_network n = {.byte_s = support_random() * 1e-8,
                                       .latency_s = support_random() * 0.01};
        const struct cost_machine m = {.ring_message_s = support_random() * 1e-3,
                                       .ring_byte_s = support_random() * 1e-8,
                                       .ring_cpu_s = support_random() * 1e-3,
                                       .ring_cpu_byte_s = support_random() * 1e-8};
        const double bucket = support_random() * MIB;
        struct cost_job job = job_of(2 + (unsigned)(support_random() * 14), 0);

        job.buckets = &bucket;
        job.cores = 1;
        assert_near(cost_of_two_level(&m, &n, &one_lump, &job).step_s,
                    cost_of_ring(&m, &n, &one_lump, &job).step_s);
    }
}
END_TEST

/* The first of two buckets is ready early enough to be hidden. */
START_TEST(test_overlap)
{
    static const struct cost_ready ready[] = {{5 * MIB, 0.01}, {BYTES, 0.5}};
    static const double buckets[] = {5 * MIB, 20 * MIB};
    const struct cost_load load = {
        .ready = ready, .ready_count = 2, .compute_s = 0.5, .other_s = 0, .cpu_s = 0};
    const struct cost_network n = {.byte_s = BETA};
    struct cost_job job = job_of(2, 0);

    job.buckets = buckets;
    job.bucket_count = 2;
    assert_near(cost_of_ring(&no_machine, &n, &load, &job).exposed_s, 20 * MIB * BETA);
}
END_TEST

/* Windows that fill the link also when one flow is left. */
#define LONG_QUEUE 1000.0

/* Of four flows the slowest has 4/5 of an equal share until the others have ended. */
START_TEST(test_servers)
{
    const struct cost_network n = {
        .byte_s = BETA, .server_byte_s = BETA, .latency_s = 0.001, .queue_s = LONG_QUEUE};
    struct cost_job job = job_of(4, 1);

    /* 25 partitions, each 4 MiB over the link, 5 for the slowest: it has pushed 19 after 94 MiB,
     * when the others have ended (100 - 6), and seven replies follow one another. */
    assert_near(cost_of_servers(&no_machine, &n, &one_lump, &job).exposed_s,
                (94 + 7 * 4) * MIB * BETA + 2 * 0.001);
    /* 5 each, and the ranks' links are the limit: the last server has one after each 5 MiB. */
    job.servers = 5;
    assert_near(cost_of_servers(&no_machine, &n, &one_lump, &job).exposed_s,
                (BYTES + 5 * MIB) * BETA + 2 * 0.001);
    /* One has 9 of 25: seven after 36 - 2 MiB. */
    job.servers = 3;
    assert_near(cost_of_servers(&no_machine, &n, &one_lump, &job).exposed_s,
                (34 + 3 * 4) * MIB * BETA + 2 * 0.001);
}
END_TEST

/* One rank: nothing to share, and the reply of the last partition follows its push. */
START_TEST(test_server_of_one)
{
    const struct cost_network n = {.byte_s = BETA, .server_byte_s = BETA, .queue_s = LONG_QUEUE};
    const struct cost_job job = job_of(1, 1);

    assert_near(cost_of_servers(&no_machine, &n, &one_lump, &job).exposed_s, (BYTES + MIB) * BETA);
}
END_TEST

/* Without a queue, the window of the slowest flow is no larger when the others have ended: it keeps
 * 4/5 of its share all along. */
START_TEST(test_short_queue)
{
    struct cost_network n = {
        .byte_s = BETA, .server_byte_s = BETA, .latency_s = 1e-6, .queue_s = 1e-12};
    struct cost_job job = job_of(4, 1);

    job.partition_bytes = BYTES;
    assert_near(cost_of_servers(&no_machine, &n, &one_lump, &job).exposed_s,
                (125 + 100) * MIB * BETA + 2 * 1e-6);
    n.queue_s = 0; /* that has no bound: nothing is lost */
    assert_near(cost_of_servers(&no_machine, &n, &one_lump, &job).exposed_s,
                (100 + 100) * MIB * BETA + 2 * 1e-6);
}
END_TEST

/* Servers beside the ranks move as many bytes over each link as a ring. */
START_TEST(test_colocated)
{
    const struct cost_network n = {.byte_s = BETA, .server_byte_s = BETA, .queue_s = LONG_QUEUE};
    struct cost_job job = job_of(5, 0);

    job.is_colocated = true;
    assert_near(cost_of_servers(&no_machine, &n, &one_lump, &job).exposed_s,
                2 * BYTES * 4 / 5.0 * BETA);
    assert_near(cost_of_ring(&no_machine, &n, &one_lump, &job).exposed_s,
                2 * BYTES * 4 / 5.0 * BETA);
}
END_TEST

/* Four ranks of 10 ms of processor time on two cores take 20 ms, whatever they wait for. */
START_TEST(test_work_law)
{
    const struct cost_network n = {.byte_s = 0};
    struct cost_job job = job_of(4, 0);
    struct cost c;

    job.cores = 2;
    c = cost_of_control(&one_lump, &job);
    assert_near(c.processor_s, 0.02);
    assert_near(c.step_s, 0.052);
    job.cores = 0.5;
    c = cost_of_ring(&no_machine, &n, &one_lump, &job);
    assert_near(c.step_s, 0.08);
    ck_assert_int_eq(c.limit, COST_PROCESSORS);
}
END_TEST

static double uniform(double low, double high)
{
    return low + (high - low) * support_random();
}

/* A slower link, a longer delay or slower software never make a step shorter. */
START_TEST(test_monotony)
{
    for (int i = 0; i < 1000; i++) {
        const struct cost_ready ready[] = {{8 * MIB, uniform(0, 0.03)}, {BYTES, 0.05}};
        const double buckets[] = {uniform(1, 20) * MIB, 5 * MIB};
        const struct cost_load load = {
            .ready = ready, .ready_count = 2, .compute_s = 0.05, .cpu_s = uniform(0, 0.05)};
        struct cost_machine m = {.ring_message_s = uniform(0, 1e-3),
                                 .ring_byte_s = uniform(0, 1e-8),
                                 .local_byte_s = uniform(0, 1e-9),
                                 .exchange_s = uniform(0, 1e-3),
                                 .exchange_byte_s = uniform(0, 1e-8),
                                 .exchange_cpu_byte_s = uniform(0, 1e-8)};
        struct cost_network n = {.byte_s = uniform(0, 1e-8),
                                 .server_byte_s = uniform(0, 1e-8),
                                 .latency_s = uniform(0, 0.01),
                                 .queue_s = uniform(0, 0.1)};
        const unsigned per_host = 1 + (unsigned)uniform(0, 3);
        struct cost_job job =
            job_of(per_host * (2 + (unsigned)uniform(0, 6)), 1 + (unsigned)uniform(0, 8));
        double ring, two_level, servers;

        job.buckets = buckets;
        job.bucket_count = 2;
        job.cores = uniform(1, 8);
        job.ranks_per_host = per_host;
        ring = cost_of_ring(&m, &n, &load, &job).step_s;
        two_level = cost_of_two_level(&m, &n, &load, &job).step_s;
        servers = cost_of_servers(&m, &n, &load, &job).step_s;
        n.byte_s *= uniform(1, 2);
        n.server_byte_s *= uniform(1, 2);
        n.latency_s *= uniform(1, 2);
        m.ring_message_s *= uniform(1, 2);
        m.local_byte_s *= uniform(1, 2);
        m.exchange_byte_s *= uniform(1, 2);
        m.exchange_cpu_byte_s *= uniform(1, 2);
        ck_assert(cost_of_ring(&m, &n, &load, &job).step_s >= ring);
        ck_assert(cost_of_two_level(&m, &n, &load, &job).step_s >= two_level);
        ck_assert(cost_of_servers(&m, &n, &load, &job).step_s >= servers);
        ck_assert(ring >= 0.05 && two_level >= 0.05 && servers >= 0.05);
    }
}
END_TEST

/* Twice the times make twice the step, so the parts add up to all of it; where the link is the
 * limit, it is all of what is not computed. */
static double step_of(const struct cost_inputs *in, void *user)
{
    (void)user;
    return cost_of(in).step_s;
}

START_TEST(test_sensitivities)
{
    struct cost_inputs in = {.side = COST_ALLREDUCE,
                             .network = {.byte_s = BETA, .server_byte_s = BETA, .queue_s = 1},
                             .load = one_lump,
                             .job = job_of(4, 2)};
    double parts[COST_PARTS];

    cost_sensitivities(&in, cost_of(&in).step_s, step_of, NULL, parts);
    ck_assert(fabs(parts[COST_PART_LINKS] - 1.5 * BYTES * BETA / cost_of(&in).step_s) < 1e-9);
    ck_assert(parts[COST_PART_DELAY] == 0 && parts[COST_PART_SOFTWARE] == 0);
    ck_assert(fabs(parts[COST_PART_COMPUTE] - 0.052 / cost_of(&in).step_s) < 1e-9);
    in.network.latency_s = 0.3;
    cost_sensitivities(&in, cost_of(&in).step_s, step_of, NULL, parts);
    ck_assert(fabs(parts[COST_PART_DELAY] - 6 * 0.3 / cost_of(&in).step_s) < 1e-9);
    in.side = COST_SERVERS;
    in.machine.exchange_s = 0.01;
    cost_sensitivities(&in, cost_of(&in).step_s, step_of, NULL, parts);
    ck_assert(parts[COST_PART_LINKS] > 0 && parts[COST_PART_SOFTWARE] > 0);
    in.side = COST_CONTROL;
    cost_sensitivities(&in, cost_of(&in).step_s, step_of, NULL, parts);
    ck_assert(parts[COST_PART_COMPUTE] == 1);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("cost_model", 30, TEST(test_ring), TEST(test_ring_of_one),
                       TEST(test_ring_on_few_hosts), TEST(test_two_levels),
                       TEST(test_two_levels_of_one), TEST(test_overlap), TEST(test_servers),
                       TEST(test_server_of_one), TEST(test_short_queue), TEST(test_colocated),
                       TEST(test_work_law), TEST(test_monotony), TEST(test_sensitivities));
}
