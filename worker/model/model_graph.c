/*
 * A step as one launch.  What step_issue calls is noted by the device once and launched from then
 * on, with the labels, and the optimizer's numbers, of each step; the input is put into its place
 * before.  Every kind of step (how many samples, whether gradients accumulate, whether the update
 * follows at once) has a graph of its own; the least recently used one makes room.  The first step
 * of a kind runs call by call: it allocates what the device needs for it.
 *
 * Noting does nothing yet, so that a device which cannot note goes on call by call.
 */
#include "worker/model/step.h"

#include <assert.h>
#include <string.h>

static bool may_launch(const struct model *m)
{
    return compute_has_graphs(m->compute) && !m->graphs_off && !m->await && m->drop <= 0 &&
           !step_downloads(m) && !m->graph_failure.text[0];
}

static void forget(struct model *m, struct step_graph *g)
{
    compute_graph_free(m->compute, g->graph);
    g->graph = NULL;
}

/* The graph of such steps, which may have to be noted yet; *ret_new: none was made so far. */
static struct step_graph *find_graph(struct model *m, const struct step *s, bool *ret_new)
{
    struct step_graph *oldest = &m->graphs[0];

    m->graph_uses++;
    *ret_new = false;
    for (size_t i = 0; i < MODEL_GRAPHS; i++) {
        struct step_graph *g = &m->graphs[i];

        if (g->batch == s->batch && g->accumulate == s->accumulate &&
            g->hands_over == (s->ready != NULL) && g->updates == m->update.planned) {
            g->used = m->graph_uses;
            return g;
        }
        if (g->used < oldest->used)
            oldest = g;
    }
    forget(m, oldest);
    *oldest = (struct step_graph){.batch = s->batch,
                                  .accumulate = s->accumulate,
                                  .hands_over = s->ready != NULL,
                                  .updates = m->update.planned,
                                  .used = m->graph_uses};
    *ret_new = true;
    return oldest;
}

static enum status note(struct model *m, struct step_graph *g, struct step *s, struct error *err)
{
    struct error why = {0};
    enum status status = compute_graph_begin(m->compute, err);
    enum status ended;

    if (status != STATUS_OK)
        return status;
    status = step_issue(m, s, err);
    if (status == STATUS_OK && g->updates)
        status = step_update(m, m->update.learning_rate, m->update.step, err);
    ended = compute_graph_end(m->compute, &g->graph, &why);
    if (status == STATUS_OK && ended != STATUS_OK)
        return error_set(err, ended, "%s", why.text);
    if (status != STATUS_OK)
        forget(m, g);
    return status;
}

static enum status launch(struct model *m, const struct step_graph *g, const struct step *s,
                          struct error *err)
{
    return compute_graph_launch(m->compute, g->graph, s->labels, s->batch * m->positions,
                                g->updates ? &m->optimizer->config : NULL, m->update.learning_rate,
                                m->update.step, err);
}

enum status step_launch(struct model *m, struct step *s, bool *ret_done, struct error *err)
{
    struct error why = {0};
    struct step_graph *g;
    bool is_new;
    enum status status;

    *ret_done = false;
    if (!may_launch(m))
        return STATUS_OK;
    g = find_graph(m, s, &is_new);
    if (is_new)
        return STATUS_OK;
    status = compute_check_labels(s->labels, s->batch * m->positions, model_classes(m), err);
    if (status != STATUS_OK)
        return status;
    status = g->graph ? launch(m, g, s, &why) : STATUS_UNAVAILABLE;
    if (status == STATUS_UNAVAILABLE) {
        forget(m, g);
        if (note(m, g, s, &m->graph_failure) != STATUS_OK)
            return STATUS_OK; /* model_graph_failure tells */
        status = launch(m, g, s, &why);
    }
    if (status != STATUS_OK)
        return error_set(err, status, "a step as one launch: %s", why.text);
    m->graph_launches++;
    m->update.made = g->updates;
    step_note_used(m, s->accumulate);
    *ret_done = true;
    return STATUS_OK;
}

/* ---- public ---- */

void model_plan_update(struct model *m, double learning_rate, uint64_t step)
{
    m->update = (struct planned_update){
        .planned = m->optimizer && m->path == GRADIENTS_STAY, /* others' gradients are to come */
        .learning_rate = learning_rate,
        .step = step};
}

void model_use_graphs(struct model *m, bool use)
{
    m->graphs_off = !use;
}

uint64_t model_graph_launches(const struct model *m)
{
    return m->graph_launches;
}

const char *model_graph_failure(const struct model *m)
{
    return m->graph_failure.text[0] ? m->graph_failure.text : NULL;
}
