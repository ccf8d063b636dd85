/*
 * optimizer_terms: the scalars of one update, computed in double and rounded to float once, for the
 * loops of every device (also compiled by the CUDA compiler).
 */
#ifndef SPARRING_COMMON_OPTIMIZER_OPTIMIZER_TERMS_H
#define SPARRING_COMMON_OPTIMIZER_OPTIMIZER_TERMS_H

#include "common/optimizer/optimizer.h"

#include <math.h>
#include <stdbool.h>

struct sgd_terms {
    float learning_rate;
    float weight_decay;
    float momentum;
    float undamped; /* 1 - dampening */
    bool nesterov;
    bool first; /* the buffer starts as the gradient, without dampening */
};

struct adam_terms {
    float keep;         /* factor of the parameter before the step: 1 - lr * decay for AdamW */
    float weight_decay; /* of the parameter, added to the gradient: Adam */
    float blend;        /* 1 - beta1: the gradient's share of the first moment */
    float beta2;
    float share;           /* 1 - beta2 */
    float rate;            /* lr / (1 - beta1^t) */
    float root_correction; /* sqrt(1 - beta2^t) */
    float epsilon;
};

static inline struct sgd_terms optimizer_sgd_terms(const struct optimizer_config *c,
                                                   double learning_rate, uint64_t step)
{
    struct sgd_terms t;

    t.learning_rate = (float)learning_rate;
    t.weight_decay = (float)c->weight_decay;
    t.momentum = (float)c->momentum;
    t.undamped = (float)(1.0 - c->dampening);
    t.nesterov = c->nesterov;
    t.first = step == 1;
    return t;
}

static inline struct adam_terms optimizer_adam_terms(const struct optimizer_config *c,
                                                     double learning_rate, uint64_t step)
{
    bool decoupled = c->kind == OPTIMIZER_ADAMW;
    struct adam_terms t;

    t.keep = decoupled ? (float)(1.0 - learning_rate * c->weight_decay) : 1.0f;
    t.weight_decay = decoupled ? 0.0f : (float)c->weight_decay;
    t.blend = (float)(1.0 - c->beta1);
    t.beta2 = (float)c->beta2;
    t.share = (float)(1.0 - c->beta2);
    t.rate = (float)(learning_rate / (1.0 - pow(c->beta1, (double)step)));
    t.root_correction = (float)sqrt(1.0 - pow(c->beta2, (double)step));
    t.epsilon = (float)c->epsilon;
    return t;
}

#endif
