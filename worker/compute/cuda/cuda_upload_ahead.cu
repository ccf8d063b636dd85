/*
 * cuda_upload_ahead: upload of the next batch concurrently with the computation.  A separate stream
 * copies it into its own memory, from which the work stream later copies or converts it to the
 * input's address, so that operations and captured graphs find their input at a fixed address.  Two
 * events order the two streams; the host does not wait.
 */
#include "worker/compute/cuda/cuda_internal.h"

enum status cuda_upload_ahead_open(struct cuda *cuda, struct error *err)
{
    struct cuda_upload_ahead_state *a = &cuda->upload_ahead;
    enum status status = status_from_cuda(
        cudaStreamCreateWithFlags(&a->stream, cudaStreamNonBlocking), "cudaStreamCreate", err);

    if (status == STATUS_OK)
        status = status_from_cuda(cudaEventCreateWithFlags(&a->arrived, cudaEventDisableTiming),
                                  "cudaEventCreate", err);
    if (status == STATUS_OK)
        status = status_from_cuda(cudaEventCreateWithFlags(&a->consumed, cudaEventDisableTiming),
                                  "cudaEventCreate", err);
    if (status == STATUS_OK)
        status = status_from_cuda(cudaEventCreateWithFlags(&a->wait_begin, cudaEventDefault),
                                  "cudaEventCreate", err);
    if (status == STATUS_OK)
        status = status_from_cuda(cudaEventCreateWithFlags(&a->wait_end, cudaEventDefault),
                                  "cudaEventCreate", err);
    return status;
}

void cuda_upload_ahead_close(struct cuda *cuda)
{
    struct cuda_upload_ahead_state *a = &cuda->upload_ahead;

    if (a->stream) {
        (void)cudaStreamSynchronize(a->stream);
        (void)cudaStreamDestroy(a->stream);
    }
    if (a->arrived)
        (void)cudaEventDestroy(a->arrived);
    if (a->consumed)
        (void)cudaEventDestroy(a->consumed);
    if (a->wait_begin)
        (void)cudaEventDestroy(a->wait_begin);
    if (a->wait_end)
        (void)cudaEventDestroy(a->wait_end);
    (void)cudaFree(a->memory.memory);
    *a = {};
}

/* The work stream clears new memory after its pending work: the upload must wait for that. */
static enum status reserve_upload_memory(struct cuda *cuda, size_t bytes, struct error *err)
{
    struct cuda_upload_ahead_state *a = &cuda->upload_ahead;
    enum status status;

    if (bytes <= a->memory.bytes)
        return STATUS_OK;
    status = cuda_upload_ahead_cancel(&cuda->base, err);
    if (status == STATUS_OK)
        status = cuda_reserve(cuda, &a->memory, bytes, "the next batch", err);
    return status == STATUS_OK ? cuda_upload_ahead_consumed(cuda, err) : status;
}

enum status cuda_upload_ahead(struct compute *c, const float *host, size_t count, struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    struct cuda_upload_ahead_state *a = &cuda->upload_ahead;
    enum status status = reserve_upload_memory(cuda, count * sizeof(float), err);

    a->host = NULL;
    if (status == STATUS_OK)
        status = status_from_cuda(cudaStreamWaitEvent(a->stream, a->consumed, 0),
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

enum status cuda_upload_ahead_cancel(struct compute *c, struct error *err)
{
    struct cuda *cuda = cuda_of(c);

    cuda->upload_ahead.host = NULL;
    return status_from_cuda(cudaStreamSynchronize(cuda->upload_ahead.stream),
                            "cudaStreamSynchronize", err);
}

enum status cuda_upload_ahead_find(struct cuda *cuda, const float *host, size_t count,
                                   const float **ret, struct error *err)
{
    struct cuda_upload_ahead_state *a = &cuda->upload_ahead;
    enum status status;

    *ret = NULL;
    if (!a->host || a->host != host || a->count != count || cuda->capturing)
        return STATUS_OK;
    a->host = NULL;
    status = status_from_cuda(cudaEventRecord(a->wait_begin, cuda->work), "cudaEventRecord", err);
    if (status == STATUS_OK)
        status = status_from_cuda(cudaStreamWaitEvent(cuda->work, a->arrived, 0),
                                  "cudaStreamWaitEvent", err);
    if (status == STATUS_OK)
        status = status_from_cuda(cudaEventRecord(a->wait_end, cuda->work), "cudaEventRecord", err);
    a->timed = status == STATUS_OK;
    if (status == STATUS_OK)
        *ret = static_cast<const float *>(a->memory.memory);
    return status;
}

enum status cuda_upload_ahead_consumed(struct cuda *cuda, struct error *err)
{
    return status_from_cuda(cudaEventRecord(cuda->upload_ahead.consumed, cuda->work),
                            "cudaEventRecord", err);
}

int64_t cuda_upload_ahead_wait_ns(struct compute *c)
{
    struct cuda *cuda = cuda_of(c);
    struct cuda_upload_ahead_state *a = &cuda->upload_ahead;
    float ms = 0.0f;

    if (!a->timed)
        return 0;
    a->timed = false;
    if (cudaEventElapsedTime(&ms, a->wait_begin, a->wait_end) != cudaSuccess) {
        (void)cudaGetLastError(); /* clear the error, so that it does not fail the next call */
        return 0;
    }
    return (int64_t)((double)ms * 1e6);
}
