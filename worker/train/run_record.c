/*
 * Writes the run directory of one rank.  Step records are appended as they come, so a crash loses
 * nothing that was written; manifest.json and summary.json are written atomically.  Step times are
 * kept in two ring tables for the rate and the median.  No locking: training thread only.
 */
#include "worker/train/run_record.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/host.h"
#include "common/base/memory.h"
#include "common/base/version.h"
#include "common/rpc/rpc.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STEADY_SKIP_MIN 5
#define STEPS_KEPT_MAX  ((size_t)1 << 20) /* a longer run keeps its last steps */

static void add_member(struct strbuf *out, const char *name, const char *value)
{
    strbuf_addf(out, ",\"%s\":", name);
    strbuf_add_json(out, value);
}

static void add_number(struct strbuf *out, const char *name, double value)
{
    if (isfinite(value))
        strbuf_addf(out, ",\"%s\":%.9g", name, value);
    else
        strbuf_addf(out, ",\"%s\":null", name);
}

static enum status write_json(const struct run_record *r, const char *name, struct strbuf *text,
                              struct error *err)
{
    char path[4096];
    enum status status;

    strbuf_add(text, "}\n");
    if (!strbuf_ok(text))
        return error_set(err, STATUS_NO_MEMORY, "no memory for %s", name);
    status = file_join(path, sizeof(path), r->folder, name, err);
    if (status == STATUS_OK)
        status = file_write_atomic(path, text->text, text->length, err);
    return status;
}

static enum status write_manifest(const struct run_record *r, const struct run_facts *facts,
                                  struct error *err)
{
    struct strbuf out = STRBUF_INIT;
    struct host_info host;
    enum status status;

    host_info_read(&host);
    strbuf_add(&out, "{\"schema\":1");
    add_member(&out, "run", r->id);
    add_member(&out, "start", r->started);
    add_member(&out, "program", "sparring-worker " SPARRING_VERSION);
    add_member(&out, "git", version_git());
    strbuf_add(&out, ",\"options\":");
    option_json(&worker_option_set, facts->options, facts->origins, &out);
    strbuf_add(&out, ",\"host\":");
    host_info_json(&host, &out);
    strbuf_addf(&out, ",\"world_size\":%u", facts->launch->world_size);
    add_member(&out, "launch_source", facts->launch->source);
    add_member(&out, "store", facts->store_address);
    add_member(&out, "device", facts->device);
    add_member(&out, "backend", facts->sync_detail);
    strbuf_addf(&out, ",\"parameters\":%zu,\"parameter_bytes\":%zu,\"model_flops_per_sample\":%ju",
                facts->table->count, facts->table->count * sizeof(float),
                (uintmax_t)facts->model_flops);
    strbuf_add(&out, ",\"versions\":{\"sparring\":\"" SPARRING_VERSION "\"");
    add_member(&out, "grpc_core", rpc_library_version());
    strbuf_add(&out, "}");
    status = write_json(r, "manifest.json", &out, err);
    strbuf_release(&out);
    return status;
}

/* Whether the launcher started this process to replace a lost one; it then appends to its
 * records. */
static bool is_replacement(void)
{
    const char *restarts = getenv("SPARRING_RESTARTS");

    return restarts && strcmp(restarts, "0") != 0;
}

static enum status open_metrics(struct run_record *r, size_t planned_steps, struct error *err)
{
    char name[32];
    char path[4096];
    struct host_info host;
    enum status status;

    if (!r->folder)
        return metrics_open(&r->metrics, NULL, err);
    (void)snprintf(name, sizeof(name), "rank%u.jsonl", r->rank);
    status = file_make_folder(r->folder, err);
    if (status == STATUS_OK)
        status = file_join(path, sizeof(path), r->folder, name, err);
    if (status != STATUS_OK)
        return status;
    if (!is_replacement() && truncate(path, 0) != 0 && access(path, F_OK) == 0)
        return error_set(err, STATUS_IO, "cannot empty '%s' of an earlier run", path);
    status = metrics_open(&r->metrics, path, err);
    if (status != STATUS_OK)
        return status;
    host_info_read(&host);
    metrics_begin(&r->metrics, "start");
    metrics_add_int(&r->metrics, "rank", r->rank);
    metrics_add_int(&r->metrics, "pid", getpid());
    metrics_add_text(&r->metrics, "host", host.name);
    metrics_add_text(&r->metrics, "processors", host.processors);
    metrics_add_int(&r->metrics, "planned_steps", (int64_t)planned_steps);
    return metrics_end(&r->metrics, err);
}

