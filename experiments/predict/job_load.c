/*
 * job_load: the control says how long ranks compute beside each other; two ranks with default
 * buckets what these are, and with small ones when which bytes are ready.
 */
#include "experiments/predict/job_load.h"

#include "common/base/memory.h"
#include "common/base/parse.h"
#include "experiments/compare/experiment_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS     "30"
#define READY_MIN 65536.0 /* bytes of the small buckets ... */
#define READY_MAX 1024    /* ... and about their number */
#define MIB       1048576.0
#define DELAYS    "delay-schedule"

/* The experiment's options of the worker, but for how long it trains; then our own.  Delays are of
 * as many ranks as the control has. */
static void add_options(const struct experiment *e, const char *sync, const char *more,
                        struct text_list *options)
{
    static const char *const left_out[] = {"steps", "epochs", "evaluate", "samples",
                                           "bucket-cap-mb"};

    for (size_t i = 0; i < e->options.length; i++) {
        const struct experiment_option *o = &e->options.items[i];
        bool is_kept = !experiment_run_is_for_launch(o->name) &&
                       (strcmp(sync, "local") == 0 || strcmp(o->name, DELAYS) != 0);

        for (size_t k = 0; k < sizeof(left_out) / sizeof(left_out[0]); k++)
            is_kept = is_kept && strcmp(left_out[k], o->name) != 0;
        if (is_kept)
            text_list_addf(options, "--%s=%s", o->name, o->value);
    }
    text_list_addf(options, "--steps=" STEPS);
    text_list_addf(options, "--evaluate=never");
    text_list_addf(options, "--sync=%s", sync);
    if (more)
        text_list_addf(options, "%s", more);
}

static enum status run_one(const struct trial *t, const char *name, const struct experiment *e,
                           unsigned ranks, const char *sync, const char *more, struct run *ret,
                           struct error *err)
{
    struct text_list options = {0};
    enum status status;

    add_options(e, sync, more, &options);
    status = trial_run(t, name, ranks, 0, &options, ret, err);
    text_list_release(&options);
    return status;
}

/* The default buckets. */
static enum status measure_buckets(const struct trial *t, const char *name,
                                   const struct experiment *e, struct job_load *ret,
                                   struct error *err)
{
    const struct trial local = {
        .programs = t->programs, .folder = t->folder, .timeout_ms = t->timeout_ms};
    struct run run = {0};
    struct cost_ready *ready = NULL;
    size_t count = 0;
    enum status status = run_one(&local, name, e, 2, "allreduce", NULL, &run, err);

    if (status == STATUS_OK)
        status = trial_read_ready(&run, &ready, &count, err);
    if (status == STATUS_OK)
        status = mem_calloc(count, sizeof(*ret->buckets), "buckets", &ret->buckets, err);
    for (size_t i = 0; i < count && status == STATUS_OK; i++)
        ret->buckets[ret->bucket_count++] = ready[i].bytes - (i > 0 ? ready[i - 1].bytes : 0);
    free(ready);
    run_release(&run);
    return status;
}

/* When which bytes are ready, stretched to `compute_s`, or moved, since delays come first. */
static enum status measure_ready(const struct trial *t, const char *name,
                                 const struct experiment *e, double compute_s, struct job_load *ret,
                                 struct error *err)
{
    const struct trial local = {
        .programs = t->programs, .folder = t->folder, .timeout_ms = t->timeout_ms};
    struct run run = {0};
    struct trial_times times = {.compute_s = 1};
    size_t count = 0;
    double bytes = 0;
    char cap[64];
    bool has_delays = false;
    enum status status;

    for (size_t i = 0; i < e->options.length; i++)
        has_delays = has_delays || strcmp(e->options.items[i].name, DELAYS) == 0;
    for (size_t i = 0; i < ret->bucket_count; i++)
        bytes += ret->buckets[i];
    (void)snprintf(cap, sizeof(cap), "--bucket-cap-mb=%.6f",
                   fmax(READY_MIN, bytes / READY_MAX) / MIB);
    status = run_one(&local, name, e, 2, "allreduce", cap, &run, err);

    if (status == STATUS_OK)
        status = trial_read_ready(&run, &ret->ready, &count, err);
    if (status == STATUS_OK)
        status = trial_read_times(&run, &times, err);
    for (size_t i = 0; i < count && status == STATUS_OK; i++)
        ret->ready[i].at_s = has_delays ? ret->ready[i].at_s + compute_s - times.compute_s
                                        : ret->ready[i].at_s * compute_s / times.compute_s;
    ret->cost.ready = ret->ready;
    ret->cost.ready_count = count;
    run_release(&run);
    return status;
}

enum status job_load_measure(const struct trial *t, const char *name, const struct experiment *e,
                             unsigned ranks, struct job_load *ret, struct error *err)
{
    char folder[CELL_NAME_MAX + 32];
    struct run run = {0};
    struct trial_times times;
    size_t steps = 0;
    enum status status;

    *ret = (struct job_load){.bucket_count = 0};
    (void)snprintf(folder, sizeof(folder), "%s-control", name);
    status = run_one(t, folder, e, ranks, "local", NULL, &run, err);
    if (status == STATUS_OK)
        status = trial_read_times(&run, &times, err);
    if (status == STATUS_OK && !parse_uint64(run.configuration.batch_size, &ret->batch))
        ret->batch = 1;
    if (status == STATUS_OK)
        status = trial_read_computes(&run, &ret->computes, &steps, err);
    run_release(&run);
    if (status != STATUS_OK)
        return status;
    ret->cost = (struct cost_load){.compute_s = times.compute_s,
                                   .other_s = times.other_s,
                                   .forward_s = times.forward_s,
                                   .cpu_s = times.cpu_s / ranks,
                                   .computes = ret->computes,
                                   .compute_ranks = ranks,
                                   .compute_steps = steps};
    (void)snprintf(folder, sizeof(folder), "%s-buckets", name);
    status = measure_buckets(t, folder, e, ret, err);
    (void)snprintf(folder, sizeof(folder), "%s-ready", name);
    return status == STATUS_OK ? measure_ready(t, folder, e, times.compute_s, ret, err) : status;
}

void job_load_release(struct job_load *l)
{
    free(l->ready);
    free(l->computes);
    free(l->buckets);
    *l = (struct job_load){.bucket_count = 0};
}
