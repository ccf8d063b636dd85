/*
 * Memory and transfers.  Downloads use a second stream, each ordered by an event of the first, so
 * that a layer's gradient is transferred while earlier layers compute; a ring of event pairs keeps
 * their order.  In 16-bit precisions, values are converted on the device.  Allocated bytes are
 * counted here, because the driver only reports the total of all processes on the device.
 */
#include "worker/compute/cuda/cuda_internal.h"

struct cuda_block {
    void *memory;
    size_t bytes;
    struct cuda_block *next;
};

static enum status track_block(struct cuda *cuda, void *memory, size_t bytes, struct error *err)
{
    struct cuda_block *block = static_cast<struct cuda_block *>(malloc(sizeof(*block)));

    if (!block)
        return error_set(err, STATUS_NO_MEMORY, "GPU memory's table: cannot allocate %zu bytes",
                         sizeof(*block));
    *block = {memory, bytes, cuda->blocks};
    cuda->blocks = block;
    cuda->used_bytes += bytes;
    if (cuda->used_bytes > cuda->peak_bytes)
        cuda->peak_bytes = cuda->used_bytes;
    return STATUS_OK;
}

static void untrack_block(struct cuda *cuda, const void *memory)
{
    for (struct cuda_block **at = &cuda->blocks; *at; at = &(*at)->next) {
        struct cuda_block *block = *at;

        if (block->memory != memory)
            continue;
        cuda->used_bytes -= block->bytes;
        *at = block->next;
        free(block);
        return;
    }
}

void cuda_blocks_release(struct cuda *cuda)
{
    while (cuda->blocks) {
        struct cuda_block *block = cuda->blocks;

        cuda->blocks = block->next;
        free(block);
    }
}

uint64_t cuda_peak_bytes(const struct compute *c)
{
    return reinterpret_cast<const struct cuda *>(c)->peak_bytes;
}

struct compute_traffic cuda_traffic(const struct compute *c)
{
    return reinterpret_cast<const struct cuda *>(c)->traffic;
}

static enum status alloc_bytes(struct cuda *cuda, size_t count, size_t size, const char *what,
                               void **ret, struct error *err)
{
    void *memory = NULL;
    size_t available = 0;
    size_t total = 0;
    enum status status;

    if (count > SIZE_MAX / 2 / size)
        return error_set(err, STATUS_NO_MEMORY, "%s: %zu elements of GPU memory overflow", what,
                         count);
    status = status_from_cuda(cudaMalloc(&memory, count * size + size), "cudaMalloc", err);
    if (status != STATUS_OK) {
        (void)cudaGetLastError(); /* clear the error, so that it does not fail the next call */
        (void)cudaMemGetInfo(&available, &total);
        return err ? error_prefix(err, "%s: %zu bytes of GPU memory, %zu of %zu are free: ", what,
                                  count * size, available, total)
                   : status;
    }
    status = status_from_cuda(cudaMemsetAsync(memory, 0, count * size, cuda->work),
                              "cudaMemsetAsync", err);
    if (status == STATUS_OK)
        status = track_block(cuda, memory, count * size + size, err);
    if (status != STATUS_OK) {
        (void)cudaFree(memory);
        return status;
    }
    *ret = memory;
    return STATUS_OK;
}

enum status cuda_reserve(struct cuda *cuda, struct cuda_scratch *s, size_t bytes, const char *what,
                         struct error *err)
{
    enum status status;

    if (bytes <= s->bytes)
        return STATUS_OK;
    if (cuda->capturing)
        return error_set(err, STATUS_UNAVAILABLE,
                         "%s would need %zu bytes while a step is captured", what, bytes);
    cuda->memory_generation++;
    cuda_free(&cuda->base, s->memory); /* cudaFree waits for the kernels that use it */
    *s = {};
    status = alloc_bytes(cuda, bytes, 1, what, &s->memory, err);
    if (status == STATUS_OK)
        s->bytes = bytes;
    return status;
}

enum status cuda_alloc(struct compute *c, size_t count, const char *what, float **ret,
                       struct error *err)
{
    void *memory = NULL;
    enum status status = alloc_bytes(cuda_of(c), count, sizeof(float), what, &memory, err);

    if (status == STATUS_OK)
        *ret = static_cast<float *>(memory);
    return status;
}

enum status cuda_alloc_values(struct compute *c, size_t count, const char *what, void **ret,
                              struct error *err)
{
    return alloc_bytes(cuda_of(c), count, cuda_of(c)->value_size, what, ret, err);
}

void cuda_free(struct compute *c, void *memory)
{
    untrack_block(cuda_of(c), memory);
    (void)cudaFree(memory); /* may return an earlier kernel's failure, which has been reported */
}

enum status cuda_alloc_host(struct compute *c, size_t count, float **ret, struct error *err)
{
    void *memory = NULL;
    enum status status;

    (void)cuda_of(c); /* sets the current device; otherwise CUDA would allocate on the first one */
    if (count > SIZE_MAX / sizeof(float) - 1)
        return error_set(err, STATUS_NO_MEMORY, "%zu elements of host memory overflow", count);
    status = status_from_cuda(cudaMallocHost(&memory, count * sizeof(float) + sizeof(float)),
                              "cudaMallocHost", err);
    if (status != STATUS_OK) {
        (void)cudaGetLastError();
        return err ? error_prefix(err, "%zu bytes of page-locked memory: ", count * sizeof(float))
                   : status;
    }
    *ret = static_cast<float *>(memory);
    for (size_t i = 0; i < count; i++)
        (*ret)[i] = 0.0f;
    return STATUS_OK;
}

