/*
 * bench_matmul: matrix products of the training worker's own device, square and of growing size, in
 * the three forms that a linear layer has.  The fastest round of any is the ceiling to which `bench
 * train` compares a training step.  As ranks of `sparring launch` all ranks measure at the same
 * time, and rank 0 prints.
 */
#include "common/base/clock.h"
#include "common/base/memory.h"
#include "common/base/parse.h"
#include "common/base/random.h"
#include "common/base/stop.h"
#include "common/option/program.h"
#include "experiments/bench/bench.h"
#include "experiments/bench/bench_options.h"
#include "experiments/bench/bench_report.h"
#include "worker/compute/compute.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZES_MAX      16
#define ROUNDS_MAX     100
#define AUTO_FROM      256   /* --sizes auto doubles from here */
#define AUTO_TO        16384 /* and stops here */
#define AUTO_PRODUCT_S 0.015 /* or when a product takes longer */
#define ROUND_S        0.02  /* least time of all products of a round */

struct matmul_options {
    char device[OPTION_TEXT_MAX];
    char precision[OPTION_TEXT_MAX];
    char sizes[OPTION_TEXT_MAX]; /* "auto" or N,... */
    char json[OPTION_TEXT_MAX];
    int64_t threads, rounds;
};

#define AT(field) offsetof(struct matmul_options, field)

static const struct option_spec specs[] = {
    BENCH_OPTION_DEVICE(AT(device)),
    BENCH_OPTION_PRECISION(AT(precision), "."),
    {.name = "sizes",
     .kind = OPTION_TEXT,
     .offset = AT(sizes),
     .default_text = "auto",
     .metavar = "N,...",
     .help = "Rows and columns of the matrices; auto doubles 256 until a product takes 15 ms."},
    {.name = "threads",
     .kind = OPTION_INT,
     .offset = AT(threads),
     .default_text = "1",
     .min = 1,
     .max = 1024,
     .metavar = "N",
     .help = "Of the products on the CPU."},
    {.name = "rounds",
     .kind = OPTION_INT,
     .offset = AT(rounds),
     .default_text = "5",
     .min = 1,
     .max = ROUNDS_MAX,
     .metavar = "R",
     .help = "Each form and size has its turn in each; figures are medians over them."},
    BENCH_OPTION_JSON(AT(json)),
    {0},
};

static const struct option_set option_set = {
    .program = "sparring bench matmul",
    .summary = "Time matrix products: the ceiling of a training step on this device.",
    .usage = "[OPTION]...",
    .tables = {{specs, 0}},
};

/* Square matrices of one size on the device: y = x w^T and its two gradients.  No product
 * overwrites an operand of another, so the operands are the same in every round. */
struct products {
    struct compute *compute;
    struct linear linear;
    void *x, *dy;      /* values (size, size), owned: read */
    void *written;     /* likewise: y or dx */
    float *parameters; /* weight and bias of `linear`, owned */
    float *gradients;  /* their gradients, owned */
    size_t size;
};

enum form { FORM_FORWARD, FORM_BACKWARD_WEIGHT, FORM_BACKWARD_INPUT, FORMS };

static const char *const form_names[FORMS] = {"forward", "backward_weight", "backward_input"};

static void products_close(struct products *p)
{
    compute_free(p->compute, p->x);
    compute_free(p->compute, p->dy);
    compute_free(p->compute, p->written);
    compute_free(p->compute, p->parameters);
    compute_free(p->compute, p->gradients);
    *p = (struct products){.compute = p->compute};
}

/* Random, not zeros: the power that a product draws depends on its operands. */
static enum status products_fill(struct products *p, struct error *err)
{
    size_t count = p->size * p->size;
    const size_t starts[] = {0, count}; /* weight, bias */
    struct random random;
    float *values = NULL;
    enum status status = mem_calloc(count, sizeof(*values), "a matrix", &values, err);

