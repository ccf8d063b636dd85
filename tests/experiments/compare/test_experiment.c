/*
 * Experiment files: those that come with Sparring, every mistake with its line, and the order of
 * runs.
 */
#include "common/base/file.h"
#include "experiments/compare/experiment.h"
#include "experiments/compare/find_experiment.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct experiment e;
static struct error err;

static enum status parse_as(const char *name, const char *text)
{
    struct yaml_file file = {0};
    enum status status;

    assert_ok(yaml_parse(name, text, strlen(text), &file, &err));
    status = experiment_parse(&file, &e, &err);
    yaml_release(&file);
    return status;
}

static enum status parse(const char *text)
{
    return parse_as("x.yaml", text);
}

START_TEST(test_whole_file)
{
    assert_ok(parse("title: T\nnproc: 4\nrepeats: 7\ndeadline: 9\n"
                    "options: {model: 'mlp:4-2', batch_size: 8, seed: 5}\n"
                    "network: {rate: 1gbit}\n"
                    "modes:\n- name: a\n  options: {sync: allreduce}\n"
                    "- {name: b-2, label: Bee, nproc: 1, servers: 2, options: {sync: ps}}\n"));
    ck_assert_str_eq(e.design.title, "T");
    ck_assert_int_eq(e.repeats, 7);
    ck_assert_int_eq(e.deadline_seconds, 9);
    ck_assert_int_eq(e.seed, 5);
    ck_assert_uint_eq(e.options.length, 3); /* the seed is not among them */
    ck_assert_str_eq(e.options.items[2].name, "network-rate");
    ck_assert_str_eq(e.options.items[1].name, "batch-size");
    ck_assert_str_eq(e.options.items[1].value, "8");
    ck_assert_uint_eq(e.mode_count, 2);
    ck_assert_str_eq(e.modes[0].label, "a");
    ck_assert_int_eq(e.modes[0].nproc, 4);
    ck_assert_int_eq(e.modes[1].nproc, 1);
    ck_assert_int_eq(e.modes[1].servers, 2);
    ck_assert_str_eq(e.modes[1].options.items[0].value, "ps");
}
END_TEST

START_TEST(test_paths)
{
    static const char text[] =
        "options: {a: ./d, b: ../d, c: .d, d: /d, e: 'p:./d', f: 'p:d'}\nmodes: [{name: a}]";
    static const char *const wanted[] = {"some/where/d", "some/where/../d", ".d",
                                         "/d",           "p:some/where/d",  "p:d"};

    assert_ok(parse_as("some/where/x.yaml", text));
    for (size_t i = 0; i < 6; i++)
        ck_assert_str_eq(e.options.items[i].value, wanted[i]);
    assert_ok(parse(text)); /* here */
    ck_assert_str_eq(e.options.items[0].value, "./d");
    assert_ok(parse_as("/x.yaml", text));
    ck_assert_str_eq(e.options.items[0].value, "/d");
}
END_TEST

START_TEST(test_defaults)
{
    assert_ok(parse("modes: [{name: a}]"));
    ck_assert_int_eq(e.nproc, 2);
    ck_assert_int_eq(e.repeats, 10);
    ck_assert_double_eq(e.design.margin, 0.02);
    ck_assert_uint_eq(e.design.pair_count, 0); /* one mode */
    ck_assert_int_eq(e.seed, 1);
}
END_TEST

static const char *option_of(const struct experiment_options *options, const char *name)
{
    const char *found = NULL;

    for (size_t i = 0; i < options->length; i++)
        if (strcmp(options->items[i].name, name) == 0)
            found = options->items[i].value;
    return found;
}

START_TEST(test_quick)
{
    assert_ok(
        parse("axes: {lr: [1, 2, 3], network-delay: [5, 9]}\nrepeats: 9\n"
              "options: {epochs: 3, model: m}\nmodes:\n"
              "- {name: a, options: {sync: ps, steps: 7}}\n- {name: b, options: {sync: ps}}"));
    experiment_make_quick(&e);
    ck_assert_int_eq(e.repeats, 1);
    ck_assert_uint_eq(e.design.pair_count, 0);
    ck_assert_uint_eq(e.axes.items[0].length, 2);
    ck_assert_str_eq(e.axes.items[0].values[1], "3");
    ck_assert_uint_eq(e.axes.items[1].length, 2);
    ck_assert_ptr_null(option_of(&e.options, "epochs"));
    ck_assert_str_eq(option_of(&e.options, "steps"), "2");
    ck_assert_str_eq(option_of(&e.options, "network-check"), "warn");
    ck_assert_ptr_null(option_of(&e.modes[0].options, "steps"));
    assert_ok(parse("axes: {steps: [1, 2, 3]}\nmodes: [{name: a}]"));
    experiment_make_quick(&e);
    ck_assert_ptr_null(option_of(&e.options, "steps"));
    ck_assert_ptr_null(option_of(&e.options, "network-check"));
}
END_TEST

