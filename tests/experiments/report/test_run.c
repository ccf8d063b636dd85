/*
 * Reading run directories: whole ones, crashed ones, and files that break their format.
 */
#include "experiments/report/run.h"
#include "tests/experiments/report/synthetic.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static struct run run;
static struct error err;

static void release_shared_run(void)
{
    run_release(&run);
}

static const char *write_good(void)
{
    struct synthetic_run good = synthetic_ring("good-1");

    return synthetic_write(&good);
}

START_TEST(test_good_run)
{
    assert_ok(run_open(write_good(), &run, &err));
    ck_assert_int_eq(run.state, RUN_OK);
    ck_assert_str_eq(run.name, "good-1");
    ck_assert_str_eq(run.attempt.mode, "ring");
    ck_assert_str_eq(run.configuration.sync, "allreduce");
    ck_assert_str_eq(run.configuration.batch_size, "64");
    ck_assert_str_eq(run.configuration.lr, "0.05");
    ck_assert_str_eq(run.manifest.cpu, "A processor");
    ck_assert_uint_eq(run.manifest.cores, 8);
    ck_assert_double_eq(run.manifest.parameter_bytes, 407080);
    ck_assert_uint_eq(run.rank_count, 2);
    ck_assert_uint_eq(run.ranks[1].length, 60);
    ck_assert_uint_eq(run.ranks[1].steps[59].step, 59);
    ck_assert_int_eq(run.ranks[0].steps[0].compute_ns, 700000);
    ck_assert_str_eq(run.ranks[0].host, "node1");
    ck_assert_double_eq(run.ranks[1].end.peak_rss_bytes, 41943041);
    ck_assert_double_eq(run.summary.test_accuracy, 0.9625);
    ck_assert(isnan(run.summary.samples_per_second));
    release_shared_run();
}
END_TEST

/* Settings that differ only after the cut must stay different. */
START_TEST(test_text_that_is_cut_keeps_its_difference)
{
    char texts[2][32];

    for (int i = 0; i < 2; i++) {
        json_t *value = json_sprintf("OMP_PLACES=%040d", i);

        ck_assert(json_scalar_text(value, texts[i], sizeof(texts[i])));
        ck_assert_uint_eq(strlen(texts[i]), sizeof(texts[i]) - 1);
        json_decref(value);
    }
    ck_assert_mem_eq(texts[0], "OMP_PLACES=000000000...", 23);
    ck_assert_mem_eq(texts[1], "OMP_PLACES=000000000...", 23);
    ck_assert_str_ne(texts[0], texts[1]);
}
END_TEST

START_TEST(test_unknown_records_and_members_are_skipped)
{
    const char *path = write_good();

    synthetic_append(path, "rank0.jsonl",
                     "{\"kind\":\"staleness\",\"bins\":[1,2]}\n"
                     "{\"kind\":\"evaluation\",\"epoch\":1,\"test_loss\":null,"
                     "\"test_accuracy\":0.5,\"new\":{}}\n");
    assert_ok(run_open(path, &run, &err));
    ck_assert_int_eq(run.state, RUN_OK);
    ck_assert_uint_eq(run.ranks[0].evaluation_count, 3);
    ck_assert_uint_eq(run.ranks[0].evaluations[0].steps, 30);
    ck_assert_uint_eq(run.ranks[0].evaluations[2].steps, 60);
    ck_assert_double_eq(run.ranks[0].evaluations[2].test_accuracy, 0.5);
    ck_assert(isnan(run.ranks[0].evaluations[2].test_loss));
    release_shared_run();
}
END_TEST

/* Each of these lines, as line 64 of rank1.jsonl, is an error that names file, line and cause. */
static const char *const bad_lines[][2] = {
    {"{\"kind\":\"step\",\"step\":60", "not JSON"},
    {"[1,2]", "not a JSON object"},
    {"", "not JSON"},
    {"{\"step\":60}", "'kind' is missing"},
    {"{\"kind\":7}", "'kind' is missing"},
    {"{\"kind\":\"step\",\"kind\":\"step\"}", "not JSON"},
    {"{\"kind\":\"step\",\"step\":60}", "'epoch' is missing"},
    {"{\"kind\":\"step\",\"step\":-1}", "'step' is not an integer of at least 0"},
    {"{\"kind\":\"step\",\"step\":1.5}", "'step' is not an integer of at least 0"},
    {"{\"kind\":\"step\",\"step\":60,\"epoch\":0,\"loss\":\"low\"}", "'loss' is not a number"},
    {"{\"kind\":\"end\",\"status\":{}}", "'status' is not a text"},
    {"{\"kind\":\"end\"}", "'status' is missing"},
    {"{\"kind\":\"end\",\"status\":\"ok\",\"staleness_bounds\":[0],\"staleness_pushes\":[1]}",
     "'staleness_pushes' has 1 numbers for 1 in 'staleness_bounds'"},
    {"{\"kind\":\"end\",\"status\":\"ok\",\"staleness_bounds\":[0],\"staleness_pushes\":[1,\"x\"]}",
     "a histogram holds no whole number"},
    {"{\"kind\":\"evaluation\",\"epoch\":0}", "'test_loss' is missing"},
    {"{\"kind\":\"step\",\"step\":7,\"epoch\":0,\"loss\":1,\"samples\":1,\"step_ns\":1,"
     "\"input_ns\":1,\"compute_ns\":1,\"exposed_comm_ns\":1,\"optimizer_ns\":1,"
     "\"tx_payload_bytes\":1,\"rx_payload_bytes\":1}",
     "step 7 comes after step 59"},
    {"{\"kind\":\"step\",\"step\":99999999999999999999999}", "not JSON"},
    {"\xff\xfe", "not JSON"},
};

