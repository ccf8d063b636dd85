/*
 * The end of a run.  Successful: gather the rates of all ranks (recovering from a loss meanwhile),
 * evaluate, save the parameters, write the last records.  Failed: find the original reason, which
 * may be another rank's, publish it, and write the last records.  No locking: training thread only.
 */
#include "worker/train/finish.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/base/stop.h"
#include "common/base/wait.h"
#include "common/checkpoint/safetensors.h"
#include "worker/train/trainer_local.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum status evaluate_test_set(struct trainer *t, struct run_end *outcome, bool records,
                                     struct error *err)
{
    size_t total = dataset_count(t->test_set);
    size_t features = dataset_features(t->test_set);
    size_t positions = dataset_positions(t->test_set);
    size_t batch = (size_t)t->options->batch_size;
    double loss_sum = 0;
    size_t correct_sum = 0;
    float *x = NULL;
    int32_t *y = NULL;
    int64_t *indices = NULL;
    enum status status = mem_calloc_aligned(batch * features, sizeof(float), "test batch", &x, err);

    if (status == STATUS_OK)
        status = mem_calloc(batch * positions, sizeof(*y), "test labels", &y, err);
    if (status == STATUS_OK)
        status = mem_calloc(batch, sizeof(*indices), "test indices", &indices, err);
    for (size_t at = 0; status == STATUS_OK && at < total; at += batch) {
        size_t count = total - at < batch ? total - at : batch;
        double loss;
        size_t correct;

        for (size_t i = 0; i < count; i++)
            indices[i] = (int64_t)(at + i);
        dataset_gather(t->test_set, indices, count, x, y);
        status = model_evaluate(t->model, x, y, count, &loss, &correct, err);
        loss_sum += loss * (double)count;
        correct_sum += correct;
    }
    free(indices);
    free(y);
    free(x);
    if (status != STATUS_OK)
        return status;
    outcome->evaluated = true;
    outcome->test_loss = loss_sum / (double)total;
    outcome->test_accuracy = (double)correct_sum / ((double)total * (double)positions);
    log_info("epoch %ju%s: test accuracy %.2f %%, test loss %.4f", (uintmax_t)outcome->epochs,
             records ? "" : ", all ranks", outcome->test_accuracy * 100, outcome->test_loss);
    return records ? run_record_evaluation(&t->record, outcome->epochs, outcome->test_loss,
                                           outcome->test_accuracy, err)
                   : STATUS_OK;
}

enum status finish_evaluate(struct trainer *t, struct run_end *outcome, bool records,
                            struct error *err)
{
    /* A rank that has taken over from rank 0 opens the set here, not during recovery, where the
     * other ranks wait for it. */
    enum status status = t->rank == 0 ? trainer_open_test_set(t, err) : STATUS_OK;

    return status == STATUS_OK && t->rank == 0 && t->test_set
               ? evaluate_test_set(t, outcome, records, err)
               : status;
}

/* Sum of the rates of all ranks, through the store: each rank publishes its own, rank 0 adds up.
 * Elastic jobs have no store: the estimate is this rank's rate times the world size. */
static enum status sum_rates_in_store(struct trainer *t, double *ret_rate, struct error *err)
{
    char key[64];
    char text[64];
    enum status status = STATUS_OK;

    if (!t->store) {
        *ret_rate *= t->launch->world_size;
        return STATUS_OK;
    }
    if (t->launch->rank > 0) {
        (void)snprintf(key, sizeof(key), "rate/%u", t->launch->rank);
        (void)snprintf(text, sizeof(text), "%.17g", *ret_rate);
        return store_set(t->store, key, text, strlen(text), err);
    }
    for (unsigned rank = 1; rank < t->launch->world_size && status == STATUS_OK; rank++) {
        char *value = NULL;
        size_t size;

        (void)snprintf(key, sizeof(key), "rate/%u", rank);
        status = store_get(t->store, key, -1, &value, &size, err);
        if (status == STATUS_OK)
            *ret_rate += strtod(value, NULL);
        free(value);
    }
    return status;
}

