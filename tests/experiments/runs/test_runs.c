/*
 * `sparring runs`: what it lists of run directories with known figures, which it leaves out, in
 * which order.
 */
#include "experiments/runs/runs.h"
#include "tests/experiments/report/synthetic.h"
#include "tests/support/command.h"
#include "tests/support/support.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char *output, *errors;

static int list(char *first, char *second, char *third)
{
    char name[] = "runs";
    char *argv[] = {name, first, second, third, NULL};

    return command_run(runs_main, argv, &output, &errors);
}

static void teardown(void)
{
    free(output);
    free(errors);
    output = errors = NULL;
}

/* 2 runs each of ring, ps-1, control and single, one of which has failed, and a run elsewhere that
 * goes on. */
static char *write_runs(void)
{
    static char folder[600];
    struct synthetic_run failed = synthetic_ring("all/more/failed");
    struct synthetic_run running = synthetic_ring("all/alone");

    (void)snprintf(folder, sizeof(folder), "%s", support_path("all"));
    ck_assert_int_eq(mkdir(folder, 0700), 0);
    (void)synthetic_experiment("all/experiment", 2);
    ck_assert_int_eq(mkdir(support_path("all/more"), 0700), 0);
    failed.outcome = "exit code 1";
    failed.steps = 7;
    synthetic_remove(synthetic_write(&failed), "summary.json");
    running.mode = NULL;
    synthetic_remove(synthetic_write(&running), "summary.json");
    return folder;
}

/* Lines of the output that have a text. */
static unsigned count_lines(const char *text)
{
    unsigned count = 0;

    for (const char *line = output; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        const char *found = strstr(line, text);

        count += found && found < line + strcspn(line, "\n");
    }
    return count;
}

START_TEST(test_table)
{
    ck_assert_int_eq(list(write_runs(), NULL, NULL), 0);
    ck_assert_msg(strstr(output, "10 runs\n") != NULL, "%s", output);
    ck_assert_uint_eq(count_lines("/all/experiment/runs/ring-"), 2);
    ck_assert_uint_eq(count_lines("exit code "), 1);
    ck_assert_uint_eq(count_lines("not ended "), 1);
    ck_assert_uint_eq(count_lines(" allreduce ring "), 2);
    ck_assert_uint_eq(count_lines(" ps "), 2);
    ck_assert_ptr_nonnull(strstr(output, "all/alone\n"));
}
END_TEST

/* Counts have all their digits. */
START_TEST(test_large_counts)
{
    char *folder = write_runs(), json[] = "--json", where[] = "--where=steps=12345678";

    synthetic_replace(support_path("all/experiment/runs/ring-0"), "summary.json",
                      "{\"schema\":3,\"status\":\"ok\",\"steps\":12345678}");
    ck_assert_int_eq(list(folder, where, json), 0);
    ck_assert_msg(strstr(output, "\"steps\":12345678,") != NULL, "%s", output);
}
END_TEST

static char where_mode[] = "--where=mode=ring,status=ok", where_option[] = "--where=model=ml?:*",
            where_both[] = "--where=mode=ring,ranks=17", where_bad[] = "--where=ring";

static const struct {
    char *where;
    const char *text;
} filters[] = {{where_mode, "2 runs\n"}, {where_option, "8 runs\n"}, {where_both, "0 runs\n"}};

START_TEST(test_filters)
{
    ck_assert_int_eq(list(write_runs(), filters[_i].where, NULL), 0);
    ck_assert_msg(strstr(output, filters[_i].text) != NULL, "%s", output);
}
END_TEST

START_TEST(test_wrong_words)
{
    char missing[] = "/does/not/exist";

    ck_assert_int_eq(list(write_runs(), where_bad, NULL), 2);
    ck_assert_ptr_nonnull(strstr(errors, "--where: 'ring' is not NAME=VALUE"));
    ck_assert_int_ne(list(missing, NULL, NULL), 0);
    ck_assert_ptr_nonnull(strstr(errors, "cannot list '/does/not/exist'"));
}
END_TEST

/* Numbers are numbers there, and texts that look like some are not. */
START_TEST(test_json_and_order)
{
    char json[] = "--json", sort[] = "--sort=test_accuracy";
    struct synthetic_run run = synthetic_ring("all/zz");
    char *folder = write_runs();
    char *rest = NULL;
    double before = 0;
    unsigned count = 0;

    run.commit = "8e10";
    run.accuracy = 0.1;
    (void)synthetic_write(&run);
    ck_assert_int_eq(list(folder, json, sort), 0);
    for (char *line = strtok_r(output, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        json_t *object = json_loads(line, 0, NULL);
        const json_t *accuracy = json_object_get(object, "test_accuracy");

        ck_assert_msg(object != NULL, "%s", line);
        ck_assert(json_is_string(json_object_get(object, "commit")));
        ck_assert(json_is_number(accuracy) || json_is_null(accuracy));
        ck_assert(json_is_integer(json_object_get(object, "ranks")));
        if (json_is_number(accuracy)) {
            ck_assert(json_number_value(accuracy) >= before);
            before = json_number_value(accuracy);
        }
        count++;
        json_decref(object);
    }
    ck_assert_uint_eq(count, 11);
    ck_assert(before > 0);
}
END_TEST

/* It is named, the others are listed, and the exit code says so. */
START_TEST(test_unreadable_run)
{
    char *folder = write_runs();

    synthetic_replace(support_path("all/alone"), "manifest.json", "{\"run\":");
    ck_assert_int_eq(list(folder, NULL, NULL), 1);
    ck_assert_ptr_nonnull(strstr(output, "9 runs\n"));
    ck_assert_msg(strstr(errors, "left out: ") && strstr(errors, "all/alone/manifest.json"), "%s",
                  errors);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("runs", 60, CHECKED_FIXTURE(NULL, teardown), TEST(test_table),
                       TEST(test_large_counts), LOOP_TEST(test_filters, 0, 3),
                       TEST(test_wrong_words), TEST(test_json_and_order),
                       TEST(test_unreadable_run));
}