static const char *const mistakes[][2] = {
    {"title: T\n", "x.yaml: there are no modes"},
    {"repeat: 3\nmodes: [{name: a}]", "x.yaml:1: unknown key 'repeat', did you mean 'repeats'?"},
    {"colour: 3\nmodes: [{name: a}]", "x.yaml:1: 'colour' is not a key"},
    {"title: T\nrepeats: many\n", "x.yaml:2: 'repeats' must be a whole number from 1 to 1000"},
    {"repeats: 0\n", "'repeats' must be"},
    {"nproc: 16385\n", "'nproc' must be"},
    {"deadline: 1.5\n", "'deadline' must be"},
    {"options: {seed: -1}\n", "'options.seed' must be"},
    {"options: 3\n", "'options' must be a name with one value"},
    {"options: {model: {a: b}}\n", "must be a name with one value"},
    {"options: {run-dir: x}\n", "'options.run-dir' is set by compare itself"},
    {"options: {world_size: 2}\n", "is set by compare itself"},
    {"options: {'--lr': 2}\n", "is not the name of an option"},
    {"options: {'lr=1 x': 2}\n", "is not the name of an option"},
    {"network: 1gbit\nmodes: [{name: a}]", "x.yaml:1: 'network' is not a key"},
    {"network: {rates: 1gbit}\nmodes: [{name: a}]",
     "x.yaml:1: unknown key 'network.rates', did you mean 'rate'?"},
    {"network: {rate: {a: 1gbit}}\nmodes: [{name: a}]",
     "x.yaml:1: 'network.rate.a' is not a key of an experiment file"},
    {"nproc: {a: 2}\nmodes: [{name: a}]", "x.yaml:1: 'nproc.a' is not a key of an experiment file"},
    {"modes: 3\n", "must be a list of modes"},
    {"modes: {a: 1}\n", "must be a list of modes"},
    {"modes: [a]\n", "must be a list of modes"},
    {"modes:\n- label: x\n", "x.yaml:2: the mode has no name"},
    {"modes:\n- {name: a}\n- {name: a}\n", "x.yaml:3: a mode 'a' stands above already"},
    {"modes:\n- {name: ../a}\n", "must be made of letters"},
    {"modes:\n- {name: ''}\n", "must be made of letters"},
    {"modes:\n- {name: a, sync: ps}\n", "'modes.0.sync' is not a key"},
    {"modes:\n- {name: a, servers: -1}\n", "'modes.0.servers' must be"},
    {"modes:\n- {name: a, server: 1}\n", "did you mean 'servers'?"},
    {"modes:\n- {name: a, options: {seed: 3}}\n", "x.yaml:2: mode 'a' sets a seed"},
    {"verdict: some\nmodes: [{name: a}]", "x.yaml:1: 'verdict' must be none, all, or a list"},
    {"verdict: [a, b]\nmodes: [{name: a}]", "'verdict.0' must be none, all, or a list"},
    {"verdict: [[a, b, c]]\nmodes: [{name: a}]", "'verdict.0.2' must be none, all, or a list"},
    {"verdict: [[a, b]]\nmodes: [{name: a}]", "the verdict names a mode 'b', which there is not"},
    {"verdict: [[a, a]]\nmodes: [{name: a}]", "the verdict pairs 'a' with itself"},
    {"verdict: [[a]]\nmodes: [{name: a}]", "the verdict names a mode '', which there is not"},
    {"verdict: [[a, b], [b, a]]\nmodes: [{name: a}, {name: b}]", "has the pair 'b' and 'a' twice"},
    {"margin: 0\nmodes: [{name: a}]", "'margin' must be a number above 0 and up to 50"},
    {"target_accuracy: 101\nmodes: [{name: a}]", "'target_accuracy' must be a number above 0 and"},
    {"steady_seconds: x\nmodes: [{name: a}]", "'steady_seconds' must be a number above 0"},
    {"axes: 3\nmodes: [{name: a}]", "x.yaml:1: 'axes' must be a name with a list or a range"},
    {"axes: {nproc: {a: [1]}}\nmodes: [{name: a}]", "must be a name with a list or a range"},
    {"axes: {sync: [ps]}\nmodes: [{name: a}]", "'axes.sync.0' cannot be an axis"},
    {"axes: {seed: [1]}\nmodes: [{name: a}]", "'axes.seed.0' cannot be an axis"},
    {"axes: {run-dir: [x]}\nmodes: [{name: a}]", "'axes.run-dir.0' cannot be an axis"},
    {"axes: {lr: [1, 1]}\nmodes: [{name: a}]", "x.yaml:1: 'axes.lr.1' has the value '1' twice"},
    {"axes: {lr: 4..1 +1}\nmodes: [{name: a}]", "'axes.lr' is a range without end or values"},
    {"axes: {nproc: [0]}\nmodes: [{name: a}]", "axis 'nproc' takes whole numbers from 1 to 16384"},
    {"axes: {servers: [x]}\nmodes: [{name: a, servers: 1}]", "takes whole numbers from 1 to 16384"},
    {"axes: {servers: [1]}\nmodes: [{name: a}]", "an axis of servers, but no mode has any"},
    {"axes: {servers: [1]}\nmodes:\n- {name: a, servers: 2}\n",
     "x.yaml:3: mode 'a' sets the axis 'servers' itself (1 stands for the axis)"},
    {"axes: {nproc: [1]}\nmodes:\n- {name: a, nproc: 2}\n", "mode 'a' sets the axis 'nproc'"},
    {"axes: {batch-size: [1]}\nmodes:\n- {name: a, options: {batch_size: 2}}\n",
     "x.yaml:3: mode 'a' sets the axis 'batch-size' itself"},
    {"axes: {lr: [1]}\noptions: {lr: 2}\nmodes: [{name: a}]", "'lr' is both an option and an axis"},
    {"axes: {lr: [1]}\nwhere: [lr]\nmodes: [{name: a}]", "x.yaml:2: 'where.0' must be a condition"},
    {"where: [lr < 1]\nmodes: [{name: a}]", "'where' goes with axes"},
    {"modes:\n- {name: a-name-that-is-much-longer-than-any-folder}\n", "is longer than 31 bytes"},
};

