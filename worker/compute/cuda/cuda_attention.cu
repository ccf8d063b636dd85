/*
 * Attention's operations: each call selects the kernels for its precision and head size.  Nothing
 * is kept between calls: the plan stays NULL.
 */
#include "worker/compute/cuda/cuda_attention.cuh"

#define HEAD_MAX  128u
#define BATCH_MAX 65535u /* of a grid's third dimension */

enum status cuda_attention_prepare(struct compute *c, struct attention *a, size_t max_batch,
                                   struct error *err)
{
    size_t head = a->width / a->heads;

    (void)c;
    if (head > HEAD_MAX)
        return error_set(err, STATUS_UNSUPPORTED,
                         "attention on a GPU: heads of %zu, the largest are %u wide", head,
                         HEAD_MAX);
    if (max_batch > BATCH_MAX)
        return error_set(err, STATUS_UNSUPPORTED,
                         "attention on a GPU: batches of %zu, the largest are of %u", max_batch,
                         BATCH_MAX);
    return STATUS_OK;
}

void cuda_attention_release(struct compute *c, struct attention *a)
{
    (void)c;
    (void)a; /* nothing was allocated */
}

/* at: every array of values that the call accesses. */
static struct attention_shape shape_of(const struct cuda *cuda, const struct attention *a,
                                       const void *const *at, size_t count)
{
    struct attention_shape s = {};

    s.positions = (unsigned)a->positions;
    s.width = (unsigned)a->width;
    s.head = (unsigned)(a->width / a->heads);
    s.scale = 1.0f / sqrtf((float)s.head);
    s.chunks = s.head * cuda->value_size % 16 == 0;
    for (size_t i = 0; i < count; i++)
        s.chunks = s.chunks && reinterpret_cast<uintptr_t>(at[i]) % 16 == 0;
    return s;
}

static bool is_exact(const struct cuda *cuda)
{
    return cuda->type == CUDA_R_32F && cuda->product_type == CUBLAS_COMPUTE_32F;
}

enum status cuda_attention_forward(struct compute *c, const struct attention *a, const void *qkv,
                                   float *log_sums, void *y, size_t batch, struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    const void *const values[] = {qkv, y};
    struct attention_shape s = shape_of(cuda, a, values, 2);
    struct attention_forward_call call = {qkv, log_sums, y};

    return status_from_cuda(is_exact(cuda) ? attention_exact_forward(s, batch, call, cuda->work)
                                           : attention_mma_forward(cuda, s, batch, call),
                            "attention kernel", err);
}

enum status cuda_attention_backward(struct compute *c, const struct attention *a, const void *qkv,
                                    const float *log_sums, const void *y, const void *dy,
                                    void *dqkv, size_t batch, struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    const void *const values[] = {qkv, y, dy, dqkv};
    struct attention_shape s = shape_of(cuda, a, values, 4);
    struct attention_backward_call call = {qkv, log_sums, y, dy, dqkv, nullptr};
    enum status status =
        cuda_reserve(cuda, &cuda->partials, batch * a->heads * a->positions * sizeof(float),
                     "attention's deltas", err);

    if (status != STATUS_OK)
        return status;
    call.deltas = static_cast<float *>(cuda->partials.memory);
    return status_from_cuda(is_exact(cuda) ? attention_exact_backward(s, batch, call, cuda->work)
                                           : attention_mma_backward(cuda, s, batch, call),
                            "attention's backward kernels", err);
}
