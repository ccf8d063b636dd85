/*
 * optimizer: SGD, Adam and AdamW as PyTorch defines them, on ranges of a flat slab.
 *
 *   SGD    g += wd p;  buf = first step ? g : mom buf + (1 - damp) g;  g = nesterov ? g + mom buf :
 * buf; p -= lr g                                                   (without momentum: plain g)
 *   AdamW  p *= 1 - lr wd;  m = lerp(m, g, 1 - b1);  v = b2 v + (1 - b2) g g;
 *          p -= lr / (1 - b1^t) m / (sqrt(v) / sqrt(1 - b2^t) + eps)
 *   Adam   as AdamW, with g += wd p instead of the scaling of p
 *
 * Scalars are computed in double and rounded to float once; elements are float32.  An update writes
 * only its range, so threads may update disjoint ranges of one optimizer at the same time.
 */
#include "common/optimizer/optimizer.h"

#include "common/base/memory.h"
#include "common/optimizer/optimizer_kernels.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {
    [OPTIMIZER_SGD] = "sgd", [OPTIMIZER_ADAM] = "adam", [OPTIMIZER_ADAMW] = "adamw"};

struct optimizer_config optimizer_defaults(enum optimizer_kind kind)
{
    if (kind == OPTIMIZER_SGD)
        return (struct optimizer_config){.kind = kind, .learning_rate = 1e-3};
    return (struct optimizer_config){.kind = kind,
                                     .learning_rate = 1e-3,
                                     .weight_decay = kind == OPTIMIZER_ADAMW ? 1e-2 : 0.0,
                                     .beta1 = 0.9,
                                     .beta2 = 0.999,
                                     .epsilon = 1e-8};
}

const char *optimizer_name(enum optimizer_kind kind)
{
    return names[kind];
}

bool optimizer_parse(const char *name, enum optimizer_kind *ret)
{
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(name, names[i]) == 0) {
            *ret = (enum optimizer_kind)i;
            return true;
        }
    }
    return false;
}

const char *optimizer_state_name(enum optimizer_kind kind, unsigned index)
{
    return kind == OPTIMIZER_SGD ? "momentum_buffer" : index == 0 ? "exp_avg" : "exp_avg_sq";
}

/* A value that is finite (not a NaN either) and not negative. */
static enum status check_rate(const char *what, double value, struct error *err)
{
    if (isfinite(value) && value >= 0.0)
        return STATUS_OK;
    return error_set(err, STATUS_INVALID, "invalid %s %g: it must be a number >= 0", what, value);
}

static enum status check_beta(const char *what, double value, struct error *err)
{
    if (value >= 0.0 && value < 1.0)
        return STATUS_OK;
    return error_set(err, STATUS_INVALID, "invalid %s %g: it must be in [0, 1)", what, value);
}

static enum status check_sgd(const struct optimizer_config *c, struct error *err)
{
    enum status status = check_rate("momentum", c->momentum, err);

    if (status != STATUS_OK)
        return status;
    if (!isfinite(c->dampening))
        return error_set(err, STATUS_INVALID, "invalid dampening %g", c->dampening);
    if (c->nesterov && (c->momentum <= 0.0 || c->dampening != 0.0))
        return error_set(err, STATUS_INVALID,
                         "nesterov needs a momentum > 0 and a dampening of 0 (momentum %g, "
                         "dampening %g)",
                         c->momentum, c->dampening);
    return STATUS_OK;
}

static enum status check_adam(const struct optimizer_config *c, struct error *err)
{
    enum status status = check_beta("beta1", c->beta1, err);

    if (status == STATUS_OK)
        status = check_beta("beta2", c->beta2, err);
    if (status == STATUS_OK)
        status = check_rate("epsilon", c->epsilon, err);
    return status;
}

static enum status check_config(const struct optimizer_config *c, struct error *err)
{
    enum status status = check_rate("learning rate", c->learning_rate, err);

    if ((size_t)c->kind >= sizeof(names) / sizeof(names[0]))
        return error_set(err, STATUS_INVALID, "unknown optimizer %d", (int)c->kind);
    if (status == STATUS_OK)
        status = check_rate("weight decay", c->weight_decay, err);
    if (status != STATUS_OK)
        return status;
    return c->kind == OPTIMIZER_SGD ? check_sgd(c, err) : check_adam(c, err);
}

static unsigned state_count(const struct optimizer_config *c)
{
    if (c->kind == OPTIMIZER_SGD)
        return c->momentum != 0.0 ? 1 : 0;
    return 2;
}

enum status optimizer_init(struct optimizer *o, const struct optimizer_config *config, size_t count,
                           struct error *err)
{
    enum status status = check_config(config, err);

    *o = (struct optimizer){.config = *config, .count = count};
    if (status != STATUS_OK)
        return status;
    o->states = state_count(config);
    for (unsigned s = 0; s < o->states && status == STATUS_OK; s++)
        status = mem_calloc_aligned(count, sizeof(float), "optimizer state", &o->state[s], err);
    if (status != STATUS_OK)
        optimizer_release(o);
    return status;
}

void optimizer_release(struct optimizer *o)
{
    if (!o)
        return;
    free(o->state[0]);
    free(o->state[1]);
    *o = (struct optimizer){0};
}

static const struct optimizer_kernels *kernels(void)
{
    static const struct optimizer_kernels *const tables[SIMD_LEVELS] =
        SIMD_TABLES(optimizer_kernels);

    return tables[simd_level()];
}

static void update_sgd(struct optimizer *o, double learning_rate, uint64_t step, size_t offset,
                       size_t count, float *param, const float *grad)
{
    struct sgd_terms terms = optimizer_sgd_terms(&o->config, learning_rate, step);

    if (o->states == 0)
        kernels()->sgd(&terms, param, grad, count);
    else
        kernels()->sgd_momentum(&terms, param, grad, o->state[0] + offset, count);
}

static void update_adam(struct optimizer *o, double learning_rate, uint64_t step, size_t offset,
                        size_t count, float *param, const float *grad)
{
    struct adam_terms terms = optimizer_adam_terms(&o->config, learning_rate, step);

    kernels()->adam(&terms, param, grad, o->state[0] + offset, o->state[1] + offset, count);
}

void optimizer_update_at(struct optimizer *o, double learning_rate, uint64_t step, size_t offset,
                         size_t count, float *param, const float *grad)
{
    assert(step > 0 && offset <= o->count && count <= o->count - offset);
    if (o->config.kind == OPTIMIZER_SGD)
        update_sgd(o, learning_rate, step, offset, count, param, grad);
    else
        update_adam(o, learning_rate, step, offset, count, param, grad);
}

void optimizer_update(struct optimizer *o, uint64_t step, size_t offset, size_t count, float *param,
                      const float *grad)
{
    optimizer_update_at(o, o->config.learning_rate, step, offset, count, param, grad);
}
