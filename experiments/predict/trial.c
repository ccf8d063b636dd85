/*
 * trial: each is one `sparring launch` in a folder of its own, with its output beside its records.
 */
#include "experiments/predict/trial.h"

#include "common/base/file.h"
#include "common/base/memory.h"
#include "experiments/report/json_fields.h"
#include "experiments/report/metric.h"
#include "experiments/report/statistics.h"
#include "experiments/subprocess/subprocess.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RECORDS_BYTES ((size_t)64 << 20)

static void add_words(const struct trial *t, const char *folder, unsigned ranks, unsigned servers,
                      const struct text_list *options, struct text_list *words)
{
    text_list_addf(words, "%s/sparring", t->programs);
    text_list_addf(words, "launch");
    text_list_addf(words, "--standalone");
    text_list_addf(words, "--nproc-per-node=%u", ranks);
    if (servers > 0)
        text_list_addf(words, "--servers=%u", servers);
    if (t->in_network)
        text_list_addf(words, "--network-rate=0bit");
    text_list_addf(words, "--run-dir=%s", folder);
    text_list_addf(words, "--");
    text_list_addf(words, "%s/sparring-worker", t->programs);
    for (size_t i = 0; i < options->length; i++)
        text_list_addf(words, "%s", options->texts[i]);
    text_list_addf(words, "--run-dir=%s", folder);
}

static enum status run_words(const struct trial *t, const char *folder,
                             const struct text_list *words, struct error *err)
{
    char log_path[4096], outcome[96];
    struct subprocess_request request = {.log_path = log_path, .timeout_ms = t->timeout_ms};
    struct subprocess_result result;
    const char **argv = NULL;
    enum status status = file_join(log_path, sizeof(log_path), folder, "log.txt", err);

    if (status == STATUS_OK)
        status = mem_calloc(words->length + 1, sizeof(*argv), "a command line", &argv, err);
    if (status != STATUS_OK)
        return status;
    for (size_t i = 0; i < words->length; i++)
        argv[i] = words->texts[i];
    request.argv = argv;
    status = subprocess_run(&request, &result, err);
    free(argv);
    if (status != STATUS_OK)
        return status;
    if (result.outcome == SUBPROCESS_STOPPED)
        return error_set(err, STATUS_CANCELLED, "stopped while measuring");
    if (result.outcome == SUBPROCESS_EXITED && result.code == 0)
        return STATUS_OK;
    subprocess_result_text(&result, outcome, sizeof(outcome));
    return error_set(err, STATUS_IO, "a run to measure this machine failed: %s; see '%s'", outcome,
                     log_path);
}

enum status trial_run(const struct trial *t, const char *name, unsigned ranks, unsigned servers,
                      const struct text_list *options, struct run *ret, struct error *err)
{
    char folder[4096];
    struct text_list words = {0};
    enum status status = file_join(folder, sizeof(folder), t->folder, name, err);

    if (status == STATUS_OK)
        status = file_make_folder(folder, err);
    if (status != STATUS_OK)
        return status;
    add_words(t, folder, ranks, servers, options, &words);
    status = words.failed ? error_set(err, STATUS_NO_MEMORY, "no memory for a command line")
                          : run_words(t, folder, &words, err);
    text_list_release(&words);
    if (status == STATUS_OK)
        status = run_open(folder, ret, err);
    if (status == STATUS_OK && ret->state != RUN_OK) {
        status = error_set(err, STATUS_DATA, "a run to measure this machine is not good: %s",
                           ret->reason);
        run_release(ret);
    }
    return status;
}

/* The median over the steady steps of one rank of a sum of parts. */
static enum status median_of(const struct records *rank,
                             int64_t (*part)(const struct step_record *), double *ret_s,
                             struct error *err)
{
    const struct metric_steady steady = metric_steady(rank->length);
    const size_t count = steady.end - steady.first;
    double *values;
    enum status status = mem_calloc(count, sizeof(*values), "step times", &values, err);

    if (status != STATUS_OK)
        return status;
    for (size_t i = 0; i < count; i++)
        values[i] = (double)part(&rank->steps[steady.first + i]) * 1e-9;
    statistics_sort(values, count);
    *ret_s = statistics_quantile(values, count, 0.5);
    free(values);
    return STATUS_OK;
}

static int64_t step_part(const struct step_record *s)
{
    return s->step_ns;
}

static int64_t compute_part(const struct step_record *s)
{
    return s->input_ns + s->compute_ns;
}

static int64_t forward_part(const struct step_record *s)
{
    return s->forward_ns;
}

static int64_t exposed_part(const struct step_record *s)
{
    return s->exposed_comm_ns;
}

static int64_t other_part(const struct step_record *s)
{
    return s->step_ns - s->input_ns - s->compute_ns - s->exposed_comm_ns;
}

/* Processor time of one rank for a steady step: the first steps take longer, but their share of the
 * time that they take is that of the others. */
