/*
 * step: the state of one call of model_step, and the two ways to issue its work (model_step.c,
 * model_graph.c).  Internal to the model's sources.
 */
#ifndef SPARRING_WORKER_MODEL_STEP_H
#define SPARRING_WORKER_MODEL_STEP_H

#include "worker/model/program.h"

struct step {
    const int32_t *labels;
    size_t batch;
    bool accumulate;
    model_ready_fn *ready; /* or NULL */
    void *user;
    size_t ready_count; /* published so far */
};

/* Issue forward, loss, backward and the downloads call by call.  The input has been uploaded. */
enum status step_issue(struct model *m, struct step *s, struct error *err);

/* Issue the same as one launch, including a planned update.  False in *ret_done: nothing was done:
 * the step cannot be one launch, or this is the first of its kind. */
enum status step_launch(struct model *m, struct step *s, bool *ret_done, struct error *err);

/* Update m->used: the parameters that have a gradient. */
void step_mark_used(struct model *m, bool accumulate);

/* True: the buffers stay on the device like the parameters, and model_fetch downloads them. */
static inline bool step_buffers_on_device(const struct model *m)
{
    return m->optimizer && m->path == GRADIENTS_STAY;
}

/* True: a step downloads gradients or buffers, or signals their completion to the host. */
static inline bool step_downloads(const struct model *m)
{
    return !step_buffers_on_device(m);
}

/* Issue the work of model_update. */
enum status step_update(struct model *m, double learning_rate, uint64_t step, struct error *err);

#endif
