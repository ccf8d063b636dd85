/*
 * Opens the parts of a run in dependency order: first those that need no other rank
 * (trainer_local.c), then store, rendezvous, comparison of the manifests, synchronisation and
 * initial parameters.  trainer_close closes the synchronisation first; if that could not stop all
 * access to model and device, they stay open until the process exits.  No locking: training thread
 * only.
 */
#include "worker/train/trainer.h"

#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/base/send_limit.h"
#include "common/base/stop.h"
#include "common/manifest/manifest.h"
#include "common/shard_map/shard_map.h"
#include "worker/train/agree.h"
#include "worker/train/resident.h"
#include "worker/train/trainer_local.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINGER_MS         5000 /* rank 0 keeps serving the store until the others have ended */
#define LINGER_FAILED_MS  2000
#define LINGER_STOPPED_MS 300 /* the other ranks get the signal, too */

/* Compressed gradients depend on the partitions, so there no measurement decides. */
static enum status choose_partitions(struct trainer *t, struct error *err)
{
    size_t servers = worker_options_server_count(t->options);
    bool is_coded = t->compression.up.kind != CODEC_NONE || t->compression.down.kind != CODEC_NONE;
    enum status status = STATUS_OK;

    t->partition_bytes = (size_t)t->options->partition_bytes;
    if (t->partition_bytes > 0)
        return STATUS_OK;
    if (strcmp(t->options->sync, "ps") == 0 && t->store && !is_coded)
        status = link_rate_measure(t->store, &t->link_rate, err);
    t->partition_bytes =
        shard_map_partition_bytes(model_table(t->model)->count, servers > 0 ? (unsigned)servers : 1,
                                  t->server_weights, t->link_rate.bytes_per_s);
    return status;
}

/* The settings that must be equal on all ranks. */
static enum status write_manifest(struct trainer *t, struct error *err)
{
    const struct worker_options *o = t->options;
    struct strbuf *m = &t->manifest;

    manifest_add(m, "version", "%s", SPARRING_VERSION);
    manifest_add(m, "world size", "%u", t->launch->world_size);
    manifest_add(m, "model", "%s", o->model);
    if (model_times_hash(t->model) != 0)
        manifest_add(m, "model times", "%016jx", (uintmax_t)model_times_hash(t->model));
    manifest_add(m, "data samples", "%zu", dataset_count(t->train_set));
    manifest_add(m, "batch size", "%jd", (intmax_t)o->batch_size);
    manifest_add(m, "updates", "%ju", (uintmax_t)t->total_steps);
    manifest_add(m, "accumulate steps", "%jd", (intmax_t)o->accumulate_steps);
    if (t->checkpointer.resumed)
        manifest_add(m, "resumed", "after update %ju, %016jx", (uintmax_t)t->checkpointer.start,
                     (uintmax_t)t->checkpointer.identity);
    manifest_add(m, "seed", "%jd", (intmax_t)o->seed);
    manifest_add(m, "shuffle", "%d", o->shuffle);
    manifest_add(m, "drop last", "%d", o->drop_last);
    manifest_add(m, "layer drop", "%g", o->layer_drop);
    manifest_add(m, "sync", "%s", o->sync);
    manifest_add(m, "backend", "%s", o->backend);
    manifest_add(m, "transport", "%s", o->transport);
    manifest_add(m, "bucket cap", "%g", o->bucket_cap_mb);
    manifest_add(m, "broadcast buffers", "%d", o->broadcast_buffers);
    manifest_add(m, "find unused parameters", "%d", o->find_unused_parameters);
    manifest_add(m, "static graph", "%d", o->static_graph);
    manifest_add(m, "uneven", "%s", o->uneven);
    manifest_add(m, "join divide", "%s", o->join_divide);
    manifest_add(m, "weighting", "%s", o->weighting);
    manifest_add(m, "comm hook", "%s", o->comm_hook);
    manifest_add(m, "powersgd", "%jd from %jd, %g", (intmax_t)o->powersgd_rank,
                 (intmax_t)o->powersgd_start_iter, o->powersgd_min_rate);
    manifest_add(m, "reduce", "%s", o->reduce);
    manifest_add(m, "on rank loss", "%s", o->on_rank_loss);
    manifest_add(m, "ps update", "%s", o->ps_update);
    manifest_add(m, "consistency", "%s", o->consistency);
    manifest_add(m, "staleness", "%jd", (intmax_t)o->staleness);
    manifest_add(m, "backup workers", "%jd", (intmax_t)o->backup_workers);
    manifest_add(m, "asp lr", "%s", o->asp_lr);
    manifest_add(m, "delay compensation", "%.17g", o->delay_compensation);
    manifest_add(m, "delay schedule", "%016jx", (uintmax_t)t->delays.hash);
    manifest_add(m, "compression", "%s, down %s, %g%%", o->compression, o->compression_down,
                 o->top_k);
    manifest_add(m, "servers", "%zu", worker_options_server_count(o));
    manifest_add(m, "server placement", "%s", o->server_placement);
    manifest_add(m, "server weights", "%s", o->server_weights);
    manifest_add(m, "partition bytes", "%ju", (uintmax_t)o->partition_bytes);
    manifest_add(m, "precision", "%s", o->precision);
    manifest_add_optimizer(m, &t->optimizer_config);
    manifest_add_tensors(m, model_table(t->model));
    if (!strbuf_ok(m))
        return error_set(err, STATUS_NO_MEMORY, "no memory for the manifest");
    return STATUS_OK;
}