/* A file that an earlier run in the same folder has left and no process of this one empties: of a
 * rank or server that it does not have, too. */
static bool is_left_over(const char *name, const struct run_facts *facts)
{
    const size_t ranks = facts->launch->world_size;
    const size_t servers = worker_options_server_count(facts->options);
    const bool is_allreduce = strcmp(facts->options->sync, "allreduce") == 0;
    const struct {
        const char *prefix, *suffix;
        size_t first;
    } numbered[] = {{"rank", ".jsonl", ranks},
                    {"flight-rank", ".bin", is_allreduce ? ranks : 0},
                    {"server", ".jsonl", servers},
                    {"replica", ".jsonl", facts->options->replicas[0] ? servers : 0}};

    for (size_t i = 0; i < sizeof(numbered) / sizeof(numbered[0]); i++) {
        const size_t length = strlen(numbered[i].prefix);
        char *suffix;

        if (strncmp(name, numbered[i].prefix, length) == 0 &&
            isdigit((unsigned char)name[length]) &&
            strtoul(name + length, &suffix, 10) >= numbered[i].first &&
            strcmp(suffix, numbered[i].suffix) == 0)
            return true;
    }
    return strcmp(name, "summary.json") == 0 || strcmp(name, "network.json") == 0 ||
           strcmp(name, "faults.json") == 0;
}

/* A replacement goes on with the files, but for the summary. */
static enum status remove_left_over(const struct run_record *r, const struct run_facts *facts,
                                    struct error *err)
{
    DIR *folder = opendir(r->folder);
    enum status status = STATUS_OK;

    if (!folder)
        return error_set_errno(err, errno, "cannot list '%s'", r->folder);
    for (const struct dirent *e = readdir(folder); e && status == STATUS_OK; e = readdir(folder))
        if (is_replacement() ? strcmp(e->d_name, "summary.json") == 0
                             : is_left_over(e->d_name, facts))
            if (unlinkat(dirfd(folder), e->d_name, 0) != 0 && errno != ENOENT)
                status = error_set_errno(err, errno, "cannot remove '%s/%s' of an earlier run",
                                         r->folder, e->d_name);
    (void)closedir(folder);
    return status;
}

bool run_record_has_summary(const struct run_record *r)
{
    char path[4096];

    return r->folder &&
           file_join(path, sizeof(path), r->folder, "summary.json", NULL) == STATUS_OK &&
           access(path, F_OK) == 0;
}

static void name_run(struct run_record *r)
{
    const char *slash;

    (void)snprintf(r->id, sizeof(r->id), "run");
    if (!r->folder)
        return;
    slash = strrchr(r->folder, '/');
    (void)snprintf(r->id, sizeof(r->id), "%.120s", slash && slash[1] ? slash + 1 : r->folder);
}

enum status run_record_open(struct run_record *r, const struct run_facts *facts, size_t max_steps,
                            struct error *err)
{
    enum status status;

    memset(r, 0, sizeof(*r));
    r->metrics.fd = -1;
    r->folder = facts->options->run_dir[0] ? facts->options->run_dir : NULL;
    r->rank = facts->launch->rank;
    r->is_chief = r->rank == 0;
    r->started_wall = clock_wall_seconds();
    clock_wall_text(r->started, sizeof(r->started));
    name_run(r);
    r->capacity = max_steps < STEPS_KEPT_MAX ? max_steps : STEPS_KEPT_MAX;
    status = mem_calloc(r->capacity, sizeof(double), "step times", &r->step_seconds, err);
    if (status == STATUS_OK)
        status = mem_calloc(r->capacity, sizeof(double), "step samples", &r->step_samples, err);
    if (status == STATUS_OK)
        status = open_metrics(r, max_steps, err);
    if (status == STATUS_OK && r->is_chief && r->folder)
        status = remove_left_over(r, facts, err);
    return status == STATUS_OK ? run_record_manifest(r, facts, err) : status;
}

