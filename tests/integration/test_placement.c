/*
 * Placement of the servers: whole jobs with dedicated servers, with servers colocated with the
 * ranks of two nodes (two `sparring launch` on loopback), and with both end with the same bits.
 * Each server holds the share of its placement.
 */
#include "tests/integration/job.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <string.h>

#define WAIT_MS 100000
#define STEPS   "12"

/* The command of the ranks.  Its sums are reproducible, so the result does not depend on the number
 * of ranks per node. */
#define WORKER_COMMAND(checkpoint)                                                                 \
    "--", support_program("sparring-worker"), "--model", "mlp:784-1024-1024-10", "--data",         \
        "random:96,784,10", "--batch-size", "4", "--steps", STEPS, "--sync", "ps", "--reduce",     \
        "reproducible", "--threads", "1", "--save", checkpoint

/* Servers of several nodes listen on all addresses, which requires TLS or this variable. */
static const char *const insecure_environment[] = {"SPARRING_INSECURE=true", NULL};

static double server_start_number(const char *run_dir, unsigned server, const char *member)
{
    json_t *record = job_server_record(run_dir, server, "start");
    double value = json_number_value(json_object_get(record, member));

    json_decref(record);
    return value;
}

static void check_placement_record(const char *run_dir, const char *placement)
{
    json_t *summary = job_summary(run_dir);
    json_t *configuration = json_object_get(summary, "configuration");

    ck_assert_str_eq(json_string_value(json_object_get(configuration, "server_placement")),
                     placement);
    json_decref(summary);
}

/* One node, dedicated servers. */
static const char *run_dedicated(const char *ranks, const char *servers, const char *checkpoint)
{
    const char *run_dir = support_path("dedicated");

    (void)process_run(0, WAIT_MS, NULL,
                      ARGS(support_program("sparring"), "launch", "--standalone",
                           "--nproc-per-node", ranks, "--servers", servers, "--run-dir", run_dir,
                           WORKER_COMMAND(checkpoint)));
    return run_dir;
}

struct two_node_job {
    uint16_t master_port, server_port;
    const char *placement, *servers, *run_dir, *checkpoint;
    struct process node[2];
};

static void start_node(struct two_node_job *p, unsigned node)
{
    char rank[32], master_port[32], server_port[32];

    (void)snprintf(rank, sizeof(rank), "--node-rank=%u", node);
    (void)snprintf(master_port, sizeof(master_port), "--master-port=%u", p->master_port);
    (void)snprintf(server_port, sizeof(server_port), "--server-port=%u", p->server_port);
    process_start(&p->node[node], insecure_environment,
                  ARGS(support_program("sparring"), "launch", "--nnodes=2", rank, master_port,
                       server_port, "--node-addresses=127.0.0.1,127.0.0.1", "--server-placement",
                       p->placement, "--servers", p->servers, "--run-dir", p->run_dir,
                       WORKER_COMMAND(p->checkpoint)));
}

/* Start the second node first, then wait for both. */
static void run_two_nodes(struct two_node_job *p)
{
    p->master_port = support_port();
    p->server_port = support_ports(4);
    p->run_dir = support_path(p->placement);
    for (unsigned node = 2; node-- > 0;)
        start_node(p, node);
    for (unsigned node = 0; node < 2; node++)
        ck_assert_msg(process_wait(&p->node[node], WAIT_MS) == 0, "node %u:\n%s", node,
                      process_output(&p->node[node]));
}

START_TEST(test_colocated)
{
    const char *alone = support_path("alone.safetensors");
    struct two_node_job p = {.placement = "colocated",
                             .servers = "0",
                             .checkpoint = support_path("colocated.safetensors")};

    (void)run_dedicated("2", "1", alone);
    run_two_nodes(&p);
    ck_assert(job_same_tensors(alone, p.checkpoint));
    check_placement_record(p.run_dir, "colocated");
    ck_assert_double_le(server_start_number(p.run_dir, 0, "load_max_over_mean"), 1.03);
    ck_assert_double_eq(server_start_number(p.run_dir, 0, "elements") +
                            server_start_number(p.run_dir, 1, "elements"),
                        1863690);
}
END_TEST

/* n = 4 ranks on one node, each counting as a host, k = 2: (n - k) : 2 (n - 1) = 1 : 3. */
START_TEST(test_mixed_on_one_node)
{
    const char *alone = support_path("alone.safetensors");
    const char *mixed = support_path("mixed.safetensors");
    const char *run_dir = support_path("mixed");
    double elements[6], sum = 0;

    (void)run_dedicated("4", "1", alone);
    (void)process_run(0, WAIT_MS, NULL,
                      ARGS(support_program("sparring"), "launch", "--standalone",
                           "--nproc-per-node=4", "--servers=2", "--server-placement=mixed",
                           "--run-dir", run_dir, WORKER_COMMAND(mixed)));
    ck_assert(job_same_tensors(alone, mixed));
    check_placement_record(run_dir, "mixed");
    for (unsigned k = 0; k < 6; k++)
        sum += elements[k] = server_start_number(run_dir, k, "elements");
    ck_assert_double_eq(sum, 1863690);
    ck_assert_double_eq(server_start_number(run_dir, 0, "weight"), 2);
    ck_assert_double_eq(server_start_number(run_dir, 5, "weight"), 6);
    for (unsigned k = 0; k < 6; k++) /* the last partition is shorter */
        ck_assert_double_eq_tol(elements[k] / sum, k < 4 ? 0.1 : 0.3, 0.0001);
}
END_TEST

/* n = 2, k = 1: 1 : 2. */
START_TEST(test_mixed_on_two_nodes)
{
    const char *alone = support_path("alone.safetensors");
    struct two_node_job p = {
        .placement = "mixed", .servers = "1", .checkpoint = support_path("mixed.safetensors")};

    (void)run_dedicated("2", "1", alone);
    run_two_nodes(&p);
    ck_assert(job_same_tensors(alone, p.checkpoint));
    ck_assert_double_eq_tol(server_start_number(p.run_dir, 2, "elements") / 1863690, 0.5, 0.0001);
    ck_assert_double_eq_tol(server_start_number(p.run_dir, 0, "elements") / 1863690, 0.25, 0.0001);
}
END_TEST

/* load_max_over_mean equals the ratio of the bytes that the servers have received. */
START_TEST(test_three_servers_share_the_bytes)
{
    const char *run_dir = run_dedicated("2", "3", support_path("alone.safetensors"));
    double most = 0, sum = 0, figure = server_start_number(run_dir, 0, "load_max_over_mean");

    for (unsigned k = 0; k < 3; k++) {
        json_t *end = job_server_record(run_dir, k, "end");
        double bytes = json_number_value(json_object_get(end, "rx_payload_bytes"));

        json_decref(end);
        most = bytes > most ? bytes : most;
        sum += bytes;
    }
    printf("3 servers, mlp:784-1024-1024-10: max/mean of elements %.6f, of received bytes %.6f\n",
           figure, 3 * most / sum);
    ck_assert_double_gt(sum, 0);
    ck_assert_double_le(figure, 1.03);
    ck_assert_double_eq_tol(figure, 3 * most / sum, 1e-9);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("placement", 3 * WAIT_MS / 1000.0, TEST(test_colocated),
                       TEST(test_mixed_on_one_node), TEST(test_mixed_on_two_nodes),
                       TEST(test_three_servers_share_the_bytes));
}
