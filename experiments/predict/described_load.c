/*
 * described_load: the views of a model in the order in which backward ends with them; buckets by
 * the rule of DistributedDataParallel.
 */
#include "experiments/predict/described_load.h"

#include "common/base/memory.h"
#include "common/tensor/tensor.h"
#include "worker/model/model.h"
#include "worker/model/profile.h"

#include <stdio.h>
#include <string.h>

#define PROFILE           "profile:"
#define FORWARD_SHARE     (1.0 / 3) /* backward has two products for each of forward */
#define PIECES            256       /* of a model of which only the parameters are known */
#define WORKER_BATCH_SIZE 32        /* default of sparring-worker --batch-size */

static enum status add_buckets(const struct tensor_table *table, struct job_load *ret,
                               struct error *err)
{
    struct bucket_plan plan = {0};
    enum status status = bucket_plan_make(table, BUCKET_FIRST_BYTES, BUCKET_CAP_BYTES, &plan, err);

    if (status == STATUS_OK)
        status = mem_calloc(plan.length, sizeof(*ret->buckets), "buckets", &ret->buckets, err);
    for (size_t i = 0; i < plan.length && status == STATUS_OK; i++)
        ret->buckets[ret->bucket_count++] = (double)plan.buckets[i].count * sizeof(float);
    bucket_plan_release(&plan);
    return status;
}

static void add_ready(struct job_load *l, double bytes, double at_s)
{
    l->ready[l->cost.ready_count++] = (struct cost_ready){bytes, at_s};
}

/* A table without times: a view's backward takes its share of the bytes. */
static enum status read_table(const struct tensor_table *table, double step_s, struct job_load *ret,
                              struct error *err)
{
    const double total = (double)table->count;
    double count = 0;
    enum status status =
        mem_calloc(table->length, sizeof(*ret->ready), "gradients", &ret->ready, err);

    for (size_t i = table->length; i > 0 && status == STATUS_OK; i--) {
        count += (double)table->views[i - 1].count;
        add_ready(ret, count * sizeof(float),
                  step_s * (FORWARD_SHARE + (1 - FORWARD_SHARE) * count / total));
    }
    ret->cost.compute_s = step_s;
    ret->cost.forward_s = step_s * FORWARD_SHARE;
    return status == STATUS_OK ? add_buckets(table, ret, err) : status;
}

static enum status read_profile(const char *path, struct job_load *ret, struct error *err)
{
    struct profile profile = {0};
    double bytes = 0, at_s = 0;
    enum status status = profile_read(path, &profile, err);

    if (status == STATUS_OK)
        status = mem_calloc(profile.length, sizeof(*ret->ready), "gradients", &ret->ready, err);
    for (size_t i = 0; i < profile.length && status == STATUS_OK; i++)
        at_s += (double)profile.layers[i].forward_ns * 1e-9;
    ret->cost.forward_s = at_s;
    for (size_t i = profile.length; i > 0 && status == STATUS_OK; i--) {
        const struct profile_layer *layer = &profile.layers[i - 1];

        at_s += (double)layer->backward_ns * 1e-9;
        for (size_t k = 0; k < layer->parameters; k++)
            bytes += (double)profile.table.views[layer->first + k].count * sizeof(float);
        add_ready(ret, bytes, at_s);
    }
    ret->cost.compute_s = at_s;
    ret->batch = profile.batch;
    if (status == STATUS_OK) {
        tensor_table_layout(&profile.table);
        status = add_buckets(&profile.table, ret, err);
    }
    profile_release(&profile);
    return status;
}

static enum status make_table(double parameters, struct tensor_table *table, struct error *err)
{
    const size_t pieces = parameters < PIECES ? 1 : PIECES;
    enum status status = STATUS_OK;

    for (size_t i = 0; i < pieces && status == STATUS_OK; i++) {
        const size_t all = (size_t)parameters;
        const size_t count = all / pieces + (i == 0 ? all % pieces : 0);
        char name[32];

        (void)snprintf(name, sizeof(name), "piece%zu", i);
        status = tensor_table_add(table, name, 1, &count, err);
    }
    tensor_table_layout(table);
    return status;
}

enum status described_load_read(const char *model, double parameters, double step_s,
                                struct job_load *ret, struct error *err)
{
    const bool is_profile = strncmp(model, PROFILE, strlen(PROFILE)) == 0;
    struct tensor_table table = {0};
    enum status status;

    *ret = (struct job_load){.bucket_count = 0};
    if (parameters > 0 && parameters < 1)
        return error_set(err, STATUS_CONFIG, "--parameters: a model has at least 1");
    if ((model[0] == '\0') == (parameters <= 0))
        return error_set(err, STATUS_CONFIG,
                         parameters > 0
                             ? "--parameters stands for a model, and the experiment has '%s'"
                             : "the experiment has no model%s; --parameters N stands for one",
                         model);
    if (is_profile != (step_s <= 0))
        return error_set(err, STATUS_CONFIG,
                         is_profile ? "--step-ms: '%s' has its own times"
                                    : "how long a step of '%s' takes is not known: add --step-ms",
                         model[0] != '\0' ? model : "--parameters");
    if (is_profile)
        status = read_profile(model + strlen(PROFILE), ret, err);
    else
        status = model[0] != '\0' ? model_read_table(model, &table, err)
                                  : make_table(parameters, &table, err);
    if (status == STATUS_OK && !is_profile)
        status = read_table(&table, step_s, ret, err);
    tensor_table_release(&table);
    ret->cost.ready = ret->ready;
    ret->batch = ret->batch > 0 ? ret->batch : WORKER_BATCH_SIZE;
    return status;
}
