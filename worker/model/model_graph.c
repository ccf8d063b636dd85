/*
 * A step as one graph launch.  The device captures the calls of step_issue once and launches them
 * from then on, with the labels and the optimizer's numbers of each step; the input is uploaded
 * before.  Each kind of step (batch size, whether gradients accumulate, whether the update follows
 * at once) has its own graph; a new kind replaces the least recently used one.  The first step of a
 * kind runs call by call, because it allocates the device memory that the calls use.
 *
 * Capturing executes nothing, so a device that cannot capture a step goes on call by call.
 */
#include "worker/model/step.h"

#include <assert.h>
#include <string.h>

static bool can_launch(const struct model *m)
{
    return compute_has_graphs(m->compute) && !m->graphs_disabled && !m->await &&
           m->drop_probability <= 0 && !step_downloads(m) && !m->graph_failure.text[0];
}

static void discard_graph(struct model *m, struct step_graph *g)
{
    compute_graph_free(m->compute, g->graph);
    g->graph = NULL;
}

/* The entry for steps of this kind, whose graph may not be captured yet; *ret_new: the entry is
 * new. */
static struct step_graph *find_graph(struct model *m, const struct step *s, bool *ret_new)
{
    struct step_graph *least_recent = &m->graphs[0];

    m->graph_uses++;
    *ret_new = false;
    for (size_t i = 0; i < MODEL_GRAPHS; i++) {
        struct step_graph *g = &m->graphs[i];

        if (g->batch == s->batch && g->accumulate == s->accumulate &&
            g->has_ready == (s->ready != NULL) && g->includes_update == m->update.planned) {
            g->last_use = m->graph_uses;
            return g;
        }
        if (g->last_use < least_recent->last_use)
            least_recent = g;
    }
    discard_graph(m, least_recent);
    *least_recent = (struct step_graph){.batch = s->batch,
                                        .accumulate = s->accumulate,
                                        .has_ready = s->ready != NULL,
                                        .includes_update = m->update.planned,
                                        .last_use = m->graph_uses};
    *ret_new = true;
    return least_recent;
}

static enum status capture_step(struct model *m, struct step_graph *g, struct step *s,
                                struct error *err)
{
    struct error why = {0};
    enum status status = compute_graph_begin(m->compute, err);
    enum status ended;

    if (status != STATUS_OK)
        return status;
    status = step_issue(m, s, err);
    if (status == STATUS_OK && g->includes_update)
        status = step_update(m, m->update.learning_rate, m->update.step, err);
    ended = compute_graph_end(m->compute, &g->graph, &why);
    if (status == STATUS_OK && ended != STATUS_OK)
        return error_set(err, ended, "%s", why.text);
    if (status != STATUS_OK)
        discard_graph(m, g);
    return status;
}

static enum status launch_graph(struct model *m, const struct step_graph *g, const struct step *s,
                                struct error *err)
{
    return compute_graph_launch(m->compute, g->graph, s->labels, s->batch * m->positions,
                                g->includes_update ? &m->optimizer->config : NULL,
                                m->update.learning_rate, m->update.step, err);
}

enum status step_launch(struct model *m, struct step *s, bool *ret_done, struct error *err)
{
    struct error why = {0};
    struct step_graph *g;
    bool is_new;
    enum status status;

    *ret_done = false;
    if (!can_launch(m))
        return STATUS_OK;
    g = find_graph(m, s, &is_new);
    if (is_new)
        return STATUS_OK;
    status = compute_check_labels(s->labels, s->batch * m->positions, model_classes(m), err);
    if (status != STATUS_OK)
        return status;
    status = g->graph ? launch_graph(m, g, s, &why) : STATUS_UNAVAILABLE;
    if (status == STATUS_UNAVAILABLE) {
        discard_graph(m, g);
        if (capture_step(m, g, s, &m->graph_failure) != STATUS_OK)
            return STATUS_OK; /* model_graph_failure returns the reason */
        status = launch_graph(m, g, s, &why);
    }
    if (status != STATUS_OK)
        return error_set(err, status, "a step as one launch: %s", why.text);
    m->graph_launches++;
    m->update.applied = g->includes_update;
    step_mark_used(m, s->accumulate);
    *ret_done = true;
    return STATUS_OK;
}

/* ---- public ---- */

void model_plan_update(struct model *m, double learning_rate, uint64_t step)
{
    m->update = (struct planned_update){
        .planned = m->optimizer && m->path == GRADIENTS_STAY, /* otherwise the mean of all ranks
                                                                 comes first */
        .learning_rate = learning_rate,
        .step = step};
}

void model_use_graphs(struct model *m, bool use)
{
    m->graphs_disabled = !use;
}

uint64_t model_graph_launches(const struct model *m)
{
    return m->graph_launches;
}

const char *model_graph_failure(const struct model *m)
{
    return m->graph_failure.text[0] ? m->graph_failure.text : NULL;
}