/* The same over the group of the ranks left, if the synchronisation has one. */
static enum status sum_rates(struct trainer *t, double *ret_rate, struct error *err)
{
    double mine = run_record_samples_per_second(&t->record);
    double all[MESH_RANKS_MAX];
    enum status status = t->world_size > MESH_RANKS_MAX
                             ? STATUS_UNSUPPORTED
                             : sync_all_gather(t->sync, &mine, sizeof(mine), all, err);

    *ret_rate = mine;
    if (status == STATUS_UNSUPPORTED)
        return sum_rates_in_store(t, ret_rate, err);
    *ret_rate = 0;
    for (unsigned r = 0; status == STATUS_OK && r < t->world_size; r++)
        *ret_rate += all[r];
    return status;
}

/* A rank may be lost here, too; recovery then completes the last update of ranks behind. */
static enum status sum_rates_recovering(struct trainer *t, struct run_end *outcome,
                                        struct error *err)
{
    struct wait wait;
    enum status status;

    wait_begin(&wait, clock_deadline_ns(t->options->timeout_ms), "the other ranks to end");
    status = sum_rates(t, &outcome->samples_per_second, err);

    while (status != STATUS_OK) {
        bool advanced;

        status = recovery_run(t, t->total_steps, &advanced, err);
        if (status != STATUS_OK)
            break;
        status = sum_rates(t, &outcome->samples_per_second, err);
    }
    wait_end(&wait);
    return status;
}

static enum status save_params(const struct trainer *t, struct error *err)
{
    char seed[32];
    const char *metadata[] = {"model", t->options->model, "seed", seed, "sync", t->options->sync};

    (void)snprintf(seed, sizeof(seed), "%jd", (intmax_t)t->options->seed);
    return safetensors_save_slab(t->options->save, model_state_table(t->model),
                                 model_params(t->model), metadata, 3, err);
}

/* FNV-1a over 64-bit words; shows whether ranks end with different parameters. */
static uint64_t hash_parameters(const struct trainer *t)
{
    const char *bytes = (const char *)model_params(t->model);
    size_t left = model_table(t->model)->count * sizeof(float);
    uint64_t hash = 0xcbf29ce484222325u;

    while (left > 0) {
        uint64_t word = 0;
        size_t size = left < sizeof(word) ? left : sizeof(word);

        memcpy(&word, bytes, size);
        hash = (hash ^ word) * 0x100000001b3u;
        bytes += size;
        left -= size;
    }
    return hash;
}

static void add_lost_ranks(const struct trainer *t, struct run_end *outcome)
{
    outcome->recoveries = t->recovery.count;
    outcome->lost = t->recovery.lost;
    outcome->lost_count = t->recovery.lost_count;
    outcome->samples_lost = t->recovery.samples_lost;
    outcome->skipped_steps = t->skipped_steps;
}

/* fp16: updates left out because of an overflow change no parameter, but are reported. */
static enum status add_gradient_scale(struct trainer *t, struct run_end *outcome, struct error *err)
{
    struct gradient_scale scale;
    enum status status;

    if (compute_precision(t->compute) != PRECISION_FP16)
        return STATUS_OK;
    status = compute_gradient_scale(t->compute, &scale, err);
    if (status != STATUS_OK)
        return status;
    outcome->scales_gradients = true;
    outcome->overflowed_updates = t->checkpointer.overflowed + scale.skipped;
    outcome->gradient_scale = (double)scale.scale;
    if (t->rank == 0 && outcome->overflowed_updates > 0)
        log_info("fp16: %ju updates were left out for gradients that overflowed; the scale is %g",
                 (uintmax_t)outcome->overflowed_updates, outcome->gradient_scale);
    return STATUS_OK;
}

enum status finish_run(struct trainer *t, struct run_end *outcome, struct error *err)
{
    struct sync_counters total;
    enum status status;

