/*
 * Records of DistributedDataParallel.  Nothing is written for a synchronisation without buckets.
 * Sampling is PyTorch's (kDDPRuntimeLoggingSampleRate): the first ten steps, then every hundredth;
 * the sums cover every step.  No locking: training thread only.
 */
#include "worker/train/ddp_record.h"

#include "common/base/memory.h"
#include "common/base/strbuf.h"

#include <stdlib.h>
#include <string.h>

#define SAMPLED_FIRST 10
#define SAMPLED_EACH  100

static void add_bool(struct metrics *m, const char *name, bool value)
{
    metrics_add_int(m, name, value);
}

static void add_sizes(struct metrics *m, const struct sync_timeline *timeline)
{
    struct strbuf sizes = STRBUF_INIT;

    for (size_t i = 0; i < timeline->length; i++)
        strbuf_addf(&sizes, "%s%zu", i > 0 ? ", " : "", timeline->buckets[i].bytes);
    if (strbuf_ok(&sizes))
        metrics_add_text(m, "bucket_sizes", sizes.text);
    strbuf_release(&sizes);
}

enum status ddp_record_start(struct ddp_record *r, struct metrics *m, const struct run_facts *facts,
                             const struct sync *sync, struct error *err)
{
    const struct worker_options *o = facts->options;
    struct ddp_config ddp = worker_options_ddp(o);
    struct sync_timeline timeline;
    enum status status =
        mem_calloc(facts->table->length, sizeof(bool), "used parameters", &r->used_first, err);

    if (status != STATUS_OK)
        return status;
    sync_timeline(sync, &timeline);
    if (timeline.length == 0)
        return STATUS_OK;
    metrics_begin(m, "ddp");
    metrics_add_int(m, "rank", facts->launch->rank);
    metrics_add_int(m, "world_size", facts->launch->world_size);
    metrics_add_text(m, "module_name", o->model);
    metrics_add_text(m, "backend_name", sync_backend(sync));
    metrics_add_text(m, "device", facts->device);
    metrics_add_text(m, "dtypes", "float32");
    metrics_add_text(m, "store", facts->store_address);
    metrics_add_int(m, "num_parameter_tensors", (int64_t)facts->table->length);
    metrics_add_int(m, "total_parameter_size_bytes",
                    (int64_t)(facts->table->count * sizeof(float)));
    metrics_add_double(m, "bucket_cap_bytes",
                       ddp.bucket_cap_mb < 0 ? (double)BUCKET_CAP_BYTES
                                             : ddp.bucket_cap_mb * 1048576.0);
    add_sizes(m, &timeline);
    add_bool(m, "broadcast_buffers", ddp.broadcast_buffers);
    add_bool(m, "find_unused_parameters", ddp.find_unused_parameters);
    add_bool(m, "gradient_as_bucket_view", true);
    add_bool(m, "static_graph", ddp.static_graph);
    metrics_add_text(m, "comm_hook", o->comm_hook);
    metrics_add_text(m, "uneven", o->uneven);
    metrics_add_text(m, "weighting", o->weighting);
    return metrics_end(m, err);
}

static enum status write_bucket(struct metrics *m, const struct sync_timeline *timeline,
                                size_t index, uint64_t step, int64_t computed_ns, struct error *err)
{
    const struct sync_bucket *b = &timeline->buckets[index];

    metrics_begin(m, "bucket");
    metrics_add_int(m, "step", (int64_t)step);
    metrics_add_int(m, "bucket", (int64_t)index + 1);
    metrics_add_int(m, "buckets", (int64_t)timeline->length);
    metrics_add_int(m, "bytes", (int64_t)b->bytes);
    metrics_add_int(m, "ready_ns", b->ready_ns - timeline->begun_ns);
    metrics_add_int(m, "start_ns", b->started_ns - timeline->begun_ns);
    metrics_add_int(m, "done_ns", b->done_ns - timeline->begun_ns);
    metrics_add_int(m, "computed_ns", computed_ns - timeline->begun_ns);
    return metrics_end(m, err);
}

/* The part of a bucket's reduction that overlaps with backward. */
static int64_t hidden_ns(const struct sync_bucket *b, int64_t computed_ns)
{
    int64_t end_ns = b->done_ns < computed_ns ? b->done_ns : computed_ns;

    return end_ns > b->started_ns ? end_ns - b->started_ns : 0;
}

enum status ddp_record_step(struct ddp_record *r, struct metrics *m, const struct sync *sync,
                            const struct step_record *step, int64_t computed_ns, struct error *err)
{
    bool sampled = step->step < SAMPLED_FIRST || step->step % SAMPLED_EACH == 0;
    struct sync_timeline timeline;
    enum status status = STATUS_OK;

    sync_timeline(sync, &timeline);
    if (timeline.length == 0)
        return STATUS_OK;
    r->steps++;
    r->forward_ns += step->forward_ns;
    r->backward_ns += step->compute_ns - step->forward_ns;
    r->comm_ns += step->comm_ns;
    for (size_t i = 0; i < timeline.length && status == STATUS_OK; i++) {
        r->overlap_ns += hidden_ns(&timeline.buckets[i], computed_ns);
        if (sampled)
            status = write_bucket(m, &timeline, i, step->step, computed_ns, err);
    }
    return status;
}

void ddp_record_used(struct ddp_record *r, const struct tensor_table *table, const bool *used)
{
    size_t bytes = table->length * sizeof(*used);

    if (!r->used_known)
        memcpy(r->used_first, used, bytes);
    r->used_known = true;
    r->used_changed = r->used_changed || memcmp(r->used_first, used, bytes) != 0;
    r->unused_bytes = 0;
    for (size_t i = 0; i < table->length; i++)
        r->unused_bytes += used[i] ? 0 : table->views[i].count * sizeof(float);
}

enum status ddp_record_end(const struct ddp_record *r, struct metrics *m, struct error *err)
{
    int64_t steps = (int64_t)r->steps;

    if (steps == 0)
        return STATUS_OK;
    metrics_begin(m, "ddp_runtime");
    metrics_add_int(m, "iterations", steps);
    metrics_add_int(m, "avg_forward_compute_time", r->forward_ns / steps);
    metrics_add_int(m, "avg_backward_compute_time", r->backward_ns / steps);
    metrics_add_int(m, "avg_backward_comm_time", r->comm_ns / steps);
    metrics_add_int(m, "avg_backward_compute_comm_overlap_time", r->overlap_ns / steps);
    metrics_add_int(m, "unused_parameter_size", (int64_t)r->unused_bytes);
    add_bool(m, "can_set_static_graph", !r->used_changed);
    return metrics_end(m, err);
}

void ddp_record_release(struct ddp_record *r)
{
    free(r->used_first);
    r->used_first = NULL;
}
