/*
 * cpu: the reference device: its memory and its table.  Matrix products and convolutions use
 * oneDNN, everything else loops that are compiled once per vector width.  Threads: one caller;
 * libgomp has those that oneDNN's work is divided among.
 */
#include "worker/compute/cpu/cpu.h"

#include "common/base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THREADS_MAX 1024u

static void cpu_close(struct compute *c)
{
    struct cpu *cpu = (struct cpu *)c;

    (void)dnnl_stream_destroy(cpu->stream);
    (void)dnnl_engine_destroy(cpu->engine);
    free(cpu->scratch);
    free(cpu);
}

enum status cpu_reserve(struct cpu *cpu, size_t count, const char *what, struct error *err)
{
    float *scratch = NULL;
    enum status status;

    if (count <= cpu->scratch_count)
        return STATUS_OK;
    status = mem_calloc_aligned(count, sizeof(float), what, &scratch, err);
    if (status != STATUS_OK)
        return status;
    free(cpu->scratch);
    cpu->scratch = scratch;
    cpu->scratch_count = count;
    return STATUS_OK;
}

static const char *cpu_describe(const struct compute *c)
{
    return ((const struct cpu *)c)->text;
}

static enum status cpu_alloc(struct compute *c, size_t count, const char *what, float **ret,
                             struct error *err)
{
    (void)c;
    return mem_calloc_aligned(count, sizeof(float), what, ret, err);
}

static enum status cpu_alloc_values(struct compute *c, size_t count, const char *what, void **ret,
                                    struct error *err)
{
    float *values = NULL;
    enum status status = cpu_alloc(c, count, what, &values, err);

    if (status == STATUS_OK)
        *ret = values;
    return status;
}

static enum status cpu_alloc_host(struct compute *c, size_t count, float **ret, struct error *err)
{
    return cpu_alloc(c, count, "tensor memory", ret, err);
}

static void cpu_free(struct compute *c, void *memory)
{
    (void)c;
    free(memory);
}

static void cpu_free_host(struct compute *c, float *memory)
{
    cpu_free(c, memory);
}

static enum status cpu_copy(struct compute *c, float *to, const float *from, size_t count,
                            struct error *err)
{
    (void)c;
    (void)err;
    if (to != from)
        memcpy(to, from, count * sizeof(float));
    return STATUS_OK;
}

static enum status cpu_upload_values(struct compute *c, void *device, const float *host,
                                     size_t count, struct error *err)
{
    return cpu_copy(c, device, host, count, err);
}

static enum status cpu_download_values(struct compute *c, float *host, const void *device,
                                       size_t count, struct error *err)
{
    return cpu_copy(c, host, device, count, err);
}

static enum status cpu_wait_noop(struct compute *c, struct error *err)
{
    (void)c;
    (void)err;
    return STATUS_OK;
}

static const struct compute_ops cpu_ops = {
    .name = "cpu",
    .is_host = true,
    .close = cpu_close,
    .describe = cpu_describe,
    .alloc = cpu_alloc,
    .alloc_values = cpu_alloc_values,
    .free = cpu_free,
    .alloc_host = cpu_alloc_host,
    .free_host = cpu_free_host,
    .upload = cpu_copy,
    .copy = cpu_copy,
    .download_start = cpu_copy,
    .download_wait = cpu_wait_noop,
    .synchronize = cpu_wait_noop,
    .upload_values = cpu_upload_values,
    .download_values = cpu_download_values,
    .activation_backward = cpu_activation_backward,
    .linear_forward = cpu_linear_forward,
    .linear_backward_weight = cpu_linear_backward_weight,
    .linear_backward_input = cpu_linear_backward_input,
    .conv_prepare = cpu_conv_prepare,
    .conv_release = cpu_conv_release,
    .conv_forward = cpu_conv_forward,
    .conv_backward_weight = cpu_conv_backward_weight,
    .conv_backward_input = cpu_conv_backward_input,
    .max_pool_forward = cpu_max_pool_forward,
    .max_pool_backward = cpu_max_pool_backward,
    .mean_forward = cpu_mean_forward,
    .mean_backward = cpu_mean_backward,
    .batch_norm_forward = cpu_batch_norm_forward,
    .batch_norm_evaluate = cpu_batch_norm_evaluate,
    .batch_norm_backward = cpu_batch_norm_backward,
    .layer_norm_forward = cpu_layer_norm_forward,
    .layer_norm_backward = cpu_layer_norm_backward,
    .embedding_forward = cpu_embedding_forward,
    .embedding_backward = cpu_embedding_backward,
    .attention_prepare = cpu_attention_prepare,
    .attention_release = cpu_attention_release,
    .attention_forward = cpu_attention_forward,
    .attention_backward = cpu_attention_backward,
    .softmax_cross_entropy = cpu_softmax_cross_entropy,
    .loss_wait = cpu_loss_wait,
};

enum status compute_cpu_open(unsigned threads, struct compute **ret_compute, struct error *err)
{
    static const struct cpu_kernels *const tables[SIMD_LEVELS] = SIMD_TABLES(cpu_kernels);
    static const struct image_kernels *const image_tables[SIMD_LEVELS] = SIMD_TABLES(image_kernels);
    static const struct sequence_kernels *const sequence_tables[SIMD_LEVELS] =
        SIMD_TABLES(sequence_kernels);
    struct cpu *cpu = NULL;
    enum status status;

    if (threads == 0 || threads > THREADS_MAX)
        return error_set(err, STATUS_INVALID, "%u threads: at least 1, at most %u", threads,
                         THREADS_MAX);
    status = mem_calloc(1, sizeof(*cpu), "cpu device", &cpu, err);
    if (status != STATUS_OK)
        return status;
    cpu->base.ops = &cpu_ops;
    cpu->kernels = tables[simd_level()];
    cpu->images = image_tables[simd_level()];
    cpu->sequence = sequence_tables[simd_level()];
    cpu->threads = threads;
    if (dnnl_engine_create(&cpu->engine, dnnl_cpu, 0) != dnnl_success ||
        dnnl_stream_create(&cpu->stream, cpu->engine, dnnl_stream_default_flags) != dnnl_success) {
        cpu_close(&cpu->base);
        return error_set(err, STATUS_INTERNAL, "oneDNN does not start on this processor");
    }
    (void)snprintf(cpu->text, sizeof(cpu->text), "cpu (oneDNN %d.%d, %s, %u thread%s)",
                   dnnl_version()->major, dnnl_version()->minor, simd_level_name(simd_level()),
                   threads, threads == 1 ? "" : "s");
    *ret_compute = &cpu->base;
    return STATUS_OK;
}