    stop_set_waits(STOP_WAITS_NOW);
    status = sum_rates_recovering(t, outcome, err);
    stop_set_waits(STOP_WAITS_LATE);
    add_lost_ranks(t, outcome);
    outcome->parameters_hash = hash_parameters(t);
    if (status == STATUS_OK)
        status = finish_evaluate(t, outcome, !outcome->is_last_recorded, err);
    if (status == STATUS_OK)
        status = add_gradient_scale(t, outcome, err);
    outcome->peak_device_bytes = compute_peak_bytes(t->compute);
    outcome->graph_launches = model_graph_launches(t->model);
    outcome->device_tx = compute_get_traffic(t->compute).up_bytes;
    outcome->device_rx = compute_get_traffic(t->compute).down_bytes;
    total = sync_counters(t->sync);
    sync_expected_bytes(t->sync, &outcome->expected_tx, &outcome->expected_rx);
    outcome->reconnects = total.reconnects;
    outcome->takeovers = total.takeovers;
    outcome->retries = total.retries;
    outcome->away_seconds = (double)total.away_ns * 1e-9;
    outcome->tx_reference = total.tx_reference_bytes;
    outcome->rx_reference = total.rx_reference_bytes;
    outcome->tx_wire = total.tx_wire_bytes;
    outcome->rx_wire = total.rx_wire_bytes;
    outcome->tx_queued = total.tx_queued_bytes;
    if (status == STATUS_OK && t->options->save[0] != '\0' && t->rank == 0)
        status = save_params(t, err);
    if (status == STATUS_OK)
        status = ddp_record_end(&t->ddp, &t->record.metrics, err);
    if (status == STATUS_OK)
        status = run_record_finish(&t->record, &t->facts, outcome, err);
    return status;
}

/* Whether the group's verdict is more specific than a rank's failure notice: it names operation,
 * bucket, bytes and seconds.  If a rank left or failed by itself, only its notice has the
 * reason. */
static bool has_verdict(const struct trainer *t)
{
    enum fault fault = t->sync ? sync_fault(t->sync, NULL) : FAULT_NONE;

    return fault != FAULT_NONE && fault != FAULT_FINISHED && fault != FAULT_FAILED;
}

/* If another rank failed first, take its failure as the reason; otherwise publish this rank's.  The
 * store's notice is not used with --on-rank-loss shrink: it may be of a loss that was recovered
 * from, and the store may have been lost with its host. */
static void resolve_failure(struct trainer *t, struct error *err)
{
    bool names_step = err->status == STATUS_CANCELLED && strncmp(err->text, "stopped by ", 11) == 0;

    if (stop_requested() && !names_step) /* another rank's earlier stop is not a failure */
        (void)error_set(err, STATUS_CANCELLED, "stopped by signal %d", stop_requested());
    else if (!stop_requested() && t->flight)
        flight_fail(t->flight, FAULT_FAILED, (int)t->launch->rank, err->text);
    if (!t->store || t->recovery.enabled ||
        (!stop_requested() && err->status != STATUS_DATA && !has_verdict(t) &&
         store_find_failure(t->store, 0, err)))
        return;
    store_report_failure(t->store, t->launch->rank, err->text);
}

/* Ignore errors of the records: a full disk must not hide the reason.  A rank that the others have
 * excluded leaves the summary to them. */
void finish_failed(struct trainer *t, struct run_end *outcome, bool opened, struct error *err)
{
    resolve_failure(t, err);
    if (!opened)
        return;
    if (t->recovery.excluded || (t->recovery.enabled && run_record_has_summary(&t->record)))
        t->record.is_chief = false;
    add_lost_ranks(t, outcome);
    outcome->status = status_name(err->status);
    outcome->text = err->text;
    outcome->samples_per_second = run_record_samples_per_second(&t->record);
    (void)run_record_finish(&t->record, &t->facts, outcome, NULL);
}
