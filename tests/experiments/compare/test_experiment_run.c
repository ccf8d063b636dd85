/*
 * `sparring compare` as a whole over scripts in the place of sparring and sparring-worker, which
 * succeed, fail or hang on demand; real jobs run in tests/integration.  The script `sparring`
 * appends its command line to a file and copies the prepared run of its mode into --run-dir.
 */
#include "common/base/file.h"
#include "experiments/compare/compare.h"
#include "experiments/compare/experiment.h"
#include "tests/experiments/report/synthetic.h"
#include "tests/support/command.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct error err;

static void write_program(const char *name, const char *text)
{
    struct stat info;
    const char *path = support_write(name, text, strlen(text));

    ck_assert_int_eq(stat(path, &info), 0);
    ck_assert_int_eq(chmod(path, 0755), 0);
}

/* Write the scripts, the experiment, and the runs to copy, one per mode, in FOLDER/ready/MODE. */
static void prepare_runs(void)
{
    static const char launcher[] = "#!/bin/sh\n"
                                   "case $* in *--print-config) exit 0 ;; esac\n"
                                   "root=${0%/*}\n"
                                   "echo \"$@\" >>$root/commands\n"
                                   "for word; do\n"
                                   "  case $word in --run-dir=*) dir=${word#*=} ;; esac\n"
                                   "done\n"
                                   "run=${dir##*/}\n"
                                   "mode=${run%-*}\n"
                                   "echo \"this is $run\"\n"
                                   "[ -e $root/interrupt-$run ] && kill -INT $PPID\n"
                                   "[ -e $root/interrupt-$run ] && exec sleep 1000\n"
                                   "[ -e $root/hang-$run ] && exec sleep 1000\n"
                                   "for i in 1 2 3; do\n"
                                   "  if [ -e $root/disturb-$run-$i ]; then\n"
                                   "    rm $root/disturb-$run-$i\n"
                                   "    echo \"try $i\" > $dir/note.txt\n"
                                   "    exit 8\n"
                                   "  fi\n"
                                   "done\n"
                                   "if [ -e $root/fail-$run ]; then\n"
                                   "  echo 'rank 1: something broke'\n"
                                   "  exit 7\n"
                                   "fi\n"
                                   "cp $root/ready/$mode/[mrs]*.json* $dir/\n";
    static const char experiment[] =
        "title: Two\nnproc: 3\nrepeats: 6\ndeadline: 60\n"
        "options: {model: 'mlp:4-2', seed: 40}\n"
        "modes:\n"
        "- {name: ring, label: ring all-reduce, options: {sync: allreduce}}\n"
        "- {name: ps, label: server, servers: 1, options: {sync: ps}}\n";
    struct synthetic_run run = synthetic_ring("ready/ring");

    run.mode = NULL;
    (void)synthetic_write(&run);
    run.folder = "ready/ps";
    run.sync = "ps";
    run.backend = "grpc";
    run.servers = 1;
    run.comm_ms = 0.6;
    (void)synthetic_write(&run);
    write_program("sparring", launcher);
    write_program("sparring-worker", "#!/bin/sh\n");
    (void)support_write("match.yaml", experiment, sizeof(experiment) - 1);
}

static char *read_text(const char *name)
{
    char *text = NULL;
    size_t size = 0;

    assert_ok(file_read(support_path(name), 1 << 20, &text, &size, &err));
    return text;
}

static char *output;
static char *errors;

/* compare_main over the scripts; stdout and stderr are read back. */
static int run_compare(const char *first, const char *second, const char *third)
{
    char words[6][4096] = {"compare", "--programs", "", "", "", ""};
    char *argv[8] = {words[0], words[1], words[2], words[3], words[4], words[5], NULL};
    const char *more[] = {first, second, third};
    int argc = 3;

    (void)snprintf(words[2], sizeof(words[2]), "%s", support_folder());
    for (size_t i = 0; i < 3 && more[i]; i++)
        (void)snprintf(words[argc++], sizeof(words[0]), "%s", more[i]);
    argv[argc] = NULL;
    return command_run(compare_main, argv, &output, &errors);
}

