/*
 * Row selection for the first layer.  Peeks the next batch, marks the features that are non-zero in
 * any of its samples, and passes the matching columns of the input weight to the synchronisation,
 * one range per run of adjacent active features and output row.  Linear in the batch and in the
 * weight.  No locking: training thread only.
 */
#include "worker/train/active_features.h"

#include "common/base/memory.h"
#include "worker/train/trainer.h"

#include <stdlib.h>
#include <string.h>

enum status active_features_open(struct trainer *t, struct error *err)
{
    if (!sync_selects_rows(t->sync) || !model_input_weight(t->model))
        return STATUS_OK;
    return mem_calloc(model_inputs(t->model), sizeof(*t->active_features.active), "features in use",
                      &t->active_features.active, err);
}

void active_features_close(struct trainer *t)
{
    free(t->active_features.active);
    t->active_features.active = NULL;
}

/* The final model and an evaluation need all parameters of the update, not only the selected. */
static bool reads_all_params(const struct trainer *t, uint64_t index, const struct batch *batch)
{
    return index + 1 >= t->total_steps ||
           (batch->last_of_epoch && strcmp(t->options->evaluate, "epoch") == 0);
}

static void mark_active_features(struct trainer *t, const struct batch *next)
{
    size_t features = model_inputs(t->model);
    bool *active = t->active_features.active;

    memset(active, 0, features * sizeof(*active));
    for (size_t i = 0; i < next->count; i++) {
        const float *x = next->x + i * features;

        for (size_t f = 0; f < features; f++)
            active[f] |= x[f] != 0.0f;
    }
}

/* Columns [from, to) of the weight. */
static void select_columns(struct trainer *t, const struct tensor_view *weight, size_t from,
                           size_t to)
{
    size_t in = weight->shape[1];

    for (size_t out = 0; out < weight->shape[0]; out++)
        sync_select_range(t->sync, weight->offset + out * in + from, to - from);
}

void active_features_select(struct trainer *t, uint64_t index, const struct batch *batch)
{
    const struct tensor_view *weight = model_input_weight(t->model); /* (out, in) */
    const bool *active = t->active_features.active;
    size_t features, end;
    struct batch next;

    if (!active || reads_all_params(t, index, batch))
        return;
    features = weight->shape[1];
    end = weight->offset + weight->count;
    loader_peek(t->loader, &next);
    mark_active_features(t, &next);
    sync_select_range(t->sync, 0, weight->offset);
    sync_select_range(t->sync, end, model_table(t->model)->count - end);
    for (size_t from = 0, to; from < features; from = to) {
        for (to = from + 1; to < features && active[to] == active[from]; to++)
            ;
        if (active[from])
            select_columns(t, weight, from, to);
    }
}
