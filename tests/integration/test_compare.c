/*
 * `sparring compare` over real jobs: every run succeeds, payload bytes equal the formula, and the
 * loss is the same over a ring and over one or two servers.  Also the output when a run fails, when
 * the user interrupts it, for options that the programs do not take, and for a second comparison in
 * the same folder.
 */
#include "common/base/file.h"
#include "common/base/host.h"
#include "experiments/launch/binding.h"
#include "experiments/report/report.h"
#include "tests/integration/job.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TIMEOUT_MS 300000

static struct error err;

static const char experiment_text[] =
    "title: Real\n"
    "nproc: 2\n"
    "repeats: 6\n"
    "deadline: 120\n"
    "options: {model: 'mlp:784-32-10', data: digits, samples: 1280, steps: 40,\n"
    "          batch-size: 16, lr: 0.05, threads: 1, device: cpu,\n"
    "          reduce: reproducible, partition-bytes: 32K}\n"
    "modes:\n"
    "- {name: ring, options: {sync: allreduce, backend: ring}}\n"
    "- {name: ps-1, servers: 1, options: {sync: ps, ps-transport: grpc}}\n"
    "- {name: ps-2, servers: 2, options: {sync: ps, ps-update: worker,\n"
    "   ps-transport: grpc}}\n"
    "- {name: control, options: {sync: local}}\n"
    "- {name: single, nproc: 1, options: {sync: local}}\n";

static const char *write_experiment(const char *text)
{
    return support_write("experiment.yaml", text, strlen(text));
}

START_TEST(test_modes_reach_same_loss)
{
    const char *out = support_path("out");
    const char *printed = process_run(0, TIMEOUT_MS, NULL,
                                      ARGS(support_program("sparring"), "compare",
                                           write_experiment(experiment_text), "--out", out));
    struct report report = {0};
    const struct comparison *c = &report.comparison;

    ck_assert_msg(strstr(printed, "On this host, over loopback: ") != NULL, "%s", printed);
    assert_ok(report_read(&report, &out, 1, &err));
    ck_assert_uint_eq(report.list.length, 30);
    ck_assert_uint_eq(c->mode_count, 5);
    ck_assert_msg(c->reasons.length == 0, "%s", c->reasons.length ? c->reasons.texts[0] : "");
    for (size_t i = 0; i < report.list.length; i++)
        ck_assert_msg(report.list.runs[i].state == RUN_OK, "%s", report.list.runs[i].reason);
    for (size_t m = 0; m < c->mode_count; m++) {
        const struct mode *mode = &c->modes[m];

        ck_assert_double_eq(mode->spreads[METRIC_tx_residual_bytes].median, 0);
        ck_assert_double_eq(mode->spreads[METRIC_rx_residual_bytes].median, 0);
        ck_assert_double_gt(mode->spreads[METRIC_samples_per_second].median, 0);
        ck_assert_double_gt(mode->spreads[METRIC_peak_rss_bytes].median, 1e6);
        if (mode->servers > 0)
            ck_assert_double_eq(mode->spreads[METRIC_server_tx_payload_bytes].median,
                                mode->ranks / mode->servers *
                                    mode->first->manifest.parameter_bytes);
    }
    for (size_t i = 0; i < c->warnings.length; i++)
        ck_assert_msg(!strstr(c->warnings.texts[i], "summary.json says"), "%s",
                      c->warnings.texts[i]);
    for (size_t r = 0; r < 3; r++) { /* reproducible sums: the same bits in every mode */
        double ring = c->modes[0].values[METRIC_final_loss][r];

        ck_assert_double_eq(c->modes[1].values[METRIC_final_loss][r], ring);
        ck_assert_double_eq(c->modes[2].values[METRIC_final_loss][r], ring);
    }
    report_release(&report);
    printed = process_run(
        0, TIMEOUT_MS, NULL,
        ARGS(support_python(), support_source("tests/experiments/report/verdict.py"), out));
    ck_assert_msg(strstr(printed, "ring over ps-1: ") != NULL, "%s", printed);
}
END_TEST