static void release_output(void)
{
    free(output);
    free(errors);
    output = errors = NULL;
}

static void assert_has(const char *text, const char *part)
{
    ck_assert_msg(strstr(text, part) != NULL, "'%s' lacks '%s'", text, part);
}

static void assert_lacks(const char *text, const char *part)
{
    ck_assert_msg(strstr(text, part) == NULL, "'%s' has '%s'", text, part);
}

static const char *out_word(void)
{
    static char word[4096];

    (void)snprintf(word, sizeof(word), "--out=%s", support_path("out"));
    return word;
}

START_TEST(test_whole_experiment)
{
    char *commands;
    const char *line;
    const struct experiment e = {.seed = 40, .mode_count = 2};

    prepare_runs();
    ck_assert_int_eq(run_compare(support_path("match.yaml"), out_word(), NULL), 0);
    commands = read_text("commands");
    line = commands;
    for (size_t i = 0; i < 12; i++) { /* block by block, in random order, a seed per block */
        size_t modes[EXPERIMENT_MODES_MAX];
        char wanted[128];

        experiment_order(&e, i / 2, modes);

        (void)snprintf(wanted, sizeof(wanted), "--seed=%zu --run-dir=", 40 + i / 2);
        ck_assert_msg(strstr(line, wanted) == strstr(line, "--seed="), "'%s' in '%s'", wanted,
                      line);
        (void)snprintf(wanted, sizeof(wanted), "/out/runs/%s-%zu --",
                       modes[i % 2] == 0 ? "ring" : "ps", i / 2);
        ck_assert_msg(memmem(line, strcspn(line, "\n"), wanted, strlen(wanted)) != NULL,
                      "'%s' in '%s'", wanted, line);
        line += strcspn(line, "\n") + 1;
    }
    ck_assert_int_eq(*line, '\0');
    assert_has(commands, "launch --standalone --nproc-per-node=3 --servers=1 --run-dir=");
    assert_has(commands, "/sparring-worker --model=mlp:4-2 --sync=ps --seed=40");
    assert_has(errors, "12/12 ");
    assert_has(output, "ring all-reduce has 1.39x");
    assert_has(output, "out/report.html\n");
    ck_assert_int_eq(access(support_path("out/report.html"), R_OK), 0);
    free(commands);
    commands = read_text("out/runs/ps-1/log.txt");
    ck_assert_str_eq(commands, "this is ps-1\n");
    free(commands);
    release_output();
}
END_TEST

START_TEST(test_failures_are_shown_and_counted)
{
    prepare_runs();
    (void)support_write("fail-ps-1", "", 0);
    ck_assert_int_eq(run_compare(support_path("match.yaml"), out_word(), NULL), 0);
    assert_has(errors, "ps-1: exit code 7");
    assert_has(errors, "  this is ps-1\n  rank 1: something broke\n");
    assert_has(output, "failed runs:\n  ps-1: exit code 7");
    release_output();
}
END_TEST

/* A run in a network that was not kept to is made again, twice; what it wrote is kept aside. */
START_TEST(test_discarded_runs_are_made_again)
{
    char *text;

    prepare_runs();
    (void)support_write("disturb-ps-1-1", "", 0);
    for (unsigned i = 1; i <= 3; i++) {
        char name[32];

        (void)snprintf(name, sizeof(name), "disturb-ring-2-%u", i);
        (void)support_write(name, "", 0);
    }
    ck_assert_int_eq(run_compare(support_path("match.yaml"), out_word(), NULL), 0);
    assert_has(errors, "ps-1: discarded, the emulated network was not kept to");
    assert_lacks(output, "ps-1");
    assert_has(output, "failed runs:\n  ring-2: discarded");
    text = read_text("out/discarded/ring-2.2/note.txt");
    ck_assert_str_eq(text, "try 2\n");
    free(text);
    ck_assert_int_ne(access(support_path("out/discarded/ring-2.3"), F_OK), 0);
    text = read_text("out/report.md");
    assert_has(text, "| discarded runs | 3, made again: ");
    free(text);
    release_output();
}
END_TEST