/* Report a backend that cannot work here before any rank waits for another. */
static enum status check_backend(const struct trainer *t, struct error *err)
{
    const struct collective_config config = {.backend = t->options->backend,
                                             .rank = t->launch->rank,
                                             .world_size = t->launch->world_size};

    return strcmp(t->options->sync, "allreduce") == 0 ? collective_check(&config, err) : STATUS_OK;
}

/* Elastic jobs have no store, since it would be lost with rank 0; the servers, which outlive
 * workers, compare the manifests. */
static enum status rendezvous_and_compare(struct trainer *t, struct error *err)
{
    const struct worker_options *o = t->options;
    struct store_config config = {
        .init_method = o->init_method,
        .launch = t->launch,
        .group = o->group,
        .security = worker_options_security(o),
        .timeout_ms = o->timeout_ms,
    };
    enum status status = check_backend(t, err); /* also with one rank, which does not use it */

    if (status != STATUS_OK || t->launch->world_size == 1 || worker_options_elastic(o))
        return status;
    status = store_open(&config, &t->store, err);
    if (status == STATUS_OK)
        status = store_rendezvous(t->store, err);
    if (status == STATUS_OK)
        status = agree_on_manifest(t->store, t->manifest.text, err);
    return status;
}

/* The file is in the run directory, where `sparring inspect` reads it.  Without it the recorder
 * works in memory, so that a failure to create it does not prevent training. */
static enum status open_flight(struct trainer *t, struct error *err)
{
    struct flight_config config = {.rank = t->launch->rank, .world_size = t->launch->world_size};
    struct error why = {0};
    char name[64];
    char path[4096];

    (void)snprintf(name, sizeof(name), "flight-rank%u.bin", t->launch->rank);
    if (t->record.folder &&
        file_join(path, sizeof(path), t->record.folder, name, &why) == STATUS_OK) {
        config.path = path;
        if (flight_open(&config, &t->flight, &why) == STATUS_OK)
            return STATUS_OK;
    }
    if (t->record.folder)
        log_warning("%s: recording in memory only", why.text);
    config.path = NULL;
    return flight_open(&config, &t->flight, err);
}

/* After open_sync has opened it. */
static enum status start_sync(struct trainer *t, struct error *err)
{
    bool is_replacement;
    enum status status;

    model_set_ready_after_reads(t->model, sync_yields(t->sync) == SYNC_YIELDS_PARAMETERS);
    overlap_open(t);
    upload_ahead_open(t);
    t->facts.sync_detail = sync_backend(t->sync); /* in place of the requested one */
    status = run_record_manifest(&t->record, &t->facts, err);
    if (status == STATUS_OK)
        status = ddp_record_start(&t->ddp, &t->record.metrics, &t->facts, t->sync, err);
    if (status == STATUS_OK)
        status = checkpointer_check_folder(t, err);
    is_replacement = sync_is_replacement(t->sync);
    if (status == STATUS_OK)
        status = sync_start(t->sync, err);
    if (status == STATUS_OK && is_replacement && t->rank == 0 && model_buffers(t->model))
        log_warning("rank 0 begins the running statistics of batch normalisation anew: those of "
                    "the process before it are lost");
    if (status == STATUS_OK)
        status = model_params_changed(t->model, err);
    return status == STATUS_OK ? resident_open(t, err) : status;
}

