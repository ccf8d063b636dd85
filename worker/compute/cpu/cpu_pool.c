/*
 * Pooling on the CPU, one plane (a channel of an image) at a time.  Backward of max pooling
 * scatters by the saved indices; overlapping windows add.
 */
#include "worker/compute/cpu/cpu.h"

#include <string.h>

enum status cpu_max_pool_forward(struct compute *c, const struct pool *p, const void *x,
                                 int32_t *argmax, void *y, size_t batch, struct error *err)
{
    const struct cpu *cpu = (const struct cpu *)c;
    size_t windows = compute_windows(p->height, p->kernel, p->stride, p->padding) *
                     compute_windows(p->width, p->kernel, p->stride, p->padding);
    const float *in = x;
    float *out = y;

    (void)err;
    PARALLEL_LOOP(batch * p->channels * p->height * p->width)
    for (size_t plane = 0; plane < batch * p->channels; plane++)
        cpu->images->max_pool(p, in + plane * p->height * p->width, argmax + plane * windows,
                              out + plane * windows);
    return STATUS_OK;
}

enum status cpu_max_pool_backward(struct compute *c, const struct pool *p, const int32_t *argmax,
                                  const void *dy, void *dx, size_t batch, bool accumulate,
                                  struct error *err)
{
    size_t windows = compute_windows(p->height, p->kernel, p->stride, p->padding) *
                     compute_windows(p->width, p->kernel, p->stride, p->padding);
    size_t points = p->height * p->width;
    const struct cpu *cpu = (const struct cpu *)c;

    (void)err;
    PARALLEL_LOOP(batch * p->channels * points)
    for (size_t plane = 0; plane < batch * p->channels; plane++) {
        const float *gradient = (const float *)dy + plane * windows;
        float *out = (float *)dx + plane * points;

        if (!accumulate)
            memset(out, 0, points * sizeof(*out));
        for (size_t i = 0; i < windows; i++)
            out[argmax[plane * windows + i]] += gradient[i];
    }
    return STATUS_OK;
}

enum status cpu_mean_forward(struct compute *c, const void *x, void *y, size_t batch,
                             size_t channels, size_t inner, struct error *err)
{
    const struct image_kernels *kernels = ((const struct cpu *)c)->images;
    const float *in = x;
    float *out = y;

    (void)err;
    for (size_t i = 0; i < batch * channels; i++)
        out[i] = (float)(kernels->sum(in + i * inner, inner) / (double)inner);
    return STATUS_OK;
}

enum status cpu_mean_backward(struct compute *c, const void *dy, void *dx, size_t batch,
                              size_t channels, size_t inner, bool accumulate, struct error *err)
{
    const float *in = dy;
    float *out = dx;

    (void)c;
    (void)err;
    for (size_t i = 0; i < batch * channels; i++, out += inner) {
        float share = in[i] / (float)inner;

        for (size_t j = 0; j < inner; j++)
            out[j] = accumulate ? out[j] + share : share;
    }
    return STATUS_OK;
}
