/*
 * compute: the front of the devices.  It reads the device's text, opens the CPU or (through the
 * module) a GPU, checks what came from outside, and forwards every call to the device's table.
 */
#include "worker/compute/compute.h"

#include "common/base/memory.h"
#include "common/base/parse.h"
#include "worker/compute/compute_ops.h"

#include <stdlib.h>
#include <string.h>

#define DEVICE_INDEX_MAX 1023

/* "cuda" -> -1, "cuda:I" -> I. */
static enum status parse_cuda(const char *device, int *ret_index, struct error *err)
{
    uint64_t index;

    if (strcmp(device, "cuda") == 0) {
        *ret_index = -1;
        return STATUS_OK;
    }
    if (strncmp(device, "cuda:", 5) == 0 && parse_uint64(device + 5, &index) &&
        index <= DEVICE_INDEX_MAX) {
        *ret_index = (int)index;
        return STATUS_OK;
    }
    return error_set(err, STATUS_INVALID,
                     "device '%s': not one of auto, cpu, cuda, cuda:I (I from 0 to %d)", device,
                     DEVICE_INDEX_MAX);
}

/* A GPU where one works, else the CPU with the reason kept as its note. */
static enum status open_any(unsigned local_rank, unsigned threads, struct compute **ret_compute,
                            struct error *err)
{
    struct error reason = {0};
    struct compute *cpu = NULL;
    enum status status;

    if (compute_cuda_open(-1, local_rank, ret_compute, &reason) == STATUS_OK)
        return STATUS_OK;
    status = compute_cpu_open(threads, &cpu, err);
    if (status == STATUS_OK)
        status = mem_strdup(reason.text, &cpu->note, err);
    if (status != STATUS_OK) {
        compute_close(cpu);
        return status;
    }
    *ret_compute = cpu;
    return STATUS_OK;
}

enum status compute_open(const char *device, unsigned local_rank, unsigned threads,
                         struct compute **ret_compute, struct error *err)
{
    int index = -1;
    enum status status;

    if (strcmp(device, "cpu") == 0)
        return compute_cpu_open(threads, ret_compute, err);
    if (strcmp(device, "auto") == 0)
        return open_any(local_rank, threads, ret_compute, err);
    status = parse_cuda(device, &index, err);
    if (status != STATUS_OK)
        return status;
    status = compute_cuda_open(index, local_rank, ret_compute, err);
    if (status != STATUS_OK)
        (void)error_prefix(err, "device '%s': ", device);
    return status;
}

void compute_close(struct compute *c)
{
    if (!c)
        return;
    free(c->note);
    c->ops->close(c);
}

const char *compute_name(const struct compute *c)
{
    return c->ops->describe(c);
}

const char *compute_note(const struct compute *c)
{
    return c->note ? c->note : "";
}

bool compute_is_host(const struct compute *c)
{
    return c->ops->is_host;
}

enum status compute_alloc(struct compute *c, size_t count, float **ret, struct error *err)
{
    return c->ops->alloc(c, count, ret, err);
}

void compute_free(struct compute *c, float *memory)
{
    if (memory)
        c->ops->free(c, memory);
}

enum status compute_alloc_host(struct compute *c, size_t count, float **ret, struct error *err)
{
    return c->ops->alloc_host(c, count, ret, err);
}

void compute_free_host(struct compute *c, float *memory)
{
    if (memory)
        c->ops->free_host(c, memory);
}

enum status compute_upload(struct compute *c, float *device, const float *host, size_t count,
                           struct error *err)
{
    return c->ops->upload(c, device, host, count, err);
}

enum status compute_download_start(struct compute *c, float *host, const float *device,
                                   size_t count, struct error *err)
{
    return c->ops->download_start(c, host, device, count, err);
}

enum status compute_download_wait(struct compute *c, struct error *err)
{
    return c->ops->download_wait(c, err);
}

enum status compute_download(struct compute *c, float *host, const float *device, size_t count,
                             struct error *err)
{
    enum status status = compute_download_start(c, host, device, count, err);

    return status == STATUS_OK ? compute_download_wait(c, err) : status;
}

enum status compute_synchronize(struct compute *c, struct error *err)
{
    return c->ops->synchronize(c, err);
}

enum status compute_linear_forward(struct compute *c, const float *x, const float *weight,
                                   const float *bias, float *y, size_t batch, size_t in, size_t out,
                                   bool relu, struct error *err)
{
    return c->ops->linear_forward(c, x, weight, bias, y, batch, in, out, relu, err);
}

enum status compute_relu_backward(struct compute *c, const float *y, float *dy, size_t count,
                                  struct error *err)
{
    return c->ops->relu_backward(c, y, dy, count, err);
}

enum status compute_linear_backward_weight(struct compute *c, const float *x, const float *dy,
                                           float *dweight, float *dbias, size_t batch, size_t in,
                                           size_t out, bool accumulate, struct error *err)
{
    return c->ops->linear_backward_weight(c, x, dy, dweight, dbias, batch, in, out, accumulate,
                                          err);
}

enum status compute_linear_backward_input(struct compute *c, const float *dy, const float *weight,
                                          float *dx, size_t batch, size_t in, size_t out,
                                          struct error *err)
{
    return c->ops->linear_backward_input(c, dy, weight, dx, batch, in, out, err);
}

static enum status check_batch_norm(const struct compute *c, struct error *err)
{
    if (c->ops->batch_norm_forward)
        return STATUS_OK;
    return error_set(err, STATUS_UNSUPPORTED, "device %s has no batch normalisation", c->ops->name);
}

enum status compute_batch_norm_forward(struct compute *c, const struct batch_norm *n, float *x,
                                       float *y, size_t batch, size_t width, bool relu,
                                       struct error *err)
{
    enum status status = check_batch_norm(c, err);

    if (status != STATUS_OK)
        return status;
    if (batch < 2)
        return error_set(err, STATUS_DATA,
                         "batch normalisation needs more than 1 sample per batch in training");
    return c->ops->batch_norm_forward(c, n, x, y, batch, width, relu, err);
}

enum status compute_batch_norm_evaluate(struct compute *c, const struct batch_norm *n,
                                        const float *x, float *y, size_t batch, size_t width,
                                        bool relu, struct error *err)
{
    enum status status = check_batch_norm(c, err);

    return status == STATUS_OK ? c->ops->batch_norm_evaluate(c, n, x, y, batch, width, relu, err)
                               : status;
}

enum status compute_batch_norm_backward(struct compute *c, const struct batch_norm *n,
                                        const float *normalised, float *dy, float *dweight,
                                        float *dbias, size_t batch, size_t width, bool accumulate,
                                        struct error *err)
{
    enum status status = check_batch_norm(c, err);

    return status == STATUS_OK ? c->ops->batch_norm_backward(c, n, normalised, dy, dweight, dbias,
                                                             batch, width, accumulate, err)
                               : status;
}

enum status compute_softmax_cross_entropy(struct compute *c, const float *logits,
                                          const int32_t *labels, float *dlogits, size_t batch,
                                          size_t classes, struct error *err)
{
    for (size_t i = 0; i < batch; i++)
        if (labels[i] < 0 || (size_t)labels[i] >= classes)
            return error_set(err, STATUS_DATA, "sample %zu of the batch: label %d, but %zu classes",
                             i, labels[i], classes);
    return c->ops->softmax_cross_entropy(c, logits, labels, dlogits, batch, classes, err);
}

enum status compute_loss_wait(struct compute *c, double *ret_loss, size_t *ret_correct,
                              struct error *err)
{
    return c->ops->loss_wait(c, ret_loss, ret_correct, err);
}
