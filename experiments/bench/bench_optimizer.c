/*
 * bench_optimizer: the update of the training worker's own device over a slab larger than its
 * caches, in bytes per second, compared with a copy within the device's memory.  An update is one
 * pass over parameters, gradients and state with little arithmetic, so it is memory bound, and its
 * share of the copy's bandwidth shows how close it is to the bound.  Copy and updates take turns
 * within a round.
 */
#include "common/base/clock.h"
#include "common/base/memory.h"
#include "common/base/random.h"
#include "common/base/stop.h"
#include "common/optimizer/optimizer.h"
#include "common/option/program.h"
#include "experiments/bench/bench.h"
#include "experiments/bench/bench_options.h"
#include "experiments/bench/bench_report.h"
#include "worker/compute/compute.h"

#include <stdio.h>
#include <stdlib.h>

#define ROUNDS_MAX 100
#define ROUND_S    0.02 /* least time of one turn */
#define VIEWS      100  /* of the parameters: a model's tensors */

struct optimizer_options {
    char device[OPTION_TEXT_MAX];
    char precision[OPTION_TEXT_MAX];
    char json[OPTION_TEXT_MAX];
    int64_t elements, rounds;
};

#define AT(field) offsetof(struct optimizer_options, field)

static const struct option_spec specs[] = {
    BENCH_OPTION_DEVICE(AT(device)),
    BENCH_OPTION_PRECISION(AT(precision),
                           "; in 16 bits an update writes the copies that products read, too."),
    {.name = "elements",
     .kind = OPTION_INT,
     .offset = AT(elements),
     .default_text = "33554432",
     .min = 1,
     .max = (int64_t)1 << 33,
     .metavar = "N",
     .help = "Parameters; far more than the caches hold."},
    {.name = "rounds",
     .kind = OPTION_INT,
     .offset = AT(rounds),
     .default_text = "7",
     .min = 1,
     .max = ROUNDS_MAX,
     .metavar = "R",
     .help = "Copy and updates have their turns in each; figures are medians over them."},
    BENCH_OPTION_JSON(AT(json)),
    {0},
};

static const struct option_set option_set = {
    .program = "sparring bench optimizer",
    .summary = "Time the optimizer's update: its bandwidth beside that of a copy.",
    .usage = "[OPTION]...",
    .tables = {{specs, 0}},
};

/* The turns of a round; bytes are read and written per element in float32. */
enum turn { TURN_COPY, TURN_SGD, TURN_MOMENTUM, TURN_ADAMW, TURNS };

static const struct {
    const char *name;
    unsigned bytes;  /* copy: one in, one out; updates: parameter and gradient in, parameter out */
    unsigned states; /* each in and out */
} turns[TURNS] = {{"copy", 8, 0}, {"sgd", 12, 0}, {"momentum", 20, 1}, {"adamw", 28, 2}};

struct optimizer_bench {
    const struct optimizer_options *options;
    enum precision precision;
    struct compute *compute;
    size_t count;
    float *params, *grads, *state[2];   /* device, owned */
    struct optimizer optimizers[TURNS]; /* sharing `state` */
    uint64_t step;
    double seconds[TURNS][ROUNDS_MAX];
    struct bench_report report;
};

/* Bytes per element that a turn reads and writes. */
static unsigned bytes_of(const struct optimizer_bench *b, enum turn turn)
{
    unsigned bytes = turns[turn].bytes;

    if (turn != TURN_COPY && b->precision >= PRECISION_BF16)
        bytes += 2; /* the copy that products read */
    if (turn != TURN_COPY && b->precision == PRECISION_FP16)
        bytes += 4; /* one more pass over the gradients checks that they are finite */
    return bytes;
}

/* ---- memory ---- */

static enum status fill_slabs(struct optimizer_bench *b, struct error *err)
{
    struct random random;
    float *values = NULL;
    enum status status = mem_calloc(b->count, sizeof(*values), "random values", &values, err);