START_TEST(test_all_failed)
{
    prepare_runs();
    for (unsigned i = 0; i < 12; i++) {
        char name[32];

        (void)snprintf(name, sizeof(name), "fail-%s-%u", i % 2 ? "ring" : "ps", i / 2);
        (void)support_write(name, "", 0);
    }
    ck_assert_int_eq(run_compare(support_path("match.yaml"), out_word(), NULL), 1);
    assert_has(errors, "no run succeeded, see ");
    ck_assert_int_eq(access(support_path("out/report.html"), R_OK), 0);
    ck_assert_int_eq(run_compare(support_path("match.yaml"), out_word(), NULL), 1); /* again */
    release_output();
}
END_TEST

START_TEST(test_deadline)
{
    prepare_runs();
    (void)support_write("hang-ring-0", "", 0);
    ck_assert_int_eq(run_compare(support_path("match.yaml"), out_word(),
                                 "--deadline=8" /* of the good ones, too */),
                     0);
    assert_has(errors, "ring-0: timed out after 8 s");
    assert_has(output, "failed runs:\n  ring-0: timed out after 8 s");
    release_output();
}
END_TEST

/* Ctrl-C while a run hangs: the script itself sends the signal to the program that started it. */
START_TEST(test_interrupt)
{
    char *attempt;

    prepare_runs();
    (void)support_write("interrupt-ps-0", "", 0);
    ck_assert_int_eq(run_compare(support_path("match.yaml"), out_word(), NULL), 6);
    assert_has(errors, "Interrupt: stopped ps-0 and what it had started");
    attempt = read_text("out/runs/ps-0/attempt.json");
    assert_has(attempt, "\"outcome\":\"stopped after ");
    ck_assert_int_ne(access(support_path("out/runs/ps-1"), F_OK), 0);
    free(attempt);
    release_output();
}
END_TEST

static size_t count_runs(void)
{
    char *text = read_text("commands");
    size_t runs = 0;

    for (const char *p = text; (p = strstr(p, "launch ")); p++)
        runs++;
    free(text);
    return runs;
}

/* As after a crash in a run of the parameter server. */
static void crash_in(int repeat)
{
    char path[64], text[300];
    const int length =
        snprintf(text, sizeof(text),
                 "{\"schema\":1,\"title\":\"Two\",\"mode\":\"ps\",\"label\":\"server\","
                 "\"mode_index\":1,\"repeat\":%d,\"order\":%d,\"seed\":%d,"
                 "\"seconds\":0,\"outcome\":\"\",\"command\":\"\"}\n",
                 repeat, 2 * repeat, 40 + repeat);

    (void)snprintf(path, sizeof(path), "out/runs/ps-%d/attempt.json", repeat);
    (void)support_write(path, text, (size_t)length);
}

/* After a crash in the fourth block the blocks before it do not run again. */
START_TEST(test_resume)
{
    prepare_runs();
    ck_assert_int_eq(run_compare(support_path("match.yaml"), out_word(), NULL), 0);
    crash_in(3);
    ck_assert_int_eq(unlink(support_path("commands")), 0);
    ck_assert_int_eq(run_compare(support_path("match.yaml"), out_word(), NULL), 0);
    assert_has(errors, "6 runs are there already");
    assert_has(errors, "block 4 runs again, ");
    assert_has(output, "ring all-reduce has 1.39x");
    ck_assert_uint_eq(count_runs(), 6);
    ck_assert_int_eq(access(support_path("out/lost/ps-3.1/log.txt"), R_OK), 0);
    ck_assert_int_eq(access(support_path("out/runs/ps-3/rank0.jsonl"), R_OK), 0);
    ck_assert_int_eq(run_compare(support_path("match.yaml"), out_word(), NULL), 0);
    assert_has(errors, "12 runs are there already");
    assert_has(output, "ring all-reduce has 1.39x");
    ck_assert_uint_eq(count_runs(), 6);
    release_output();
}
END_TEST