START_TEST(test_mistake)
{
    assert_fails(parse(mistakes[_i][0]), STATUS_CONFIG, mistakes[_i][1]);
}
END_TEST

START_TEST(test_too_many_modes)
{
    char text[2048] = "modes:\n";

    for (int i = 0; i < 17; i++) {
        char line[32];

        (void)snprintf(line, sizeof(line), "- {name: m%d}\n", i);
        (void)strncat(text, line, sizeof(text) - strlen(text) - 1);
    }
    assert_fails(parse(text), STATUS_CONFIG, "one mode too many");
}
END_TEST

/* Of the first cell; all have the same design. */
static enum status check_design(void)
{
    struct cell *cells = NULL;
    size_t count;
    struct experiment *x = calloc(1, sizeof(*x));
    enum status status;

    ck_assert_ptr_nonnull(x);
    assert_ok(axes_make_cells(&e.axes, &cells, &count, &err));
    experiment_make_cell(&e, &cells[0], count, x);
    e.design.blocks = x->design.blocks;
    status = experiment_check_design(x, &err);
    free(x);
    free(cells);
    return status;
}

static const char *const shipped[] = {
    "quickstart",      "communication-bound", "article",     "lenet",
    "hiccups",         "stragglers",          "scaling",     "servers",
    "bandwidth-delay", "staleness",           "compression", "interruptions"};

START_TEST(test_shipped_file)
{
    struct yaml_file file = {0};
    char path[4096];
    char name[64];
    bool has_control = false;

    (void)snprintf(name, sizeof(name), "experiments/%s.yaml", shipped[_i]);
    assert_ok(yaml_read(support_source(name), &file, &err));
    assert_ok(experiment_parse(&file, &e, &err));
    yaml_release(&file);
    assert_ok(check_design());
    ck_assert_uint_ge(e.design.pair_count, 1);
    for (size_t i = 0; i < e.mode_count; i++)
        has_control = has_control || strcmp(e.modes[i].name, "control") == 0;
    ck_assert_msg(has_control, "%s has no control", shipped[_i]);
    /* By its bare name, from the folder of the programs in a build tree. */
    assert_ok(find_experiment(shipped[_i], support_source("build/dev/bin/../../../build/dev/bin"),
                              path, sizeof(path), &err));
    ck_assert_int_eq(access(path, R_OK), 0);
}
END_TEST