static double steady_cpu_s(const struct records *rank)
{
    const struct metric_steady steady = metric_steady(rank->length);
    double all_ns = 0, steady_ns = 0;

    for (size_t i = 0; i < rank->length; i++) {
        const double step_ns = (double)rank->steps[i].step_ns;

        all_ns += step_ns;
        steady_ns += i >= steady.first && i < steady.end ? step_ns : 0;
    }
    return rank->end.steps_cpu_seconds / all_ns * steady_ns / (double)(steady.end - steady.first);
}

enum status trial_read_times(const struct run *run, struct trial_times *ret, struct error *err)
{
    enum status status = STATUS_OK;

    *ret = (struct trial_times){.cpu_s = 0};
    for (size_t i = 0; i < run->rank_count && status == STATUS_OK; i++) {
        double step_s = 0, compute_s = 0, forward_s = 0, exposed_s = 0, other_s = 0;

        status = median_of(&run->ranks[i], step_part, &step_s, err);
        if (status == STATUS_OK)
            status = median_of(&run->ranks[i], compute_part, &compute_s, err);
        if (status == STATUS_OK)
            status = median_of(&run->ranks[i], forward_part, &forward_s, err);
        if (status == STATUS_OK)
            status = median_of(&run->ranks[i], exposed_part, &exposed_s, err);
        if (status == STATUS_OK)
            status = median_of(&run->ranks[i], other_part, &other_s, err);
        ret->step_s = fmax(ret->step_s, step_s);
        ret->compute_s = fmax(ret->compute_s, compute_s);
        ret->forward_s = fmax(ret->forward_s, forward_s);
        ret->exposed_s = fmax(ret->exposed_s, exposed_s);
        ret->other_s = fmax(ret->other_s, other_s);
        ret->cpu_s += steady_cpu_s(&run->ranks[i]);
    }
    for (size_t k = 0; k < run->server_count; k++)
        ret->cpu_s += run->servers[k].end.cpu_seconds / (double)run->ranks[0].length;
    return status;
}

enum status trial_read_computes(const struct run *run, double **ret, size_t *ret_steps,
                                struct error *err)
{
    size_t steps = SIZE_MAX;
    enum status status;

    for (size_t i = 0; i < run->rank_count; i++) {
        const struct metric_steady steady = metric_steady(run->ranks[i].length);

        steps = steady.end - steady.first < steps ? steady.end - steady.first : steps;
    }
    *ret_steps = run->rank_count > 0 ? steps : 0;
    status = mem_calloc(run->rank_count * *ret_steps, sizeof(**ret), "compute times", ret, err);
    for (size_t i = 0; i < run->rank_count && status == STATUS_OK; i++) {
        const struct records *rank = &run->ranks[i];
        const size_t first = metric_steady(rank->length).first;

        for (size_t k = 0; k < *ret_steps; k++)
            (*ret)[i * *ret_steps + k] = (double)compute_part(&rank->steps[first + k]) * 1e-9;
    }
    return status;
}

/* Keep the bucket records of the last step that has some. */
static enum status add_bucket(const json_t *record, struct cost_ready *ready, size_t *count,
                              int64_t *step, struct error *err)
{
    const int64_t of_step = json_integer_value(json_object_get(record, "step"));
    const double bytes = json_number_value(json_object_get(record, "bytes"));

    if (of_step != *step)
        *count = 0;
    *step = of_step;
    if (*count == TRIAL_BUCKETS_MAX)
        return error_set(err, STATUS_UNSUPPORTED, "the model has more than %d buckets",
                         TRIAL_BUCKETS_MAX);
    ready[*count].bytes = bytes + (*count > 0 ? ready[*count - 1].bytes : 0);
    ready[*count].at_s = json_number_value(json_object_get(record, "ready_ns")) * 1e-9;
    (*count)++;
    return STATUS_OK;
}

enum status trial_read_ready(const struct run *run, struct cost_ready **ret_ready,
                             size_t *ret_count, struct error *err)
{
    char path[4096];
    char *text = NULL, *rest = NULL;
    size_t size = 0;
    int64_t step = -1;
    enum status status = file_join(path, sizeof(path), run->path, "rank0.jsonl", err);

    *ret_count = 0;
    *ret_ready = NULL;
    if (status == STATUS_OK)
        status = mem_calloc(TRIAL_BUCKETS_MAX, sizeof(**ret_ready), "buckets", ret_ready, err);
    if (status == STATUS_OK)
        status = file_read(path, RECORDS_BYTES, &text, &size, err);
    for (char *line = text ? strtok_r(text, "\n", &rest) : NULL; line && status == STATUS_OK;
         line = strtok_r(NULL, "\n", &rest)) {
        json_t *record = strstr(line, "\"bucket\"") ? json_loads(line, 0, NULL) : NULL;
        const char *kind = json_string_value(json_object_get(record, "kind"));

        if (kind && strcmp(kind, "bucket") == 0)
            status = add_bucket(record, *ret_ready, ret_count, &step, err);
        json_decref(record);
    }
    free(text);
    if (status == STATUS_OK && *ret_count == 0)
        status = error_set(err, STATUS_DATA, "'%s' has no records of buckets", path);
    return status;
}
