#include "worker/train/wanted.h"

#include "common/base/memory.h"
#include "worker/train/trainer.h"

#include <stdlib.h>
#include <string.h>

enum status wanted_open(struct trainer *t, struct error *err)
{
    if (!sync_names_rows(t->sync) || !model_input_weight(t->model))
        return STATUS_OK;
    return mem_calloc(model_inputs(t->model), sizeof(*t->wanted.active), "features in use",
                      &t->wanted.active, err);
}

void wanted_close(struct trainer *t)
{
    free(t->wanted.active);
    t->wanted.active = NULL;
}

/* Is there somebody else than forward who reads what this update brings? */
static bool is_read_whole(const struct trainer *t, uint64_t index, const struct batch *batch)
{
    return index + 1 >= t->total_steps ||
           (batch->last_of_epoch && strcmp(t->options->evaluate, "epoch") == 0);
}

static void find_active(struct trainer *t, const struct batch *next)
{
    size_t features = model_inputs(t->model);
    bool *active = t->wanted.active;

    memset(active, 0, features * sizeof(*active));
    for (size_t i = 0; i < next->count; i++) {
        const float *x = next->x + i * features;

        for (size_t f = 0; f < features; f++)
            active[f] |= x[f] != 0.0f;
    }
}

/* Columns [from, to) of the weight. */
static void want_columns(struct trainer *t, const struct tensor_view *weight, size_t from,
                         size_t to)
{
    size_t in = weight->shape[1];

    for (size_t out = 0; out < weight->shape[0]; out++)
        sync_want(t->sync, weight->offset + out * in + from, to - from);
}

void wanted_name(struct trainer *t, uint64_t index, const struct batch *batch)
{
    const struct tensor_view *weight = model_input_weight(t->model); /* (out, in) */
    const bool *active = t->wanted.active;
    size_t features, end;
    struct batch next;

    if (!active || is_read_whole(t, index, batch))
        return;
    features = weight->shape[1];
    end = weight->offset + weight->count;
    loader_peek(t->loader, &next);
    find_active(t, &next);
    sync_want(t->sync, 0, weight->offset);
    sync_want(t->sync, end, model_table(t->model)->count - end);
    for (size_t from = 0, to; from < features; from = to) {
        for (to = from + 1; to < features && active[to] == active[from]; to++)
            ;
        if (active[from])
            want_columns(t, weight, from, to);
    }
}