START_TEST(test_malformed_line)
{
    const char *path = write_good();
    char line[1024];

    (void)snprintf(line, sizeof(line), "{\"kind\":\"note\"}\n%s\n", bad_lines[_i][0]);
    synthetic_append(path, "rank1.jsonl", line);
    assert_fails(run_open(path, &run, &err), STATUS_DATA, "good-1/rank1.jsonl:64: ");
    ck_assert_msg(strstr(err.text, bad_lines[_i][1]) != NULL, "'%s' lacks '%s'", err.text,
                  bad_lines[_i][1]);
}
END_TEST

START_TEST(test_malformed_manifest_and_summary)
{
    const char *path = write_good();

    synthetic_replace(path, "summary.json", "{\"status\":\"ok\",\n\"steps\":x}");
    assert_fails(run_open(path, &run, &err), STATUS_DATA, "summary.json:2: not JSON");
    synthetic_replace(path, "summary.json", "{\"status\":\"ok\",\"test_loss\":\"x\"}");
    assert_fails(run_open(path, &run, &err), STATUS_DATA, "'test_loss' is not a number");
    synthetic_replace(path, "manifest.json", "[]");
    assert_fails(run_open(path, &run, &err), STATUS_DATA, "manifest.json:1: not a JSON object");
    synthetic_replace(path, "manifest.json", "");
    assert_fails(run_open(path, &run, &err), STATUS_DATA, "manifest.json:");
}
END_TEST

static void assert_failed(const char *path, const char *reason)
{
    assert_ok(run_open(path, &run, &err));
    ck_assert_int_eq(run.state, RUN_FAILED);
    ck_assert_msg(strstr(run.reason, reason) != NULL, "'%s' lacks '%s'", run.reason, reason);
    release_shared_run();
}

START_TEST(test_crashed_runs)
{
    const char *path = write_good();

    synthetic_remove(path, "summary.json");
    assert_failed(path, "summary.json is missing");
    synthetic_remove(path, "manifest.json");
    assert_failed(path, "manifest.json is missing");
    synthetic_remove(path, "rank0.jsonl");
    synthetic_remove(path, "rank1.jsonl");
    assert_failed(path, "manifest.json is missing");
    synthetic_replace(path, "attempt.json",
                      "{\"mode\":\"ring\",\"outcome\":\"timed out after 9 s\",\"seed\":4}");
    assert_ok(run_open(path, &run, &err));
    ck_assert_str_eq(run.reason, "timed out after 9 s");
    ck_assert_str_eq(run.configuration.seed, "4");
    release_shared_run();
    synthetic_remove(path, "attempt.json");
    assert_fails(run_open(path, &run, &err), STATUS_NOT_FOUND, "is not a run directory");
}
END_TEST

START_TEST(test_run_of_a_newer_program)
{
    const char *path = write_good();

    synthetic_replace(path, "summary.json", "{\"schema\":4,\"status\":\"ok\"}");
    assert_failed(path, "summary.json has schema 4, and this program reads up to 3");
}
END_TEST

START_TEST(test_missing_rank)
{
    const char *path = write_good();

    synthetic_remove(path, "rank1.jsonl");
    assert_failed(path, "rank1.jsonl is missing (the world size is 2)");
}
END_TEST

START_TEST(test_rank_of_another_run)
{
    const char *path = write_good();

    synthetic_replace(path, "rank2.jsonl", "");
    assert_failed(path, "rank2.jsonl is there, and the world size is 2");
    synthetic_replace(path, "manifest.json", "{\"options\":{}}"); /* no world size */
    assert_failed(path, "rank 2 recorded no step");
    synthetic_replace(path, "manifest.json", "{\"world_size\":9000000000000000000}");
    assert_failed(path, "rank 2 wrote no end record");
    synthetic_remove(path, "rank2.jsonl");
    assert_failed(path, "rank2.jsonl is missing (the world size is 9000000000000000000)");
}
END_TEST