    if (status != STATUS_OK)
        return status;
    random_seed(&random, 1);
    random_uniform(&random, values, b->count, -1, 1, RANDOM_TWO_ROUNDINGS);
    status = compute_upload(b->compute, b->params, values, b->count, err);
    if (status == STATUS_OK)
        status = compute_upload(b->compute, b->grads, values, b->count, err);
    if (status == STATUS_OK)
        status = compute_synchronize(b->compute, err);
    free(values);
    return status;
}

/* Views like those of a model: tensors of a thousand and of millions of elements alternate. */
static enum status register_views(struct optimizer_bench *b, struct error *err)
{
    size_t starts[VIEWS] = {0};
    size_t each = b->count / (VIEWS / 2);
    size_t views = 1;

    while (each > 1024 && views < VIEWS) {
        starts[views] = starts[views - 1] + (views % 2 ? 1024 : each - 1024);
        views++;
    }
    return compute_register_params(b->compute, b->params, b->count, starts, views, err);
}

static enum status open_memory(struct optimizer_bench *b, struct error *err)
{
    float **slabs[] = {&b->params, &b->grads, &b->state[0], &b->state[1]};
    enum status status = STATUS_OK;

    b->count = (size_t)b->options->elements;
    for (size_t i = 0; i < sizeof(slabs) / sizeof(slabs[0]) && status == STATUS_OK; i++)
        status = compute_alloc(b->compute, b->count, "a slab", slabs[i], err);
    if (status == STATUS_OK && compute_has_optimizer(b->compute))
        status = register_views(b, err);
    return status == STATUS_OK ? fill_slabs(b, err) : status;
}

static void close_memory(struct optimizer_bench *b)
{
    compute_free(b->compute, b->params);
    compute_free(b->compute, b->grads);
    compute_free(b->compute, b->state[0]);
    compute_free(b->compute, b->state[1]);
}

/* ---- turns ---- */

static struct optimizer_config config_of(enum turn turn)
{
    struct optimizer_config config =
        optimizer_defaults(turn == TURN_ADAMW ? OPTIMIZER_ADAMW : OPTIMIZER_SGD);

    config.learning_rate = 1e-6; /* parameters hardly change */
    config.momentum = turn == TURN_MOMENTUM ? 0.9 : 0.0;
    return config;
}

static enum status run_turn(struct optimizer_bench *b, enum turn turn, struct error *err)
{
    struct optimizer *o = &b->optimizers[turn];
    struct compute_update update = {.params = b->params, .grads = b->grads, .count = b->count};

    if (turn == TURN_COPY)
        return compute_copy(b->compute, b->state[0], b->grads, b->count, err);
    b->step++;
    for (unsigned s = 0; s < turns[turn].states; s++)
        o->state[s] = update.state[s] = b->state[s];
    if (compute_has_optimizer(b->compute))
        return compute_optimizer_update(b->compute, &o->config, o->config.learning_rate, b->step,
                                        &update, err);
    optimizer_update(o, b->step, 0, b->count, b->params, b->grads);
    return STATUS_OK;
}

/* Seconds per turn, over `iterations` in a row. */
static enum status time_turn(struct optimizer_bench *b, enum turn turn, size_t iterations,
                             double *ret, struct error *err)
{
    enum status status = compute_synchronize(b->compute, err);
    int64_t started = clock_now_ns();

    for (size_t i = 0; i < iterations && status == STATUS_OK; i++)
        status = run_turn(b, turn, err);
    if (status == STATUS_OK)
        status = compute_synchronize(b->compute, err);
    *ret = (double)(clock_now_ns() - started) * 1e-9 / (double)iterations;
    return status;
}

static enum status measure_turns(struct optimizer_bench *b, struct error *err)
{
    size_t iterations[TURNS];
    enum status status = STATUS_OK;