/* Runs of another experiment or program are not mixed in; what has changed is listed. */
START_TEST(test_changed_plan)
{
    static const char other[] =
        "title: Two\nnproc: 3\nrepeats: 6\ndeadline: 60\nmargin: 3\n"
        "options: {model: 'mlp:4-3', seed: 40}\n"
        "modes:\n"
        "- {name: ring, label: ring all-reduce, options: {sync: allreduce}}\n"
        "- {name: ps, label: server, servers: 1, options: {sync: ps}}\n";
    static const char *const changes[] = {
        "out/plan.json' is the plan of other runs; choose another --out:\n",
        "  margin: \"0.03\", was \"0.02\"\n",
        "  cells: all: ring: no longer has --model=mlp:4-2\n",
        "  cells: all: ring: now has --model=mlp:4-3\n",
        "  cells: all: ps: now has --model=mlp:4-3\n",
    };

    prepare_runs();
    (void)support_write("other.yaml", other, sizeof(other) - 1);
    ck_assert_int_eq(run_compare(support_path("match.yaml"), out_word(), NULL), 0);
    ck_assert_int_eq(run_compare(support_path("other.yaml"), out_word(), NULL), 3);
    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++)
        assert_has(errors, changes[i]);
    ck_assert_int_eq(run_compare(support_path("match.yaml"), out_word(), "--repeats=7"), 3);
    assert_has(errors, "\n  repeats: 7, was 6\n");
    write_program("sparring-worker", "#!/bin/sh\n#\n");
    ck_assert_int_eq(run_compare(support_path("match.yaml"), out_word(), NULL), 3);
    assert_has(errors, "\n  files: sparring-worker: \"");
    ck_assert_int_eq(unlink(support_path("out/plan.json")), 0);
    ck_assert_int_eq(run_compare(support_path("match.yaml"), out_word(), NULL), 1);
    assert_has(errors, "holds runs already: choose another --out");
    ck_assert_uint_eq(count_runs(), 12);
    release_output();
}
END_TEST

/* A file that the experiment names is part of the plan. */
START_TEST(test_changed_file)
{
    static const char text[] = "nproc: 3\nrepeats: 1\nverdict: none\n"
                               "options: {model: 'profile:p.json', delay-schedule: ./delays}\n"
                               "modes: [{name: ring, options: {sync: allreduce}}]\n";

    prepare_runs();
    (void)support_write("named.yaml", text, sizeof(text) - 1);
    (void)support_write("delays", "0 0 1\n", 6);
    (void)support_write("p.json", "{}", 2);
    ck_assert_int_eq(chdir(support_folder()), 0);
    ck_assert_int_eq(run_compare(support_path("named.yaml"), out_word(), NULL), 0);
    (void)support_write("delays", "0 0 2\n", 6);
    ck_assert_int_eq(run_compare(support_path("named.yaml"), out_word(), NULL), 3);
    assert_has(errors, "/delays: \"");
    (void)support_write("delays", "0 0 1\n", 6);
    (void)support_write("p.json", "[]", 2);
    ck_assert_int_eq(run_compare(support_path("named.yaml"), out_word(), NULL), 3);
    assert_has(errors, "files: p.json: \"");
    release_output();
}
END_TEST

