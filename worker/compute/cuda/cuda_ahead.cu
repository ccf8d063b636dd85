/*
 * Input ahead of its use.  The next batch travels on a stream of its own while the work stream
 * computes, into memory that the work stream copies or converts from when its turn has come: then
 * operations, and graphs of them, find their input where it always is.  Two events order the two
 * streams, and nobody waits on the host.
 */
#include "worker/compute/cuda/cuda_internal.h"

enum status cuda_ahead_open(struct cuda *cuda, struct error *err)
{
    struct cuda_ahead *a = &cuda->ahead;
    enum status status = status_from_cuda(
        cudaStreamCreateWithFlags(&a->stream, cudaStreamNonBlocking), "cudaStreamCreate", err);

    if (status == STATUS_OK)
        status = status_from_cuda(cudaEventCreateWithFlags(&a->arrived, cudaEventDisableTiming),
                                  "cudaEventCreate", err);
    if (status == STATUS_OK)
        status = status_from_cuda(cudaEventCreateWithFlags(&a->taken, cudaEventDisableTiming),
                                  "cudaEventCreate", err);
    if (status == STATUS_OK)
        status = status_from_cuda(cudaEventCreateWithFlags(&a->wanted, cudaEventDefault),
                                  "cudaEventCreate", err);
    if (status == STATUS_OK)
        status = status_from_cuda(cudaEventCreateWithFlags(&a->had, cudaEventDefault),
                                  "cudaEventCreate", err);
    return status;
}

void cuda_ahead_close(struct cuda *cuda)
{
    struct cuda_ahead *a = &cuda->ahead;

    if (a->stream) {
        (void)cudaStreamSynchronize(a->stream);
        (void)cudaStreamDestroy(a->stream);
    }
    if (a->arrived)
        (void)cudaEventDestroy(a->arrived);
    if (a->taken)
        (void)cudaEventDestroy(a->taken);
    if (a->wanted)
        (void)cudaEventDestroy(a->wanted);
    if (a->had)
        (void)cudaEventDestroy(a->had);
    (void)cudaFree(a->memory.memory);
    *a = {};
}

/* New memory is cleared by the work stream, behind what that has yet to do: that comes first. */
static enum status make_room(struct cuda *cuda, size_t bytes, struct error *err)
{
    struct cuda_ahead *a = &cuda->ahead;
    enum status status;

    if (bytes <= a->memory.bytes)
        return STATUS_OK;
    status = cuda_forget_ahead(&cuda->base, err);
    if (status == STATUS_OK)
        status = cuda_reserve(cuda, &a->memory, bytes, "the next batch", err);
    return status == STATUS_OK ? cuda_ahead_taken(cuda, err) : status;
}

enum status cuda_upload_ahead(struct compute *c, const float *host, size_t count, struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    struct cuda_ahead *a = &cuda->ahead;
    enum status status = make_room(cuda, count * sizeof(float), err);

    a->host = NULL;
    if (status == STATUS_OK)
        status = status_from_cuda(cudaStreamWaitEvent(a->stream, a->taken, 0),
                                  "cudaStreamWaitEvent", err);
    if (status == STATUS_OK)
        status = status_from_cuda(cudaMemcpyAsync(a->memory.memory, host, count * sizeof(float),
                                                  cudaMemcpyHostToDevice, a->stream),
                                  "cudaMemcpyAsync of the next batch", err);
    if (status == STATUS_OK)
        status = status_from_cuda(cudaEventRecord(a->arrived, a->stream), "cudaEventRecord", err);
    if (status != STATUS_OK)
        return status;
    a->host = host;
    a->count = count;
    cuda->traffic.up_bytes += count * sizeof(float);
    return STATUS_OK;
}

enum status cuda_forget_ahead(struct compute *c, struct error *err)
{
    struct cuda *cuda = cuda_of(c);

    cuda->ahead.host = NULL;
    return status_from_cuda(cudaStreamSynchronize(cuda->ahead.stream), "cudaStreamSynchronize",
                            err);
}

enum status cuda_ahead_find(struct cuda *cuda, const float *host, size_t count, const float **ret,
                            struct error *err)
{
    struct cuda_ahead *a = &cuda->ahead;
    enum status status;

    *ret = NULL;
    if (!a->host || a->host != host || a->count != count || cuda->capturing)
        return STATUS_OK;
    a->host = NULL;
    status = status_from_cuda(cudaEventRecord(a->wanted, cuda->work), "cudaEventRecord", err);
    if (status == STATUS_OK)
        status = status_from_cuda(cudaStreamWaitEvent(cuda->work, a->arrived, 0),
                                  "cudaStreamWaitEvent", err);
    if (status == STATUS_OK)
        status = status_from_cuda(cudaEventRecord(a->had, cuda->work), "cudaEventRecord", err);
    a->timed = status == STATUS_OK;
    if (status == STATUS_OK)
        *ret = static_cast<const float *>(a->memory.memory);
    return status;
}

enum status cuda_ahead_taken(struct cuda *cuda, struct error *err)
{
    return status_from_cuda(cudaEventRecord(cuda->ahead.taken, cuda->work), "cudaEventRecord", err);
}

int64_t cuda_ahead_wait_ns(struct compute *c)
{
    struct cuda *cuda = cuda_of(c);
    struct cuda_ahead *a = &cuda->ahead;
    float ms = 0.0f;

    if (!a->timed)
        return 0;
    a->timed = false;
    if (cudaEventElapsedTime(&ms, a->wanted, a->had) != cudaSuccess) {
        (void)cudaGetLastError(); /* a figure that is missing is no reason to fail what follows */
        return 0;
    }
    return (int64_t)((double)ms * 1e6);
}