/* The records say what --bind core did. */
static unsigned physical_cores(void)
{
    static struct binding_topology topology;
    cpu_set_t allowed;

    ck_assert_int_eq(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
    binding_read("/sys/devices/system/cpu", &allowed, &topology);
    return binding_cores(&topology);
}

static void expect_bound(const char *run)
{
    char path[700], first[64];
    json_t *manifest, *server;
    const json_t *host;

    (void)snprintf(path, sizeof(path), "%s/manifest.json", run);
    manifest = json_load_file(path, 0, NULL);
    host = json_object_get(manifest, "host");
    ck_assert_str_eq(json_string_value(json_object_get(host, "bind")), "core");
    ck_assert_int_eq(json_integer_value(json_object_get(host, "cores")), host_cores());
    (void)snprintf(first, sizeof(first), "%s", job_record_text(run, 0, "start", "processors"));
    ck_assert_str_eq(json_string_value(json_object_get(host, "processors")), first);
    if (physical_cores() > 1)
        ck_assert_str_ne(job_record_text(run, 1, "start", "processors"), first);
    server = job_server_record(run, 0, "start");
    ck_assert_ptr_nonnull(json_object_get(server, "processors"));
    json_decref(manifest);
    json_decref(server);
}

/* Launcher options in an experiment file reach the launcher: the servers' records show them. */
START_TEST(test_options_of_the_launcher)
{
    static const char placed[] =
        "nproc: 2\n"
        "repeats: 1\n"
        "verdict: none\n"
        "options: {model: 'mlp:784-8-10', samples: 512, steps: 10, threads: 1, device: cpu, sync: "
        "ps}\n"
        "modes:\n"
        "- {name: beside, options: {server-placement: colocated}}\n"
        "- {name: copied, servers: 1, options: {replicas: true, server-transport: unix, bind: "
        "core}}"
        "\n";
    const char *out = support_path("out");
    char path[600];
    json_t *record;

    (void)process_run(
        0, TIMEOUT_MS, NULL,
        ARGS(support_program("sparring"), "compare", write_experiment(placed), "--out", out));
    (void)snprintf(path, sizeof(path), "%s/runs/beside-0", out);
    for (unsigned k = 0; k < 2; k++) {
        record = job_server_record(path, k, "start");
        ck_assert_int_eq(json_integer_value(json_object_get(record, "servers")), 2);
        json_decref(record);
    }
    record = job_summary(path);
    ck_assert_str_eq(json_string_value(json_object_get(json_object_get(record, "configuration"),
                                                       "server_placement")),
                     "colocated");
    json_decref(record);
    (void)snprintf(path, sizeof(path), "%s/runs/copied-0", out);
    record = job_summary(path);
    ck_assert_str_eq(json_string_value(json_object_get(record, "status")), "ok");
    json_decref(record);
    expect_bound(path);
}
END_TEST

START_TEST(test_mode_that_fails)
{
    static const char failing[] =
        "repeats: 1\n"
        "verdict: none\n"
        "deadline: 60\n"
        "options: {model: 'mlp:784-8-10', samples: 512, steps: 10, threads: 1, device: cpu}\n"
        "modes:\n"
        "- {name: good, options: {sync: allreduce}}\n"
        "- {name: bad, options: {sync: allreduce, backend: no-such-backend}}\n";
    const char *printed =
        process_run(0, TIMEOUT_MS, NULL,
                    ARGS(support_program("sparring"), "compare", write_experiment(failing), "--out",
                         support_path("out")));

    ck_assert_msg(strstr(printed, "bad-0: exit code ") != NULL, "%s", printed);
    ck_assert_msg(strstr(printed, "no-such-backend") != NULL, "%s", printed);
    ck_assert_msg(strstr(printed, "failed runs:") != NULL, "%s", printed);
    ck_assert_msg(strstr(printed, "good-0: ok") != NULL, "%s", printed);
}
END_TEST

/* Compare one mode in an emulated network, `network` of the file; NULL without the permission. */
static const char *compare_in_network(const char *network, int wanted, const char *out)
{
    char text[400];
    const char *printed;
    struct process p;
    int code;

    (void)snprintf(text, sizeof(text),
                   "repeats: 1\nverdict: none\ndeadline: 60\nnetwork: {%s}\n"
                   "options: {model: 'mlp:784-8-10', samples: 512, steps: 10, threads: 1,\n"
                   "          device: cpu}\n"
                   "modes: [{name: ring, options: {sync: allreduce}}]\n",
                   network);
    process_start(
        &p, NULL,
        ARGS(support_program("sparring"), "compare", write_experiment(text), "--out", out));
    code = process_wait(&p, TIMEOUT_MS);
    printed = process_output(&p);
    if (strstr(printed, "emulated hosts take root")) {
        (void)printf("skipped: emulated hosts take root\n");
        return NULL;
    }
    ck_assert_msg(code == wanted, "exit code %d:\n%s", code, printed);
    return printed;
}

/* No link of this machine carries 100 Gbit/s in one flow, so no run counts. */
START_TEST(test_network_not_kept)
{
    const char *printed = compare_in_network("rate: 100gbit", 1, support_path("out"));

    if (printed)
        ck_assert_msg(strstr(printed, "ring-0: discarded, the emulated network was not kept to"),
                      "%s", printed);
}
END_TEST

/* The report names the network, and how its links were measured. */
START_TEST(test_network_is_reported)
{
    const char *out = support_path("out");
    char path[600];
    char *text;
    size_t size;

    if (!compare_in_network("rate: 50mbit, delay: 2, check: warn", 0, out))
        return;
    (void)snprintf(path, sizeof(path), "%s/report.md", out);
    assert_ok(file_read(path, 1 << 20, &text, &size, &err));
    ck_assert_msg(strstr(text, "| network | emulated: rate 50mbit, delay 2 ms |"), "%s", text);
    ck_assert_msg(strstr(text, "| links as measured | at least "), "%s", text);
    ck_assert_ptr_nonnull(strstr(text, " Mbit/s, round trips of at most "));
    ck_assert_ptr_nonnull(strstr(text, "| where | On emulated hosts of one machine |"));
    ck_assert_ptr_null(strstr(text, "Loopback: ")); /* a note for real loopback */
    free(text);
}
END_TEST

/* Start a comparison that does not end, and wait until it has begun; `more`: an experiment behind
 * it, or NULL. */
static void start_endless(struct process *p, const char *out, const char *more)
{
    static const char endless[] = "repeats: 1\n"
                                  "verdict: none\n"
                                  "options: {model: 'mlp:784-8-10', samples: 512, steps: "
                                  "100000000, threads: 1, device: cpu}\n"
                                  "modes: [{name: ps, servers: 1, options: {sync: ps}}]\n";

    process_start(p, NULL,
                  ARGS(support_program("sparring"), "compare", "--out", out,
                       write_experiment(endless), more));
    process_wait_output(p, "results in", TIMEOUT_MS);
}

static void interrupt(struct process *compare)
{
    process_signal(compare, SIGINT);
    ck_assert_int_eq(process_wait(compare, TIMEOUT_MS), 6);
    ck_assert_ptr_nonnull(strstr(process_output(compare), "Interrupt: "));
}

START_TEST(test_interrupt)
{
    struct process compare;

    start_endless(&compare, support_path("out"), NULL);
    interrupt(&compare);
}
END_TEST

/* A second comparison in the folder is refused, and leaves the first one alone; _i 1: both are of
 * two experiments. */
START_TEST(test_two_in_one_folder)
{
    const char *out = support_path("out");
    const char *more = _i ? support_write("more.yaml", "modes: [{name: a}]", 18) : NULL;
    char holder[700];
    struct process first;
    const char *printed;

    start_endless(&first, out, more);
    printed = process_run(1, TIMEOUT_MS, NULL,
                          ARGS(support_program("sparring"), "compare", "--out", out,
                               support_path("experiment.yaml"), more));
    (void)snprintf(holder, sizeof(holder), "'%s' is used by another compare (pid %ld)", out,
                   (long)first.pid);
    ck_assert_msg(strstr(printed, holder) != NULL, "no '%s' in:\n%s", holder, printed);
    ck_assert_int_ne(access(support_path("out/lost"), F_OK), 0);
    interrupt(&first);
}
END_TEST

/* Settings that only go together, of modes that do not. */
static const char *const good[] = {
    "network: {rate: '1gbit,server:10gbit'}\nmodes:\n"
    "- {name: ps, servers: 1, options: {sync: ps}}\n"
    "- {name: control, options: {sync: local}}\n",
    "network: {delay: 5}\naxes: {network-loss: [0, 1], network-rate: [50mbit, 1gbit]}\nmodes:\n"
    "- {name: ring, options: {sync: allreduce}}\n",
    "axes: {servers: [2, 4]}\nmodes:\n"
    "- {name: replicas, servers: 1, options: {sync: ps, replicas: true}}\n"
    "- {name: mixed, nproc: 2, servers: 1, options: {sync: ps, server-placement: mixed}}\n"
    "- {name: ring, options: {sync: allreduce, backend: ring}}\n"
    "- {name: shm, options: {sync: allreduce, backend: shm}}\n",
};

#define GOOD (sizeof(good) / sizeof(good[0]))

START_TEST(test_good_options)
{
    char text[600];

    (void)snprintf(text, sizeof(text), "repeats: 2\nverdict: none\n%s", good[_i]);
    (void)process_run(
        0, TIMEOUT_MS, NULL,
        ARGS(support_program("sparring"), "compare", write_experiment(text), "--dry-run"));
}
END_TEST

/* Found before the first run, by the programs themselves. */
static const struct {
    const char *options, *axes, *wanted;
} mistakes[] = {
    {"steps: 5", "bach-size: [4, 8]",
     "experiment.yaml:4: unknown option '--bach-size', did you mean '--batch-size'?"},
    {"steps: 5", "batch-size: [4, eight, 16]",
     "experiment.yaml:4: --batch-size: 'eight' is not a whole number"},
    {"stepps: 5", "batch-size: [4, 8]",
     "experiment.yaml:3: unknown option '--stepps', did you mean '--steps'?"},
    {"steps: 5", "bind: [core, cor]",
     "experiment.yaml:4: --bind: 'cor' is not one of core, numa or none"},
    {"steps: 5", "server-placement: [mixed]",
     "experiment.yaml:4: --server-placement mixed needs --servers"},
};

#define MISTAKES (sizeof(mistakes) / sizeof(mistakes[0]))

START_TEST(test_mistaken_options)
{
    char text[400];
    const char *printed;

    (void)snprintf(text, sizeof(text),
                   "repeats: 1\nverdict: none\noptions: {%s}\naxes: {%s}\n"
                   "modes: [{name: ring, options: {sync: allreduce}}]\n",
                   mistakes[_i].options, mistakes[_i].axes);
    printed = process_run(3, TIMEOUT_MS, NULL,
                          ARGS(support_program("sparring"), "compare", write_experiment(text),
                               "--out", support_path("out")));
    ck_assert_msg(strstr(printed, mistakes[_i].wanted) != NULL, "no '%s' in:\n%s",
                  mistakes[_i].wanted, printed);
    ck_assert_int_ne(access(support_path("out"), F_OK), 0);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN(
        "compare", 600, TEST(test_modes_reach_same_loss), TEST(test_options_of_the_launcher),
        TEST(test_mode_that_fails), TEST(test_network_not_kept), TEST(test_network_is_reported),
        TEST(test_interrupt), LOOP_TEST(test_two_in_one_folder, 0, 2),
        LOOP_TEST(test_good_options, 0, GOOD), LOOP_TEST(test_mistaken_options, 0, MISTAKES));
}