/* The design is written before the first run; one with too few blocks for its pairs is refused. */
START_TEST(test_design)
{
    char *design;

    prepare_runs();
    ck_assert_int_eq(run_compare(support_path("match.yaml"), out_word(), "--repeats=5"), 3);
    assert_has(errors, "5 repeats cannot decide 1 pair of modes at a level of 0.05: it takes 6 (or "
                       "verdict none, for figures alone)");
    ck_assert_int_ne(access(support_path("out"), F_OK), 0);
    ck_assert_int_eq(run_compare(support_path("match.yaml"), out_word(), "--verdict=ring:pss"), 3);
    assert_has(errors, "the verdict names a mode 'pss', which there is not");
    ck_assert_int_eq(run_compare(support_path("match.yaml"), out_word(), "--verdict=ring"), 2);
    assert_has(errors, "--verdict 'ring' is neither none, nor all, nor A:B,... of modes");
    ck_assert_int_eq(run_compare(support_path("match.yaml"), out_word(), "--verdict=ps:ring"), 0);
    design = read_text("out/design.json");
    assert_has(design, "\"blocks\":6,\"pairs\":[[\"ps\",\"ring\"]]");
    free(design);
    release_output();
}
END_TEST

/* Blocks are added until the verdict is decided, and the level is divided among the looks.  After
 * a crash in the eighth block there is no look before the ninth has run. */
START_TEST(test_until_decided)
{
    char *text;

    prepare_runs();
    ck_assert_int_eq(run_compare(support_path("match.yaml"), out_word(), "--until-decided=6"), 3);
    assert_has(errors, "until 6 blocks is no more than the 6 repeats there are");
    ck_assert_int_eq(run_compare(support_path("match.yaml"), out_word(), "--until-decided=12"), 0);
    assert_has(errors, "undecided after 6 blocks: 3 more\n"); /* 2 / 2^6 is above 0.05 / 3 */
    assert_lacks(errors, "undecided after 9 blocks");
    ck_assert_uint_eq(count_runs(), 18);
    crash_in(7);
    ck_assert_int_eq(run_compare(support_path("match.yaml"), out_word(), "--until-decided=12"), 0);
    ck_assert_uint_eq(count_runs(), 22);
    text = read_text("out/design.json");
    assert_has(text, "\"blocks\":6,\"most_blocks\":12,");
    free(text);
    text = read_text("out/report.json");
    assert_has(text, "\"state\":\"faster\"");
    assert_has(text, "\"level\":0.05,\"looks\":3,");
    free(text);
    text = read_text("out/report.md");
    assert_has(text, "looked at up to 3 times");
    assert_has(text, "(98.3 % interval)");
    free(text);
    release_output();
}
END_TEST

/* Each cell is an experiment in its folder; the first block of every cell runs before the second of
 * any. */