    for (enum turn turn = 0; turn < TURNS && status == STATUS_OK; turn++) {
        double once = 0;

        b->optimizers[turn] = (struct optimizer){
            .config = config_of(turn), .count = b->count, .states = turns[turn].states};
        status = time_turn(b, turn, 1, &once, err); /* warms up */
        if (status == STATUS_OK)
            status = time_turn(b, turn, 1, &once, err);
        iterations[turn] = once > 0 && once < ROUND_S ? (size_t)(ROUND_S / once) + 1 : 1;
    }
    for (int64_t r = 0; r < b->options->rounds && status == STATUS_OK; r++) {
        if (stop_requested())
            status = error_set(err, STATUS_CANCELLED, "stopped");
        for (enum turn turn = 0; turn < TURNS && status == STATUS_OK; turn++)
            status = time_turn(b, turn, iterations[turn], &b->seconds[turn][r], err);
    }
    return status;
}

/* ---- the table ---- */

static void report_turn(struct optimizer_bench *b, enum turn turn)
{
    size_t rounds = (size_t)b->options->rounds;
    double gigabytes = (double)bytes_of(b, turn) * (double)b->count * 1e-9;
    double copy = (double)bytes_of(b, TURN_COPY) * (double)b->count * 1e-9;
    double shares[ROUNDS_MAX];
    double seconds[ROUNDS_MAX];
    struct bench_summary time, rate, share;

    for (size_t r = 0; r < rounds; r++) {
        seconds[r] = b->seconds[turn][r];
        shares[r] = (gigabytes / seconds[r]) / (copy / b->seconds[TURN_COPY][r]);
    }
    time = bench_summarise(seconds, rounds);
    share = bench_summarise(shares, rounds);
    rate = bench_rate(gigabytes, time);
    bench_row_begin(&b->report);
    bench_row_text(&b->report, "turn", turns[turn].name);
    bench_row_text(&b->report, "precision", b->options->precision);
    bench_row_int(&b->report, "elements", (int64_t)b->count);
    bench_row_int(&b->report, "bytes_per_element", (int64_t)bytes_of(b, turn));
    bench_row_summary(&b->report, "seconds", time);
    bench_row_summary(&b->report, "gb_per_s", rate);
    bench_row_summary(&b->report, "share_of_copy", share);
    bench_row_end(&b->report);
    (void)printf("  %-10s %6u %12.4f %10.2f %10.2f %10.2f %8.3f\n", turns[turn].name,
                 bytes_of(b, turn), time.median * 1e3, rate.median, rate.min, rate.max,
                 share.median);
}

static enum status open_device(struct optimizer_bench *b, struct error *err)
{
    struct compute_config config = {.device = b->options->device, .threads = 1};
    enum status status;

    if (!precision_parse(b->options->precision, &config.precision))
        return error_set(err, STATUS_INVALID, "--precision: unknown '%s'", b->options->precision);
    status = compute_open_config(&config, &b->compute, err);
    b->precision = config.precision;
    return status;
}

static enum status run_bench(const void *options, const struct option_result *origins,
                             struct error *err)
{
    struct optimizer_bench b = {.options = options};
    enum status status = stop_install(err);

    (void)origins;
    bench_report_init(&b.report, "optimizer");
    if (status == STATUS_OK)
        status = open_device(&b, err);
    if (status != STATUS_OK)
        goto out;
    status = open_memory(&b, err);
    if (status == STATUS_OK)
        status = measure_turns(&b, err);
    if (status != STATUS_OK)
        goto out;
    (void)printf("# %s, %s, %zu parameters\n# %-10s %6s %12s %10s %10s %10s %8s\n",
                 compute_name(b.compute), b.options->precision, b.count, "turn", "B/elem", "ms",
                 "GB/s", "min", "max", "of copy");
    for (enum turn turn = 0; turn < TURNS; turn++)
        report_turn(&b, turn);
    strbuf_add(&b.report.members, ",\n\"device\":");
    strbuf_add_json(&b.report.members, compute_name(b.compute));
    if (b.options->json[0])
        status = bench_report_write(&b.report, b.options->json, err);
out:
    if (b.compute)
        close_memory(&b);
    compute_close(b.compute);
    bench_report_release(&b.report);
    return status;
}

int bench_optimizer_main(int argc, char **argv)
{
    static const struct program program = {
        .set = &option_set,
        .options_size = sizeof(struct optimizer_options),
        .run = run_bench,
    };

    return program_main(&program, argc, argv);
}