enum status run_record_manifest(struct run_record *r, const struct run_facts *facts,
                                struct error *err)
{
    return r->folder && r->is_chief ? write_manifest(r, facts, err) : STATUS_OK;
}

enum status run_record_step(struct run_record *r, const struct step_record *step, struct error *err)
{
    if (r->steps == 0) {
        r->tx_first = step->tx_payload_bytes;
        r->rx_first = step->rx_payload_bytes;
    }
    if (step->tx_payload_bytes != r->tx_first || step->rx_payload_bytes != r->rx_first)
        r->uneven_bytes = true;
    r->step_seconds[r->steps % r->capacity] = (double)step->step_ns * 1e-9;
    r->step_samples[r->steps % r->capacity] = (double)step->samples;
    r->steps++;
    return metrics_step(&r->metrics, step, err);
}

enum status run_record_evaluation(struct run_record *r, uint64_t epoch, double loss,
                                  double accuracy, struct error *err)
{
    metrics_begin(&r->metrics, "evaluation");
    metrics_add_int(&r->metrics, "epoch", (int64_t)epoch);
    metrics_add_double(&r->metrics, "test_loss", loss);
    metrics_add_double(&r->metrics, "test_accuracy", accuracy);
    return metrics_end(&r->metrics, err);
}

static int compare_doubles(const void *a, const void *b)
{
    const double *x = a;
    const double *y = b;

    return (*x > *y) - (*x < *y);
}

/* The steady steps among those kept: [*ret_first, *ret_first + n); returns n.  In the last one a
 * parameter server's ranks wait for the replies of two. */
static size_t find_steady(const struct run_record *r, size_t *ret_first)
{
    size_t kept = r->steps < r->capacity ? r->steps : r->capacity;
    size_t skip = r->steps / 10 > STEADY_SKIP_MIN ? r->steps / 10 : STEADY_SKIP_MIN;

    *ret_first = 0;
    if (kept < r->steps || skip + 1 >= kept) /* a long run has overwritten its first steps */
        return kept;
    *ret_first = skip;
    return kept - 1 - skip;
}

double run_record_samples_per_second(const struct run_record *r)
{
    size_t first, count = find_steady(r, &first);
    double samples = 0, seconds = 0;

    for (size_t i = first; i < first + count; i++) {
        samples += r->step_samples[i];
        seconds += r->step_seconds[i];
    }
    return seconds > 0 ? samples / seconds : 0;
}

static double median_step_ms(const struct run_record *r)
{
    size_t first, count = find_steady(r, &first);
    double *values = count ? malloc(count * sizeof(double)) : NULL;
    double median;

    if (!values)
        return 0;
    memcpy(values, r->step_seconds + first, count * sizeof(double));
    qsort(values, count, sizeof(double), compare_doubles);
    median = (values[(count - 1) / 2] + values[count / 2]) / 2;
    free(values);
    return median * 1e3;
}