START_TEST(test_find)
{
    char path[4096];

    (void)support_write("mine.yaml", "modes: [{name: a}]", 18);
    ck_assert_int_eq(chdir(support_folder()), 0);
    assert_ok(file_make_folder("mine", &err)); /* such as the output of an earlier run */
    assert_ok(find_experiment("mine", support_folder(), path, sizeof(path), &err));
    ck_assert_str_eq(path, support_path("mine.yaml"));
    assert_ok(find_experiment("mine.yaml", "/nowhere", path, sizeof(path), &err));
    ck_assert_str_eq(path, "mine.yaml");
    assert_fails(find_experiment("other", "/nowhere", path, sizeof(path), &err), STATUS_NOT_FOUND,
                 "no experiment 'other'");
}
END_TEST

/* Every repeat runs each mode once; each mode has every position, and follows every other mode,
 * about equally often: in 20,000 repeats five standard deviations are 0.011 and 0.016 of them. */
START_TEST(test_order)
{
    static unsigned at[4][4], behind[4][4];
    struct experiment *x = calloc(1, sizeof(*x));
    size_t modes[EXPERIMENT_MODES_MAX], again[EXPERIMENT_MODES_MAX];
    const unsigned repeats = 20000;

    ck_assert_ptr_nonnull(x);
    x->seed = (int64_t)(support_random() * 1e6);
    x->mode_count = 4;
    for (size_t r = 0; r < repeats; r++) {
        unsigned seen = 0;

        experiment_order(x, r, modes);
        for (size_t k = 0; k < 4; k++) {
            seen |= 1u << modes[k];
            at[modes[k]][k]++;
            if (k > 0)
                behind[modes[k]][modes[k - 1]]++;
        }
        ck_assert_uint_eq(seen, 15);
    }
    for (size_t i = 0; i < 4; i++)
        for (size_t k = 0; k < 4; k++) {
            ck_assert_double_eq_tol(at[i][k] / (double)repeats, 0.25, 0.016);
            if (i != k) /* 3 of 12 ordered pairs are neighbours */
                ck_assert_double_eq_tol(behind[i][k] / (double)repeats, 0.25, 0.016);
        }
    experiment_order(x, 7, modes);
    experiment_order(x, 7, again);
    ck_assert_mem_eq(modes, again, 4 * sizeof(*modes));
    free(x);
}
END_TEST

/* The values of a cell are settings of its experiment; its level is its part of the sweep's. */
START_TEST(test_cell)
{
    struct experiment *x = calloc(1, sizeof(*x));
    struct cell *cells = NULL;
    size_t count;

    ck_assert_ptr_nonnull(x);
    assert_ok(
        parse("title: T\nrepeats: 9\naxes: {nproc: [2, 4], servers: 1..2 +1, batch_size: [8]}\n"
              "where: servers < nproc\noptions: {lr: 1}\n"
              "modes: [{name: r, options: {sync: allreduce}},\n"
              "        {name: p, servers: 1, options: {sync: ps}}]"));
    assert_ok(axes_make_cells(&e.axes, &cells, &count, &err));
    ck_assert_uint_eq(count, 3); /* not 2 and 2 */
    experiment_make_cell(&e, &cells[2], count, x);
    ck_assert_str_eq(x->design.title, "T: nproc=4,servers=2,batch-size=8");
    ck_assert_double_eq_tol(x->design.level, 0.05 / 3, 1e-15);
    ck_assert_uint_eq(x->design.blocks, 9);
    ck_assert_int_eq(x->modes[0].nproc, 4);
    ck_assert_int_eq(x->modes[0].servers, 0);
    ck_assert_int_eq(x->modes[1].nproc, 4);
    ck_assert_int_eq(x->modes[1].servers, 2);
    ck_assert_uint_eq(x->options.length, 2);
    ck_assert_str_eq(x->options.items[1].name, "batch-size");
    ck_assert_str_eq(x->options.items[1].value, "8");
    assert_ok(experiment_check_design(x, &err));
    x->design.level = 0.05 / 10; /* 2 / 2^8 is above half a percent */
    x->design.blocks = 8;
    assert_fails(experiment_check_design(x, &err), STATUS_CONFIG, "it takes 9 ");
    free(cells);
    free(x);
}
END_TEST

static void assert_pair(size_t i, const char *a, const char *b)
{
    ck_assert_uint_lt(i, e.design.pair_count);
    ck_assert_str_eq(e.design.pairs[i].names[0], a);
    ck_assert_str_eq(e.design.pairs[i].names[1], b);
}

