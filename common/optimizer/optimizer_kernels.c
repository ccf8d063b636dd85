/*
 * optimizer_kernels: one pass over memory per update, compiled once per vector width.
 *
 * Every element is one chain of correctly rounded float32 operations in the order of the source: no
 * fused multiply-add, no reciprocal estimates.  So an update gives the same bits at every width and
 * however a slab is cut into ranges.  The conditions inside the loops do not change within a call;
 * the compiler turns them into separate loops or into selects.
 */
#include "common/optimizer/optimizer_kernels.h"

#include <math.h>

static void sgd(const struct sgd_terms *terms, float *param, const float *grad, size_t count)
{
    const struct sgd_terms t = *terms;

    SIMD_LOOP
    for (size_t i = 0; i < count; i++) {
        float g = t.weight_decay != 0.0f ? grad[i] + t.weight_decay * param[i] : grad[i];

        param[i] -= t.learning_rate * g;
    }
}

static void sgd_momentum(const struct sgd_terms *terms, float *param, const float *grad,
                         float *buffer, size_t count)
{
    const struct sgd_terms t = *terms;

    SIMD_LOOP
    for (size_t i = 0; i < count; i++) {
        float g = t.weight_decay != 0.0f ? grad[i] + t.weight_decay * param[i] : grad[i];
        float b = t.first ? g : t.momentum * buffer[i] + t.undamped * g;

        buffer[i] = b;
        param[i] -= t.learning_rate * (t.nesterov ? g + t.momentum * b : b);
    }
}

/* torch.lerp: the form whose error is smaller for the given weight. */
static inline float lerp(float from, float to, float weight)
{
    return weight < 0.5f ? from + weight * (to - from) : to - (to - from) * (1.0f - weight);
}

static void adam(const struct adam_terms *terms, float *param, const float *grad,
                 float *first_moment, float *second_moment, size_t count)
{
    const struct adam_terms t = *terms;

    SIMD_LOOP
    for (size_t i = 0; i < count; i++) {
        float g = t.weight_decay != 0.0f ? grad[i] + t.weight_decay * param[i] : grad[i];
        float m = lerp(first_moment[i], g, t.blend);
        float v = t.beta2 * second_moment[i] + t.share * g * g;
        float denominator = sqrtf(v) / t.root_correction + t.epsilon;

        first_moment[i] = m;
        second_moment[i] = v;
        param[i] = param[i] * t.keep - t.rate * m / denominator;
    }
}

const struct optimizer_kernels SIMD_NAME(optimizer_kernels) = {
    .sgd = sgd,
    .sgd_momentum = sgd_momentum,
    .adam = adam,
};