START_TEST(test_sweep)
{
    static const char axes[] = "axes: {nproc: [2, 3], batch-size: 8..16 *2}\n"
                               "where: [batch-size < 16, nproc < 9]\n";
    char *commands;
    char *text = NULL;
    size_t blocks[2] = {0};
    size_t runs = 0;

    prepare_runs();
    text = read_text("match.yaml");
    commands = malloc(strlen(text) + sizeof(axes));
    ck_assert_ptr_nonnull(commands);
    (void)snprintf(commands, strlen(text) + sizeof(axes), "%s%s", axes, text);
    (void)support_write("sweep.yaml", commands, strlen(commands));
    free(commands);
    free(text);
    ck_assert_int_eq(run_compare(support_path("sweep.yaml"), "--dry-run", "--repeats=8"), 0);
    assert_has(output,
               "nproc=2,batch-size=8\nnproc=3,batch-size=8\n2 cells of 2 modes, 8 blocks: 32 "
               "runs, at least 96 s");
    ck_assert_int_ne(access(support_path("out"), F_OK), 0);
    ck_assert_int_eq(run_compare(support_path("sweep.yaml"), out_word(), NULL), 3);
    assert_has(errors, "6 repeats cannot decide 1 pair of modes at a level of 0.025: it takes 7");
    ck_assert_int_ne(access(support_path("out"), F_OK), 0);
    ck_assert_int_eq(run_compare(support_path("sweep.yaml"), out_word(), "--repeats=8"), 0);
    commands = read_text("commands");
    for (const char *line = commands; *line; line += strcspn(line, "\n") + 1, runs++) {
        const size_t cell = strstr(line, "cells/nproc=3") &&
                            strstr(line, "cells/nproc=3") < line + strcspn(line, "\n");
        char ranks[32];

        (void)snprintf(ranks, sizeof(ranks), "--nproc-per-node=%zu", 2 + cell);
        ck_assert(strstr(line, ranks) == strstr(line, "--nproc-per-node="));
        blocks[cell] += runs % 2;
        ck_assert(blocks[0] <= blocks[1] + 1 && blocks[1] <= blocks[0] + 1);
    }
    ck_assert_uint_eq(runs, 32);
    assert_has(commands, "--batch-size=8 ");
    free(commands);
    assert_has(errors, "nproc=2,batch-size=8: 16/16 ");
    assert_has(output, "nproc=2,batch-size=8: ring all-reduce 1.39 (");
    assert_has(output, "out/index.html\n");
    ck_assert_int_eq(access(support_path("out/cells/nproc=3,batch-size=8/report.html"), R_OK), 0);
    text = read_text("out/cells/nproc=2,batch-size=8/design.json");
    assert_has(text, "\"title\":\"Two: nproc=2,batch-size=8\",\"level\":0.025");
    free(text);
    text = read_text("out/cells.csv");
    assert_has(text, "\n\"3\",\"8\",\"ring all-reduce\",\"server\",faster,0,8,1.39");
    free(text);
    text = read_text("sweep.yaml");    /* more values: only their cells run */
    *(strstr(text, "< 16") + 2) = '9'; /* 96 */
    (void)support_write("sweep.yaml", text, strlen(text));
    free(text);
    ck_assert_int_eq(unlink(support_path("commands")), 0);
    ck_assert_int_eq(run_compare(support_path("sweep.yaml"), out_word(), "--repeats=9"), 3);
    assert_has(errors, "\n  repeats: 9, was 8\n");
    ck_assert_int_eq(run_compare(support_path("sweep.yaml"), out_word(), "--repeats=8"), 0);
    assert_has(errors, "32 runs are there already");
    assert_has(output, "nproc=3,batch-size=16: ring all-reduce 1.39 (");
    commands = read_text("commands");
    ck_assert_ptr_null(strstr(commands, "--batch-size=8 "));
    free(commands);
    ck_assert_uint_eq(count_runs(), 32);
    text = read_text("out/cells/nproc=2,batch-size=8/design.json");
    assert_has(text, "\"level\":0.0125");
    free(text);
    ck_assert_int_eq(run_compare(support_path("sweep.yaml"), "--fail-if=throughput:-5%", NULL), 2);
    assert_has(errors, "--fail-if goes with an experiment without axes");
    ck_assert_int_eq(run_compare(support_path("sweep.yaml"), "--nproc=4", NULL), 2);
    assert_has(errors, "--nproc: nproc is an axis");
    release_output();
}
END_TEST

/* After Ctrl-C there is a report of what has run. */
START_TEST(test_interrupted_sweep)
{
    static const char text[] = "nproc: 3\nrepeats: 2\ndeadline: 60\nverdict: none\n"
                               "axes: {lr: [1, 2]}\noptions: {model: 'mlp:4-2', seed: 40}\n"
                               "modes: [{name: ring, options: {sync: allreduce}}, "
                               "{name: ps, servers: 1, options: {sync: ps}}]\n";

    prepare_runs();
    (void)support_write("sweep.yaml", text, sizeof(text) - 1);
    (void)support_write("interrupt-ps-1", "", 0);
    ck_assert_int_eq(run_compare(support_path("sweep.yaml"), out_word(), NULL), 6);
    assert_has(errors, "Interrupt: stopped ps-1");
    assert_has(output, "out/index.html\n");
    ck_assert_int_eq(access(support_path("out/cells/lr=1/report.html"), R_OK), 0);
    ck_assert_int_eq(access(support_path("out/cells/lr=2/report.html"), R_OK), 0);
    release_output();
}
END_TEST