    if (status == STATUS_OK && !compute_is_host(p->compute))
        status =
            compute_register_params(p->compute, p->parameters, count + p->size, starts, 2, err);
    if (status == STATUS_OK) {
        random_seed(&random, 1);
        random_uniform(&random, values, count, -1, 1, RANDOM_TWO_ROUNDINGS);
        status = compute_upload(p->compute, p->parameters, values, count, err);
    }
    if (status == STATUS_OK)
        status = compute_upload_values(p->compute, p->x, values, count, err);
    if (status == STATUS_OK)
        status = compute_upload_values(p->compute, p->dy, values, count, err);
    free(values);
    return status;
}

static enum status products_open(struct products *p, size_t size, struct error *err)
{
    size_t count = size * size;
    enum status status = compute_alloc(p->compute, count + size, "a matrix", &p->parameters, err);

    p->size = size;
    if (status == STATUS_OK)
        status = compute_alloc(p->compute, count + size, "a matrix", &p->gradients, err);
    if (status == STATUS_OK)
        status = compute_alloc_values(p->compute, count, "a matrix", &p->x, err);
    if (status == STATUS_OK)
        status = compute_alloc_values(p->compute, count, "a matrix", &p->dy, err);
    if (status == STATUS_OK)
        status = compute_alloc_values(p->compute, count, "a matrix", &p->written, err);
    if (status != STATUS_OK)
        return status;
    p->linear = (struct linear){.in = size,
                                .out = size,
                                .weight = p->parameters,
                                .bias = p->parameters + count,
                                .dweight = p->gradients,
                                .dbias = p->gradients + count};
    return products_fill(p, err);
}

static enum status run_product(struct products *p, enum form form, struct error *err)
{
    switch (form) {
    case FORM_FORWARD:
        return compute_linear_forward(p->compute, &p->linear, p->x, NULL, NULL, p->written, p->size,
                                      err);
    case FORM_BACKWARD_WEIGHT:
        return compute_linear_backward_weight(p->compute, &p->linear, p->x, p->dy, p->size, false,
                                              err);
    default:
        return compute_linear_backward_input(p->compute, &p->linear, p->dy, p->written, p->size,
                                             false, err);
    }
}

/* Seconds per product of `iterations` in a row. */
static enum status time_products(struct products *p, enum form form, size_t iterations, double *ret,
                                 struct error *err)
{
    enum status status = compute_synchronize(p->compute, err);
    int64_t started = clock_now_ns();

    for (size_t i = 0; i < iterations && status == STATUS_OK; i++)
        status = run_product(p, form, err);
    if (status == STATUS_OK)
        status = compute_synchronize(p->compute, err);
    *ret = (double)(clock_now_ns() - started) * 1e-9 / (double)iterations;
    return status;
}

/* ---- the table ---- */

struct matmul {
    const struct matmul_options *options;
    struct products products;
    struct bench_report report;
    bool prints;            /* rank 0, or alone */
    double ceiling;         /* flop per second */
    double longest_product; /* of the last size */
};

static void report_form(struct matmul *m, enum form form, struct bench_summary seconds)
{
    double flop = 2 * pow((double)m->products.size, 3);
    struct bench_summary rate = bench_rate(flop * 1e-9, seconds);

    if (rate.max * 1e9 > m->ceiling) /* the best rate, not the average */
        m->ceiling = rate.max * 1e9;
    if (seconds.median > m->longest_product)
        m->longest_product = seconds.median;
    bench_row_begin(&m->report);
    bench_row_int(&m->report, "size", (int64_t)m->products.size);
    bench_row_text(&m->report, "form", form_names[form]);
    bench_row_summary(&m->report, "seconds", seconds);
    bench_row_summary(&m->report, "gflop_per_s", rate);
    bench_row_end(&m->report);
    if (m->prints)
        (void)printf("  %6zu %-16s %12.6f %12.1f %12.1f %12.1f\n", m->products.size,
                     form_names[form], seconds.median * 1e3, rate.median, rate.min, rate.max);
}

static enum status measure_size(struct matmul *m, size_t size, struct error *err)
{
    double samples[FORMS][ROUNDS_MAX];
    size_t iterations[FORMS];
    size_t rounds = (size_t)m->options->rounds;
    enum status status = products_open(&m->products, size, err);