static void add_configuration(const struct run_facts *facts, struct strbuf *out)
{
    const struct worker_options *o = facts->options;

    strbuf_addf(out, ",\"configuration\":{\"batch_size\":%jd,\"lr\":%.17g,\"momentum\":%.17g",
                (intmax_t)o->batch_size, o->lr, o->momentum);
    strbuf_addf(out, ",\"weight_decay\":%.17g,\"seed\":%jd,\"accumulate_steps\":%jd",
                o->weight_decay, (intmax_t)o->seed, (intmax_t)o->accumulate_steps);
    strbuf_addf(out, ",\"samples\":%jd,\"bucket_cap_mb\":%.17g,\"partition_bytes\":%zu",
                (intmax_t)o->samples, o->bucket_cap_mb, facts->partition_bytes);
    if (facts->link_rate.bytes_per_s > 0)
        strbuf_addf(out, ",\"link_bytes_per_s\":%.0f,\"link_round_trip_s\":%.9f",
                    facts->link_rate.bytes_per_s, facts->link_rate.round_trip_s);
    add_member(out, "model", o->model);
    add_member(out, "data", o->data);
    add_member(out, "optimizer", o->optimizer);
    add_member(out, "sync", o->sync);
    add_member(out, "backend", facts->sync_detail);
    add_member(out, "reduce", o->reduce);
    add_member(out, "ps_update", o->ps_update);
    strbuf_addf(out, ",\"connections\":%jd", (intmax_t)o->connections);
    add_member(out, "priority", o->priority);
    add_member(out, "consistency", o->consistency);
    strbuf_addf(out, ",\"staleness\":%jd,\"backup_workers\":%jd", (intmax_t)o->staleness,
                (intmax_t)o->backup_workers);
    add_member(out, "asp_lr", o->asp_lr);
    strbuf_addf(out, ",\"delay_compensation\":%.17g", o->delay_compensation);
    add_member(out, "compression", o->compression);
    add_member(out, "compression_down", o->compression_down);
    strbuf_addf(out, ",\"top_k\":%.17g", o->top_k);
    add_member(out, "servers_at", o->servers);
    add_member(out, "server_placement", o->server_placement);
    add_member(out, "server_weights", o->server_weights);
    add_member(out, "device", facts->device);
    add_member(out, "init", o->init);
    strbuf_addf(out, ",\"servers\":%zu}", worker_options_server_count(o));
}

static void add_lost_ranks(const struct run_end *outcome, struct strbuf *out)
{
    strbuf_addf(out, ",\"recoveries\":%u,\"samples_lost\":%ju,\"lost_ranks\":\"",
                outcome->recoveries, (uintmax_t)outcome->samples_lost);
    for (unsigned i = 0; i < outcome->lost_count; i++)
        strbuf_addf(out, "%s%u", i ? "," : "", outcome->lost[i]);
    strbuf_add(out, "\"");
}

static enum status write_summary(struct run_record *r, const struct run_facts *facts,
                                 const struct run_end *outcome, struct error *err)
{
    struct strbuf out = STRBUF_INIT;
    enum status status;

    /* 1: samples_per_second was that of the median step; 2: with the last step */
    strbuf_add(&out, "{\"schema\":3");
    add_member(&out, "status", outcome->status);
    add_member(&out, "error", outcome->text);
    add_number(&out, "test_accuracy", outcome->evaluated ? outcome->test_accuracy : (double)NAN);
    add_number(&out, "test_loss", outcome->evaluated ? outcome->test_loss : (double)NAN);
    add_number(&out, "last_loss", outcome->last_loss);
    add_number(&out, "samples_per_second", outcome->samples_per_second);
    add_number(&out, "step_ms_median", median_step_ms(r));
    strbuf_addf(&out, ",\"steps\":%zu,\"epochs\":%ju,\"world_size\":%u,\"wall_seconds\":%.6f",
                r->steps + (size_t)outcome->skipped_steps, (uintmax_t)outcome->epochs,
                facts->launch->world_size, clock_wall_seconds() - r->started_wall);
    add_configuration(facts, &out);
    add_lost_ranks(outcome, &out);
    strbuf_addf(&out, ",\"bytes\":{\"tx_payload_per_step\":%ju,\"rx_payload_per_step\":%ju",
                (uintmax_t)r->tx_first, (uintmax_t)r->rx_first);
    if (outcome->expected_tx != UINT64_MAX)
        strbuf_addf(&out, ",\"expected_tx_payload_per_step\":%ju", (uintmax_t)outcome->expected_tx);
    if (outcome->expected_rx != UINT64_MAX)
        strbuf_addf(&out, ",\"expected_rx_payload_per_step\":%ju", (uintmax_t)outcome->expected_rx);
    strbuf_addf(&out, ",\"same_every_step\":%s}", r->uneven_bytes ? "false" : "true");
    status = write_json(r, "summary.json", &out, err);
    strbuf_release(&out);
    return status;
}