void cuda_free_host(struct compute *c, float *memory)
{
    (void)c;
    (void)cudaFreeHost(memory);
}

enum status cuda_upload(struct compute *c, float *device, const float *host, size_t count,
                        struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    const float *prefetched = NULL;
    enum status status = cuda_upload_ahead_find(cuda, host, count, &prefetched, err);

    if (status == STATUS_OK)
        status = status_from_cuda(
            cudaMemcpyAsync(device, prefetched ? prefetched : host, count * sizeof(float),
                            prefetched ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice,
                            cuda->work),
            "cudaMemcpyAsync to the GPU", err);
    if (status == STATUS_OK && prefetched)
        status = cuda_upload_ahead_consumed(cuda, err);
    else if (status == STATUS_OK)
        cuda->traffic.up_bytes += count * sizeof(float);
    return status == STATUS_OK ? cuda_param_copy_refresh(cuda, device, count, err) : status;
}

enum status cuda_copy(struct compute *c, float *to, const float *from, size_t count,
                      struct error *err)
{
    return status_from_cuda(cudaMemcpyAsync(to, from, count * sizeof(float),
                                            cudaMemcpyDeviceToDevice, cuda_of(c)->work),
                            "cudaMemcpyAsync on the GPU", err);
}

enum status cuda_download_start(struct compute *c, float *host, const float *device, size_t count,
                                struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    struct download *d = &cuda->downloads[cuda->started % COMPUTE_DOWNLOADS_MAX];
    enum status status;

    if (cuda->started - cuda->waited == COMPUTE_DOWNLOADS_MAX)
        return error_set(err, STATUS_INTERNAL, "more than %d downloads under way",
                         COMPUTE_DOWNLOADS_MAX);
    status = status_from_cuda(cudaEventRecord(d->source_ready, cuda->work), "cudaEventRecord", err);
    if (status == STATUS_OK)
        status = status_from_cuda(cudaStreamWaitEvent(cuda->copies, d->source_ready, 0),
                                  "cudaStreamWaitEvent", err);
    if (status == STATUS_OK)
        status = status_from_cuda(cudaMemcpyAsync(host, device, count * sizeof(float),
                                                  cudaMemcpyDeviceToHost, cuda->copies),
                                  "cudaMemcpyAsync to the host", err);
    if (status == STATUS_OK)
        status =
            status_from_cuda(cudaEventRecord(d->arrived, cuda->copies), "cudaEventRecord", err);
    if (status != STATUS_OK)
        return status;
    cuda->started++;
    cuda->traffic.down_bytes += count * sizeof(float);
    return STATUS_OK;
}

enum status cuda_download_wait(struct compute *c, struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    struct download *d = &cuda->downloads[cuda->waited % COMPUTE_DOWNLOADS_MAX];

    if (cuda->waited == cuda->started)
        return error_set(err, STATUS_INTERNAL, "no download is under way");
    cuda->waited++;
    return status_from_cuda(cudaEventSynchronize(d->arrived), "waiting for a download", err);
}

enum status cuda_stage_upload(struct cuda *cuda, const float *host, size_t count, const float **ret,
                              struct error *err)
{
    float *staged;
    enum status status = cuda_upload_ahead_find(cuda, host, count, ret, err);

    if (status != STATUS_OK || *ret)
        return status;
    status = cuda_reserve(cuda, &cuda->staged, count * sizeof(float), "staged values", err);
    staged = static_cast<float *>(cuda->staged.memory);
    if (status == STATUS_OK)
        status = cuda_upload(&cuda->base, staged, host, count, err);
    if (status == STATUS_OK)
        *ret = staged;
    return status;
}

enum status cuda_upload_values(struct compute *c, void *device, const float *host, size_t count,
                               struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    const float *floats = NULL;
    enum status status;

    if (cuda->type == CUDA_R_32F)
        return cuda_upload(c, static_cast<float *>(device), host, count, err);
    status = cuda_stage_upload(cuda, host, count, &floats, err);
    if (status == STATUS_OK)
        status = cuda_from_float(cuda, floats, device, count, err);
    return status == STATUS_OK ? cuda_upload_ahead_consumed(cuda, err) : status;
}

enum status cuda_download_values(struct compute *c, float *host, const void *device, size_t count,
                                 struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    const float *from = static_cast<const float *>(device);
    enum status status = STATUS_OK;

    if (cuda->type != CUDA_R_32F) {
        status = cuda_reserve(cuda, &cuda->staged, count * sizeof(float), "staged values", err);
        if (status == STATUS_OK)
            status =
                cuda_to_float(cuda, device, static_cast<float *>(cuda->staged.memory), count, err);
        from = static_cast<const float *>(cuda->staged.memory);
    }
    if (status == STATUS_OK)
        status = cuda_download_start(c, host, from, count, err);
    return status == STATUS_OK ? cuda_download_wait(c, err) : status;
}

enum status cuda_synchronize(struct compute *c, struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    enum status status =
        status_from_cuda(cudaStreamSynchronize(cuda->work), "cudaStreamSynchronize", err);

    if (status == STATUS_OK)
        status =
            status_from_cuda(cudaStreamSynchronize(cuda->copies), "cudaStreamSynchronize", err);
    if (status == STATUS_OK)
        status = status_from_cuda(cudaStreamSynchronize(cuda->upload_ahead.stream),
                                  "cudaStreamSynchronize", err);
    return status;
}
