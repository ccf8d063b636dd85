/*
 * step: one call of model_step, and the two ways to issue its work.  Internal to the model's
 * sources.
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
    size_t ready_count; /* handed over so far */
};

/* Forward, loss and backward, and what travels to the host, call by call.  The input is in its
 * place. */
enum status step_issue(struct model *m, struct step *s, struct error *err);

/* The same as one launch, with the update where it was planned.  False in *ret_done: nothing was
 * done, because the device has no graphs, or such a step is made for the first time. */
enum status step_launch(struct model *m, struct step *s, bool *ret_done, struct error *err);

/* Which parameters have a gradient. */
void step_note_used(struct model *m, bool accumulate);

/* Buffers are the device's own, like the parameters: model_fetch brings them. */
static inline bool step_keeps_buffers(const struct model *m)
{
    return m->optimizer && m->path == GRADIENTS_STAY;
}

/* Something of such a step goes to the host, or is told of there. */
static inline bool step_downloads(const struct model *m)
{
    return !step_keeps_buffers(m);
}

/* model_update's work, issued. */
enum status step_update(struct model *m, double learning_rate, uint64_t step, struct error *err);

#endif
