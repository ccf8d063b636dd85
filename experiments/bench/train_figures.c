/*
 * train_figures: reads the figures of one job from the files that it wrote.
 */
#include "experiments/bench/train_figures.h"

#include "common/base/memory.h"
#include "experiments/bench/bench_report.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE_MAX_BYTES 4096

enum part { COMM, EXPOSED, INPUT, COMPUTE, FORWARD, OPTIMIZER, PARTS };

static const char *const part_names[PARTS] = {"comm_ns",    "exposed_comm_ns", "input_ns",
                                              "compute_ns", "forward_ns",      "optimizer_ns"};

struct train_figures train_figures_none(void)
{
    const double none = (double)NAN;

    return (struct train_figures){.step_ms = none,
                                  .comm_ms = none,
                                  .exposed_ms = none,
                                  .input_ms = none,
                                  .forward_ms = none,
                                  .backward_ms = none,
                                  .optimizer_ms = none,
                                  .model_flops = none,
                                  .rss_bytes = none,
                                  .device_bytes = none};
}

static double number_member(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);

    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

/* Open a JSON file; STATUS_DATA unless its `required` member is a finite number. */
static enum status open_json(const char *path, const char *required, json_t **ret,
                             struct error *err)
{
    json_error_t problem;
    json_t *file = json_load_file(path, 0, &problem);

    if (!isfinite(number_member(file, required))) {
        enum status status = error_set(err, STATUS_DATA, "no '%s' in '%s'%s%s", required, path,
                                       file ? "" : ": ", file ? "" : problem.text);
        json_decref(file);
        return status;
    }
    *ret = file;
    return STATUS_OK;
}

/* Fill samples[PARTS][steps] with the steady steps of a rank, as its summary counts them: without
 * the first ones and the last.  Returns their number. */
static size_t read_records(FILE *file, size_t steps, double *samples, struct train_figures *ret)
{
    const size_t first = steps / 10 > 5 ? steps / 10 : 5;
    const bool has_steady = first + 1 < steps;
    const size_t skip = has_steady ? first : 0, last = has_steady ? steps - 1 : steps;
    char line[LINE_MAX_BYTES];
    size_t seen = 0;
    size_t kept = 0;

    while (fgets(line, sizeof(line), file)) {
        json_t *record = json_loads(line, 0, NULL);
        const char *kind = json_string_value(json_object_get(record, "kind"));

        if (kind && strcmp(kind, "step") == 0 && seen++ < last && seen > skip) {
            for (enum part p = 0; p < PARTS; p++)
                samples[p * steps + kept] = number_member(record, part_names[p]) * 1e-6;
            /* compute minus forward is backward */
            samples[COMPUTE * steps + kept] -= samples[FORWARD * steps + kept];
            kept++;
        }
        if (kind && strcmp(kind, "end") == 0) {
            ret->rss_bytes = number_member(record, "peak_rss_bytes");
            ret->device_bytes = number_member(record, "peak_device_bytes");
        }
        json_decref(record);
    }
    return kept;
}

static enum status read_steps(const char *path, size_t steps, struct train_figures *ret,
                              struct error *err)
{
    double *targets[PARTS] = {
        [COMM] = &ret->comm_ms,       [EXPOSED] = &ret->exposed_ms,
        [INPUT] = &ret->input_ms,     [COMPUTE] = &ret->backward_ms,
        [FORWARD] = &ret->forward_ms, [OPTIMIZER] = &ret->optimizer_ms,
    };
    double *samples = NULL;
    FILE *file = fopen(path, "re");
    enum status status;
    size_t kept;

    if (!file)
        return error_set(err, STATUS_IO, "cannot open '%s'", path);
    status = mem_calloc(PARTS * steps, sizeof(double), "steps", &samples, err);
    if (status == STATUS_OK) {
        kept = read_records(file, steps, samples, ret);
        for (enum part p = 0; p < PARTS; p++) /* a part is known in all steps or in none */
            if (kept > 0 && isfinite(samples[p * steps]))
                *targets[p] = bench_summarise(samples + p * steps, kept).median;
    }
    free(samples);
    (void)fclose(file);
    return status;
}

enum status train_figures_read_run(const char *run_dir, size_t steps, struct train_figures *ret,
                                   struct error *err)
{
    char path[1400];
    json_t *summary = NULL;
    json_t *manifest = NULL;
    enum status status;

    *ret = train_figures_none();
    (void)snprintf(path, sizeof(path), "%s/summary.json", run_dir);
    status = open_json(path, "step_ms_median", &summary, err);
    if (status == STATUS_OK)
        ret->step_ms = number_member(summary, "step_ms_median");
    json_decref(summary);
    (void)snprintf(path, sizeof(path), "%s/manifest.json", run_dir);
    if (status == STATUS_OK)
        status = open_json(path, "model_flops_per_sample", &manifest, err);
    if (status == STATUS_OK) {
        ret->model_flops = number_member(manifest, "model_flops_per_sample");
        json_decref(manifest);
    }
    (void)snprintf(path, sizeof(path), "%s/rank0.jsonl", run_dir);
    return status == STATUS_OK ? read_steps(path, steps, ret, err) : status;
}

enum status train_figures_read_torch(const char *path, struct train_figures *ret, struct error *err)
{
    json_error_t problem;
    json_t *file = json_load_file(path, 0, &problem);
    const char *why = json_string_value(json_object_get(file, "not_measured"));
    enum status status;

    *ret = train_figures_none();
    if (why) {
        status = error_set(err, STATUS_UNSUPPORTED, "%s", why);
        json_decref(file);
        return status;
    }
    json_decref(file);
    status = open_json(path, "step_ms", &file, err);
    if (status != STATUS_OK)
        return status;
    ret->step_ms = number_member(file, "step_ms");
    ret->input_ms = number_member(file, "input_ms");
    ret->forward_ms = number_member(file, "forward_ms");
    ret->backward_ms = number_member(file, "backward_ms");
    ret->optimizer_ms = number_member(file, "optimizer_ms");
    ret->model_flops = number_member(file, "model_flops_per_sample");
    ret->rss_bytes = number_member(file, "peak_rss_bytes");
    ret->device_bytes = number_member(file, "peak_device_bytes");
    json_decref(file);
    return STATUS_OK;
}