START_TEST(test_verdict)
{
    static const char *const inexact[][2] = {
        {"", ", consistency: asp"},       {"", ", consistency: ssp, staleness: 4"},
        {"", ", backup-workers: 1"},      {"", ", compression: fp16"},
        {"", ", compression-down: topk"}, {", comm-hook: bf16", ""},
    };
    static const char modes[] = "modes: [{name: c, options: {sync: local}}, {name: p, options: "
                                "{sync: ps}}, {name: r, options: {sync: allreduce}}, {name: s, "
                                "options: {sync: allreduce}}, {name: one, nproc: 1}]\n"
                                "options: {sync: ps}\n";
    char text[1024];

    assert_ok(parse(modes)); /* the first of either kind */
    ck_assert_uint_eq(e.design.pair_count, 1);
    assert_pair(0, "p", "r");
    ck_assert(isnan(e.design.target_accuracy));
    (void)snprintf(text, sizeof(text),
                   "%sverdict: [[s, c], [r, s]]\nmargin: 5\ntarget_accuracy: 95\n", modes);
    assert_ok(parse(text));
    ck_assert_double_eq_tol(e.design.target_accuracy, 0.95, 1e-12);
    ck_assert_uint_eq(e.design.pair_count, 2);
    assert_pair(0, "s", "c");
    assert_pair(1, "r", "s");
    ck_assert_double_eq_tol(e.design.margin, 0.05, 1e-12);
    (void)snprintf(text, sizeof(text), "verdict: all\n%s", modes);
    assert_ok(parse(text));
    ck_assert_uint_eq(e.design.pair_count, 3); /* p, r, s; not the control, nor one process */
    (void)snprintf(text, sizeof(text), "verdict: none\nrepeats: 1\n%s", modes);
    assert_ok(parse(text));
    ck_assert_uint_eq(e.design.pair_count, 0);
    assert_ok(check_design());
    assert_ok(experiment_set_verdict(&e, "p:r,r:s", &err));
    assert_pair(1, "r", "s");
    for (size_t i = 0; i < sizeof(inexact) / sizeof(inexact[0]); i++) {
        (void)snprintf(text, sizeof(text),
                       "modes: [{name: r, options: {sync: allreduce%s}}, {name: p, options: "
                       "{sync: ps%s}}]\nrepeats: 6\n",
                       inexact[i][0], inexact[i][1]);
        assert_ok(parse(text));
        assert_fails(check_design(), STATUS_CONFIG,
                     "a verdict needs target_accuracy (or verdict none, for figures alone)");
        e.design.target_accuracy = 0.9;
        assert_ok(check_design());
    }
    (void)snprintf(text, sizeof(text), "verdict: [[p, r], [r, s]]\n%s", modes);
    assert_ok(parse(text));
    e.repeats = 6; /* 2 / 2^6 is above 0.05 / 2 */
    assert_fails(check_design(), STATUS_CONFIG, "it takes 7 ");
    e.repeats = 7;
    assert_ok(check_design());
    ck_assert_uint_eq(e.design.blocks, 7);
    e.design.most_blocks = 7;
    assert_fails(check_design(), STATUS_CONFIG,
                 "until 7 blocks is no more than the 7 repeats there are");
    e.design.most_blocks = 11; /* one look more: 2 / 2^7 is above 0.05 / 4 */
    assert_ok(check_design());
    ck_assert_uint_eq(design_looks(&e.design), 2);
    ck_assert_uint_eq(design_step(&e.design), 4);
    ck_assert_double_eq(design_level(&e.design), 0.025);
    e.design.most_blocks = 12;
    ck_assert_uint_eq(design_looks(&e.design), 3);
    e.repeats = 3;
    e.design.most_blocks = 7; /* three looks: 2 / 2^7 is above 0.05 / 6 */
    assert_fails(check_design(), STATUS_CONFIG, "7 repeats cannot decide 2 ");
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("compare experiment", 0, TEST(test_whole_file), TEST(test_paths),
                       TEST(test_quick), TEST(test_defaults),
                       LOOP_TEST(test_mistake, 0, sizeof(mistakes) / sizeof(mistakes[0])),
                       TEST(test_too_many_modes),
                       LOOP_TEST(test_shipped_file, 0, sizeof(shipped) / sizeof(shipped[0])),
                       TEST(test_find), TEST(test_order), TEST(test_cell), TEST(test_verdict));
}