/* As in sync_config. */
static uint64_t pushes_ahead(const struct trainer *t)
{
    return send_limit_messages(t->link_rate.bytes_per_s, t->link_rate.round_trip_s,
                               t->launch->world_size, (double)t->partition_bytes);
}

static enum status open_sync(struct trainer *t, struct error *err)
{
    const struct worker_options *o = t->options;
    bool alone = t->launch->world_size == 1;
    struct ddp_config ddp = worker_options_ddp(o);
    struct sync_config config = {
        /* one rank needs no all-reduce, but may use parameter servers */
        .kind = (alone && strcmp(o->sync, "allreduce") == 0) || t->replicas ? "local" : o->sync,
        .table = model_table(t->model),
        .params = model_params(t->model),
        .grads = model_grads(t->model),
        .buffers = model_buffers(t->model),
        .buffer_count = model_buffer_table(t->model)->count,
        .memory = model_memory(t->model),
        .rank = t->launch->rank,
        .world_size = t->launch->world_size,
        .store = t->store,
        .timeout_ms = o->timeout_ms,
        .order = strcmp(o->reduce, "fast") == 0 ? REDUCE_FAST : REDUCE_REPRODUCIBLE,
        .manifest = t->manifest.text,
        .job = o->group,
        .backend = o->backend,
        .transport = o->transport,
        .interface_host = o->interface,
        .heartbeat_timeout_ms = o->heartbeat_timeout_ms,
        .flight = t->flight,
        .ddp = &ddp,
        .servers = o->servers,
        .servers_origin = option_origin_text(&worker_option_set, t->origins, "servers"),
        .replicas = o->replicas,
        .replicas_origin = option_origin_text(&worker_option_set, t->origins, "replicas"),
        .server_weights = t->server_weights,
        .reconnect_ms = o->reconnect_ms,
        .on_rank_loss = worker_options_on_loss(o),
        .ps_transport = worker_options_ps_transport(o),
        .connections = (unsigned)o->connections,
        .priority = strcmp(o->priority, "on") == 0,
        .update_on_server = strcmp(o->ps_update, "server") == 0,
        .consistency = t->consistency,
        .rules = t->delays.staleness,
        .rule_count = t->delays.staleness_count,
        .partition_bytes = t->partition_bytes,
        .pushes_ahead = pushes_ahead(t),
        .optimizer = t->optimizer_config,
        .moments = t->optimizer.state,
        .moment_count = t->optimizer.states,
        .steps_before = t->checkpointer.start + t->checkpointer.optimizer_lead,
        .compression = t->compression,
        .overlap_forward = overlap_is_enabled(t),
        .security = worker_options_security(o),
    };
    enum status status;

    resident_configure(t, &config);
    status = sync_open(&config, &t->sync, err);
    return status == STATUS_OK ? start_sync(t, err) : status;
}

/* A push can be delayed behind others only if each push is an optimizer step of its own. */
static enum status check_delays(const struct trainer *t, struct error *err)
{
    if (t->delays.staleness_count == 0 ||
        (strcmp(t->options->sync, "ps") == 0 && consistency_steps_per_push(&t->consistency)))
        return STATUS_OK;
    return error_set(err, STATUS_CONFIG,
                     "'%s' has rules of staleness: they need --sync ps with --consistency asp, or "
                     "ssp with --staleness above 0",
                     t->options->delay_schedule);
}

enum status trainer_open(struct trainer *t, struct error *err)
{
    const struct worker_options *o = t->options;
    enum status status = trainer_open_local(t, err);