static void add_hash(struct metrics *m, uint64_t hash)
{
    char text[20];

    (void)snprintf(text, sizeof(text), "%016" PRIx64, hash);
    metrics_add_text(m, "parameters_hash", text);
}

static void add_gradient_scale(struct metrics *m, const struct run_end *outcome)
{
    metrics_add_int(m, "overflowed_updates", (int64_t)outcome->overflowed_updates);
    metrics_add_double(m, "gradient_scale", outcome->gradient_scale);
}

enum status run_record_finish(struct run_record *r, const struct run_facts *facts,
                              const struct run_end *outcome, struct error *err)
{
    struct metrics *m = &r->metrics;
    enum status status;

    metrics_begin(m, "end");
    metrics_add_text(m, "status", outcome->status);
    if (outcome->text[0] != '\0')
        metrics_add_text(m, "error", outcome->text);
    metrics_add_int(m, "steps", (int64_t)r->steps);
    metrics_add_int(m, "skipped_steps", (int64_t)outcome->skipped_steps);
    metrics_add_int(m, "tx_reference_bytes", (int64_t)outcome->tx_reference);
    metrics_add_int(m, "rx_reference_bytes", (int64_t)outcome->rx_reference);
    metrics_add_int(m, "reconnects", (int64_t)outcome->reconnects);
    metrics_add_int(m, "takeovers", (int64_t)outcome->takeovers);
    metrics_add_double(m, "away_seconds", outcome->away_seconds);
    metrics_add_int(m, "retries", (int64_t)outcome->retries);
    metrics_add_int(m, "tx_wire_bytes", (int64_t)outcome->tx_wire);
    metrics_add_int(m, "rx_wire_bytes", (int64_t)outcome->rx_wire);
    metrics_add_int(m, "tx_queued_bytes", (int64_t)outcome->tx_queued);
    if (outcome->expected_tx != UINT64_MAX)
        metrics_add_int(m, "expected_tx_payload_bytes", (int64_t)outcome->expected_tx);
    if (outcome->expected_rx != UINT64_MAX)
        metrics_add_int(m, "expected_rx_payload_bytes", (int64_t)outcome->expected_rx);
    metrics_add_int(m, "peak_rss_bytes", (int64_t)host_peak_rss_bytes());
    if (outcome->peak_device_bytes > 0) {
        metrics_add_int(m, "peak_device_bytes", (int64_t)outcome->peak_device_bytes);
        metrics_add_int(m, "graph_launches", (int64_t)outcome->graph_launches);
    }
    if (outcome->device_tx > 0)
        metrics_add_int(m, "device_tx_bytes", (int64_t)outcome->device_tx);
    if (outcome->device_rx > 0)
        metrics_add_int(m, "device_rx_bytes", (int64_t)outcome->device_rx);
    if (outcome->scales_gradients)
        add_gradient_scale(m, outcome);
    metrics_add_double(m, "cpu_seconds", host_cpu_seconds());
    metrics_add_double(m, "steps_cpu_seconds", outcome->steps_cpu_seconds);
    if (isfinite(outcome->processor_wait))
        metrics_add_double(m, "processor_wait", outcome->processor_wait);
    metrics_add_double(m, "samples_per_second", run_record_samples_per_second(r));
    if (outcome->parameters_hash != 0)
        add_hash(m, outcome->parameters_hash);
    status = metrics_end(m, err);
    if (status == STATUS_OK && r->folder && r->is_chief)
        status = write_summary(r, facts, outcome, err);
    return status;
}

void run_record_close(struct run_record *r)
{
    metrics_close(&r->metrics);
    free(r->step_seconds);
    free(r->step_samples);
    r->step_seconds = NULL;
    r->step_samples = NULL;
}
