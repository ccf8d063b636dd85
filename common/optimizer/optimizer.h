/*
 * optimizer: SGD, Adam and AdamW on ranges of a flat slab.  Worker and server use the same code, so
 * the result has the same bits wherever the optimizer runs.  Sources: torch/optim/sgd.py, adam.py,
 * adamw.py (formulas at the head of optimizer.c).
 *
 * Library.  Needs base and tensor.  Called by the worker, the parameter server's shards, manifest,
 * wire and the benchmarks.
 */
#ifndef SPARRING_COMMON_OPTIMIZER_OPTIMIZER_H
#define SPARRING_COMMON_OPTIMIZER_OPTIMIZER_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum optimizer_kind { OPTIMIZER_SGD, OPTIMIZER_ADAM, OPTIMIZER_ADAMW };

struct optimizer_config {
    enum optimizer_kind kind;
    double learning_rate;
    double momentum;  /* SGD */
    double dampening; /* SGD */
    bool nesterov;    /* SGD; needs momentum > 0 and dampening 0 */
    double weight_decay;
    double beta1, beta2, epsilon; /* Adam, AdamW */
};

struct optimizer {
    struct optimizer_config config;
    size_t count;    /* elements of the slab */
    float *state[2]; /* momentum; or first and second moment; NULL if not needed; owned */
    unsigned states;
};

/* PyTorch's defaults for the kind, including the learning rate (for SGD 1e-3, as in recent
 * versions; older ones had none). */
struct optimizer_config optimizer_defaults(enum optimizer_kind kind);

/* "sgd", "adam", "adamw". */
const char *optimizer_name(enum optimizer_kind kind);
bool optimizer_parse(const char *name, enum optimizer_kind *ret);

/* PyTorch's name of state[index]: "momentum_buffer"; "exp_avg", "exp_avg_sq". */
const char *optimizer_state_name(enum optimizer_kind kind, unsigned index);

/* STATUS_INVALID for values that PyTorch rejects (negative rates, nesterov without momentum, ...).
 */
enum status optimizer_init(struct optimizer *o, const struct optimizer_config *config, size_t count,
                           struct error *err);
void optimizer_release(struct optimizer *o);

/*
 * One update of elements [offset, offset + count) of the slab.
 *   step   1 for the first update of these elements; every range sees each step once, in order
 *   param  parameters of the range (param[0] is element `offset`), updated in place
 *   grad   mean gradient of the range, not changed; no overlap with param
 * The result does not depend on how a slab is cut into ranges.  Threads may update disjoint ranges
 * at the same time.
 */
void optimizer_update(struct optimizer *o, uint64_t step, size_t offset, size_t count, float *param,
                      const float *grad);

/* The same with this learning rate in place of the configured one. */
void optimizer_update_at(struct optimizer *o, double learning_rate, uint64_t step, size_t offset,
                         size_t count, float *param, const float *grad);

#endif