    if (status != STATUS_OK)
        return status;
    status = worker_options_server_weights(o, &t->server_weights, err);
    if (status == STATUS_OK)
        status = worker_options_consistency(o, t->launch->world_size, &t->consistency, err);
    if (status == STATUS_OK)
        status = worker_options_compression(o, &t->consistency, &t->compression, err);
    if (status == STATUS_OK)
        status = delay_schedule_read(o->delay_schedule, t->launch->world_size, &t->delays, err);
    if (status == STATUS_OK)
        status = resident_check(t, err);
    if (status == STATUS_OK)
        status = check_delays(t, err);
    if (status == STATUS_OK)
        delay_schedule_resume(&t->delays, t->checkpointer.start);
    if (status == STATUS_OK)
        status = checkpointer_check_targets(t, err);
    if (status == STATUS_OK)
        status = write_manifest(t, err);
    if (status == STATUS_OK)
        status = rendezvous_and_compare(t, err);
    if (status == STATUS_OK)
        status = choose_partitions(t, err);
    if (status != STATUS_OK)
        return status;
    t->facts = (struct run_facts){
        .options = t->options,
        .origins = t->origins,
        .launch = t->launch,
        .table = model_table(t->model),
        .model_flops = model_flops(t->model),
        .device = compute_name(t->compute),
        .sync_detail = strcmp(o->sync, "allreduce") == 0 ? o->backend : o->sync,
        .partition_bytes = t->partition_bytes,
        .link_rate = t->link_rate,
        .store_address = t->store ? store_address(t->store) : "",
    };
    status = run_record_open(&t->record, &t->facts, (size_t)t->total_steps, err);
    if (status == STATUS_OK && strcmp(t->options->sync, "allreduce") == 0)
        status = open_flight(t, err);
    if (status == STATUS_OK)
        status = open_sync(t, err);
    if (status == STATUS_OK)
        status = recovery_open(t, err);
    if (status == STATUS_OK)
        status = active_features_open(t, err);
    if (status == STATUS_OK)
        status = checkpointer_open(t, err);
    return status;
}

/* The lost ranks, including the one whose loss ended the job; returns their number. */
static unsigned list_lost(const struct trainer *t, const struct error *failure,
                          unsigned ret[MESH_RANKS_MAX + 1])
{
    unsigned count = t->recovery.lost_count, rank = UINT_MAX;

    memcpy(ret, t->recovery.lost, count * sizeof(*ret));
    if (failure && t->sync && fault_is_loss(sync_fault(t->sync, &rank)) &&
        rank < t->launch->world_size && rank != t->launch->rank)
        ret[count++] = rank;
    return count;
}

/* Lost ranks never report their departure, so mark them as departed.  If rank 0 is lost, so is a
 * store that it served: then do not wait. */
static void close_store(struct trainer *t, const unsigned *lost, unsigned count, int64_t linger_ms)
{
    if (!t->store)
        return;
    for (unsigned i = 0; i < count; i++)
        if (lost[i] == 0 && strncmp(store_address(t->store), "file:", 5) != 0)
            linger_ms = -1;
    for (unsigned i = 0; i < count && linger_ms >= 0; i++)
        store_mark_departed(t->store, lost[i]);
    store_close(t->store, linger_ms);
}

void trainer_close(struct trainer *t, const struct error *failure)
{
    unsigned lost[MESH_RANKS_MAX + 1]; /* queried before the group is closed */
    const unsigned lost_count = list_lost(t, failure, lost);
    bool released = sync_close(t->sync, failure);

    flight_close(t->flight);
    close_store(t, lost, lost_count,
                stop_requested() ? LINGER_STOPPED_MS
                : failure        ? LINGER_FAILED_MS
                                 : LINGER_MS);
    run_record_close(&t->record);
    if (t->loader)
        (void)upload_ahead_cancel(t, NULL);
    loader_close(t->loader);
    sampler_release(&t->sampler);
    free(t->used);
    delay_schedule_release(&t->delays);
    free(t->server_weights);
    recovery_release(&t->recovery);
    active_features_close(t);
    checkpointer_release(&t->checkpointer);
    ddp_record_release(&t->ddp);
    replicas_close(t->replicas);
    /* otherwise their slabs may be accessed until the process exits, which is soon */
    if (released) {
        optimizer_release(&t->optimizer);
        model_close(t->model);
    }
    dataset_close(t->train_set);
    dataset_close(t->test_set);
    if (released)
        compute_close(t->compute);
    strbuf_release(&t->manifest);
}