    m->longest_product = 0;
    for (enum form form = 0; form < FORMS && status == STATUS_OK; form++) {
        double once = 0;

        status = time_products(&m->products, form, 1, &once, err); /* warms up */
        if (status == STATUS_OK)
            status = time_products(&m->products, form, 1, &once, err);
        iterations[form] = once > 0 && once < ROUND_S ? (size_t)(ROUND_S / once) + 1 : 1;
    }
    for (size_t r = 0; r < rounds && status == STATUS_OK; r++) {
        if (stop_requested())
            status = error_set(err, STATUS_CANCELLED, "stopped");
        for (enum form form = 0; form < FORMS && status == STATUS_OK; form++)
            status = time_products(&m->products, form, iterations[form], &samples[form][r], err);
    }
    for (enum form form = 0; form < FORMS && status == STATUS_OK; form++)
        report_form(m, form, bench_summarise(samples[form], rounds));
    products_close(&m->products);
    return status;
}

static enum status measure_listed(struct matmul *m, struct error *err)
{
    char text[OPTION_TEXT_MAX];
    char *rest = NULL;
    enum status status = STATUS_OK;

    (void)snprintf(text, sizeof(text), "%s", m->options->sizes);
    for (const char *word = strtok_r(text, ",", &rest); word && status == STATUS_OK;
         word = strtok_r(NULL, ",", &rest)) {
        uint64_t size = 0;

        if (!parse_uint64(word, &size) || size < 1 || size > AUTO_TO)
            return error_set(err, STATUS_INVALID, "--sizes: '%s' is no size from 1 to %d", word,
                             AUTO_TO);
        status = measure_size(m, (size_t)size, err);
    }
    return status;
}

static enum status measure_sizes(struct matmul *m, struct error *err)
{
    enum status status = STATUS_OK;

    if (strcmp(m->options->sizes, "auto") != 0)
        return measure_listed(m, err);
    for (size_t size = AUTO_FROM; size <= AUTO_TO && status == STATUS_OK; size *= 2) {
        status = measure_size(m, size, err);
        if (m->longest_product > AUTO_PRODUCT_S)
            break;
    }
    return status;
}

static unsigned variable_or_zero(const char *name)
{
    const char *text = getenv(name);
    uint64_t value = 0;

    return text && parse_uint64(text, &value) && value < 1 << 20 ? (unsigned)value : 0;
}

static enum status open_device(struct matmul *m, struct error *err)
{
    struct compute_config config = {.device = m->options->device,
                                    .local_rank = variable_or_zero("LOCAL_RANK"),
                                    .threads = (unsigned)m->options->threads};

    if (!precision_parse(m->options->precision, &config.precision))
        return error_set(err, STATUS_INVALID, "--precision: unknown '%s'", m->options->precision);
    return compute_open_config(&config, &m->products.compute, err);
}

static enum status run_bench(const void *options, const struct option_result *origins,
                             struct error *err)
{
    struct matmul m = {.options = options, .prints = variable_or_zero("RANK") == 0};
    enum status status = stop_install(err);

    (void)origins;
    bench_report_init(&m.report, "matmul");
    if (status == STATUS_OK)
        status = open_device(&m, err);
    if (status != STATUS_OK)
        goto out;
    if (m.prints)
        (void)printf("# %s, %s\n# %6s %-16s %12s %12s %12s %12s\n",
                     compute_name(m.products.compute), m.options->precision, "size", "form", "ms",
                     "GFLOP/s", "min", "max");
    status = measure_sizes(&m, err);
    if (status != STATUS_OK)
        goto out;
    if (m.prints)
        (void)printf("# ceiling: %.1f GFLOP/s\n", m.ceiling * 1e-9);
    strbuf_add(&m.report.members, ",\n\"device\":");
    strbuf_add_json(&m.report.members, compute_name(m.products.compute));
    strbuf_addf(&m.report.members, ",\"ceiling_flop_per_s\":%.9g", m.ceiling);
    if (m.prints && m.options->json[0])
        status = bench_report_write(&m.report, m.options->json, err);
out:
    compute_close(m.products.compute);
    bench_report_release(&m.report);
    return status;
}

int bench_matmul_main(int argc, char **argv)
{
    static const struct program program = {
        .set = &option_set,
        .options_size = sizeof(struct matmul_options),
        .run = run_bench,
    };

    return program_main(&program, argc, argv);
}