START_TEST(test_cut_line)
{
    const char *path = write_good();

    synthetic_append(path, "rank1.jsonl", "{\"kind\":\"step\",\"st");
    assert_failed(path, "rank1.jsonl ends inside a line");
    path = write_good();
    synthetic_replace(path, "server0.jsonl", "{\"kind\":\"start\",\"server\":0}\n{\"kind\":\"ro");
    assert_failed(path, "server0.jsonl ends inside a line");
}
END_TEST

START_TEST(test_rank_without_end)
{
    const char *path = write_good();

    synthetic_replace(path, "rank1.jsonl", "{\"kind\":\"start\",\"host\":\"h\"}\n");
    assert_failed(path, "rank 1 wrote no end record");
    synthetic_replace(path, "rank1.jsonl", "{\"kind\":\"end\",\"status\":\"ok\"}\n");
    assert_failed(path, "rank 1 recorded no step");
}
END_TEST

START_TEST(test_cause_comes_before_symptom)
{
    const char *path = write_good();

    synthetic_replace(path, "attempt.json", "{\"mode\":\"ring\",\"outcome\":\"exit code 1\"}");
    synthetic_replace(path, "rank1.jsonl", "{\"kind\":\"end\",\"status\":\"peer lost\"}\n");
    assert_failed(path, "rank 1: peer lost");
    synthetic_replace(path, "summary.json",
                      "{\"status\":\"failed\",\"error\":\"rank 1 failed: out of memory\"}");
    assert_failed(path, "rank 1 failed: out of memory");
}
END_TEST

START_TEST(test_server_failure_is_reported)
{
    struct synthetic_run served = synthetic_ring("served");
    const char *path;

    served.servers = 1;
    path = synthetic_write(&served);
    assert_ok(run_open(path, &run, &err));
    ck_assert_uint_eq(run.server_count, 1);
    release_shared_run();
    synthetic_remove(path, "summary.json");
    synthetic_append(path, "server0.jsonl",
                     "{\"kind\":\"end\",\"status\":\"peer lost\",\"error\":\"rank 1 is gone\"}\n");
    assert_failed(path, "server 0: rank 1 is gone");
}
END_TEST

START_TEST(test_configuration_of_a_crashed_run)
{
    const char *path = write_good();

    synthetic_remove(path, "summary.json");
    assert_ok(run_open(path, &run, &err));
    ck_assert_str_eq(run.configuration.batch_size, "64");
    release_shared_run();
}
END_TEST

static void assert_list(const char *path, size_t length, const char *first, const char *last)
{
    struct run_list list = {0};

    assert_ok(run_list_add(&list, path, &err));
    ck_assert_uint_eq(list.length, length);
    ck_assert_str_eq(list.runs[0].name, first);
    ck_assert_str_eq(list.runs[length - 1].name, last);
    run_list_release(&list);
}

START_TEST(test_lists)
{
    struct run_list list = {0};
    const char *path = synthetic_experiment("m", 11);

    assert_list(path, 44, "control-0", "single-10"); /* "-10" sorts behind "-9" */
    assert_list(support_path("m/runs"), 44, "control-0", "single-10");
    assert_list(support_path("m/runs/ring-3/"), 1, "ring-3", "ring-3");
    (void)support_write("file", "x", 1);
    assert_fails(run_list_add(&list, support_path("file"), &err), STATUS_INVALID, "not a folder");
    assert_fails(run_list_add(&list, support_path("nowhere"), &err), STATUS_NOT_FOUND, "nowhere");
    assert_fails(run_list_add(&list, "/proc/self/fdinfo", &err), STATUS_NOT_FOUND, "holds no run");
    ck_assert_uint_eq(list.length, 0);
    run_list_release(&list);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN(
        "report run", 60, TEST(test_good_run), TEST(test_text_that_is_cut_keeps_its_difference),
        TEST(test_unknown_records_and_members_are_skipped),
        LOOP_TEST(test_malformed_line, 0, sizeof(bad_lines) / sizeof(bad_lines[0])),
        TEST(test_malformed_manifest_and_summary), TEST(test_crashed_runs),
        TEST(test_run_of_a_newer_program), TEST(test_missing_rank), TEST(test_rank_of_another_run),
        TEST(test_cut_line), TEST(test_rank_without_end), TEST(test_cause_comes_before_symptom),
        TEST(test_server_failure_is_reported), TEST(test_configuration_of_a_crashed_run),
        TEST(test_lists));
}