START_TEST(test_gate_sets_the_exit_code)
{
    prepare_runs();
    ck_assert_int_eq(
        run_compare(support_path("match.yaml"), out_word(), "--fail-if=throughput:+5%"), 5);
    assert_has(output, "throughput:+5%: ring has 1.");
    assert_has(output, "FAILED");
    release_output();
}
END_TEST

START_TEST(test_wrong_arguments)
{
    prepare_runs();
    ck_assert_int_eq(run_compare("no-such-experiment", NULL, NULL), 1);
    assert_has(errors, "no experiment 'no-such-experiment'");
    ck_assert_int_eq(run_compare(support_path("match.yaml"), "b.yaml", "--fail-if=throughput:+5%"),
                     2);
    assert_has(errors, "--fail-if goes with one experiment");
    ck_assert_int_eq(run_compare(support_path("match.yaml"), "--fail-if=speed", NULL), 2);
    assert_has(errors, "is not METRIC:CHANGE");
    ck_assert_int_eq(run_compare(support_path("match.yaml"), "--baseline=x", NULL), 2);
    assert_has(errors, "--baseline and --ignore go with --fail-if");
    (void)support_write("bad.yaml", "modes:\n- {nam: x}\n", 18);
    ck_assert_int_eq(run_compare(support_path("bad.yaml"), NULL, NULL), 3);
    assert_has(errors, "bad.yaml:2: unknown key 'modes.0.nam', did you mean 'name'?");
    ck_assert_int_eq(run_compare("--help", NULL, NULL), 0);
    assert_has(output, "--fail-if");
    release_output();
}
END_TEST

/* "all" are the files beside that of the default experiment. */
START_TEST(test_set)
{
    static const char bad[] = "modes:\n- {nam: x}\n";
    char *text;

    prepare_runs();
    text = read_text("match.yaml");
    (void)support_write("quickstart.yaml", text, strlen(text));
    free(text);
    (void)support_write("bad.yaml", bad, strlen(bad));
    ck_assert_int_eq(run_compare("all", out_word(), NULL), 1);
    assert_has(errors, "bad: ");
    assert_has(errors, "1 of 3 experiments failed");
    assert_has(output, "out/index.html\n");
    text = read_text("out/index.html");
    assert_has(text, "<td></td><td>bad</td><td>");
    assert_has(text, "unknown key &#39;modes.0.nam&#39;");
    assert_has(text, "<a href=\"match/report.html\">report</a>");
    assert_has(text, "<td>quickstart</td><td>On this host, over loopback: ring");
    free(text);
    ck_assert_int_eq(run_compare(support_path("match.yaml"), "quickstart", "--dry-run"), 0);
    ck_assert_int_eq(unlink(support_path("bad.yaml")), 0);
    ck_assert_int_eq(run_compare("all", out_word(), NULL), 0); /* all has run */
    release_output();
}
END_TEST

START_TEST(test_programs_and_out_that_are_not_there)
{
    prepare_runs();
    ck_assert_int_eq(unlink(support_path("sparring-worker")), 0);
    ck_assert_int_eq(run_compare(support_path("match.yaml"), out_word(), NULL), 1);
    assert_has(errors, "cannot run '");
    assert_has(errors, "/sparring-worker'");
    write_program("sparring-worker", "#!/bin/sh\n");
    ck_assert_int_eq(run_compare(support_path("match.yaml"), "--out=/proc/sparring", NULL), 1);
    assert_has(errors, "cannot make folder '/proc/sparring'");
    release_output();
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("compare experiment run", 100, TEST(test_whole_experiment),
                       TEST(test_failures_are_shown_and_counted),
                       TEST(test_discarded_runs_are_made_again), TEST(test_all_failed),
                       TEST(test_deadline), TEST(test_interrupt), TEST(test_resume),
                       TEST(test_changed_plan), TEST(test_changed_file), TEST(test_design),
                       TEST(test_until_decided), TEST(test_sweep), TEST(test_interrupted_sweep),
                       TEST(test_gate_sets_the_exit_code), TEST(test_wrong_arguments),
                       TEST(test_set), TEST(test_programs_and_out_that_are_not_there));
}
