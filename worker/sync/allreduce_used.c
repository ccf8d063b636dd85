/*
 * Parameters without a gradient in a step.  Their range of the slab is zero and is reduced with its
 * bucket, so all ranks run the same operations; one more all-reduce counts, per parameter, the
 * ranks that used it.  Used on any rank: it has the mean.  Used on none: it has no gradient, and
 * the optimizer skips it.  With a static graph the first step's result holds for all steps. Runs on
 * the training thread, after finish.
 *
 * Source: c10d's reducer, local_used_map and mark_variable_ready_dense.  Differs from PyTorch: a
 * parameter that was not used, without find_unused_parameters, is an error in the same step, with
 * its name; PyTorch detects it in the next forward and gives its index.
 */
#include "worker/sync/allreduce.h"

#include <inttypes.h>
#include <string.h>

static enum status view_error(const struct sync_allreduce *s, size_t view, const char *why,
                              struct error *err)
{
    return error_set(err, STATUS_INVALID, "step %" PRIu64 ": parameter '%s' %s", s->step,
                     s->table->views[view].name, why);
}

/* Sum the ranks' flags for every view into used_map. */
static enum status count_users(struct sync_allreduce *s, const bool *used, struct error *err)
{
    struct collective_args args = {
        .call = COLLECTIVE_ALL_REDUCE,
        .dtype = DTYPE_INT32,
        .op = REDUCE_SUM,
        .input = s->used_map,
        .output = s->used_map,
        .count = s->table->length,
        .step = s->step,
    };
    enum status status;

    for (size_t i = 0; i < s->table->length; i++)
        s->used_map[i] = used[i];
    status = collective_run(s->group, &args, err);
    return status == STATUS_OK || !err ? status : error_prefix(err, "used parameters: ");
}

static enum status check_static(const struct sync_allreduce *s, const bool *used, struct error *err)
{
    for (size_t i = 0; i < s->table->length; i++)
        if (used[i] != s->used_first[i])
            return view_error(s, i,
                              used[i] ? "has a gradient, but had none in the first step "
                                        "(--static-graph)"
                                      : "has no gradient, but had one in the first step "
                                        "(--static-graph)",
                              err);
    return STATUS_OK;
}

enum status allreduce_agree_used(struct sync *base, bool *used, struct error *err)
{
    struct sync_allreduce *s = (struct sync_allreduce *)base;
    size_t views = s->table->length;
    bool find = s->config.find_unused_parameters || s->config.static_graph;
    bool is_shadow = true; /* of the others' step: it uses nothing */
    enum status status = STATUS_OK;

    for (size_t i = 0; i < views; i++)
        is_shadow = is_shadow && !used[i];
    for (size_t i = 0; i < views && !find; i++)
        if (!used[i])
            return view_error(s, i, "has no gradient (--find-unused-parameters allows it)", err);
    if (!find)
        return STATUS_OK;
    if (s->has_used_first && !is_shadow) {
        status = check_static(s, used, err);
    } else if (s->config.static_graph && !is_shadow) {
        memcpy(s->used_first, used, views * sizeof(*used));
        s->has_used_first = true;
    }
    if (status == STATUS_OK && !(s->config.static_graph && s->used_known)) {
        status = count_users(s, used, err);
        for (size_t i = 0; i < views; i++)
            s->used_anywhere[i] = s->used_map[i] > 0;
        s->used_known = true;
    }
    if (status == STATUS_OK)
        memcpy(used, s->used_anywhere, views * sizeof(*used));
    return status;
}
