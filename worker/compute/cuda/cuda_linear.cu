/*
 * Linear layers: one product each, with bias, activation and residual in its epilogue where
 * cuBLASLt has one for the shape, else in a pass over the result.  cuBLASLt adds C (our residual)
 * before the activation and we behind it, so only a layer without activation adds it there.
 */
#include "worker/compute/cuda/cuda_internal.h"

static uint32_t epilogue_of(const struct linear *l)
{
    switch (l->activation) {
    case ACTIVATION_RELU:
        return l->bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    case ACTIVATION_GELU:
        return l->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    default:
        return l->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    }
}

/* *ret_done false: cuBLASLt cannot, and nothing is written. */
static enum status forward_fused(struct cuda *cuda, const struct linear *l, struct product p,
                                 const void *residual, void *pre, bool *ret_done, struct error *err)
{
    enum status status = STATUS_OK;

    if (residual && l->activation != ACTIVATION_NONE)
        return STATUS_OK;
    if (l->activation == ACTIVATION_GELU && (!pre || l->out % 8 != 0))
        return STATUS_OK; /* its rule for the kept input */
    p.epilogue = epilogue_of(l);
    p.aux = l->activation == ACTIVATION_GELU ? pre : NULL;
    p.c = residual;
    p.beta = residual ? 1.0f : 0.0f;
    if (l->bias)
        status = cuda_parameter(cuda, l->bias, l->out, 1, &p.bias, err);
    return status == STATUS_OK ? cuda_product(cuda, &p, ret_done, err) : status;
}

enum status cuda_linear_forward(struct compute *c, const struct linear *l, const void *x,
                                const void *residual, void *pre, void *y, size_t rows,
                                struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    struct product p = {};
    bool done = false;
    enum status status;

    p.transpose_b = true;
    p.m = rows;
    p.n = l->out;
    p.k = l->in;
    p.a = x;
    p.d = y;
    p.d_type = cuda->type;
    p.alpha = 1.0f;
    p.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    status = cuda_parameter(cuda, l->weight, l->out * l->in, 0, &p.b, err);
    if (status == STATUS_OK)
        status = forward_fused(cuda, l, p, residual, pre, &done, err);
    if (status != STATUS_OK || done)
        return status;
    status = cuda_product(cuda, &p, NULL, err);
    return status == STATUS_OK ? cuda_finish_linear(cuda, l, residual, pre, y, rows, err) : status;
}

enum status cuda_linear_backward_weight(struct compute *c, const struct linear *l, const void *x,
                                        const void *dy, size_t rows, bool accumulate,
                                        struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    struct product p = {};
    enum status status;

    p.transpose_a = true;
    p.m = l->out;
    p.n = l->in;
    p.k = rows;
    p.a = dy;
    p.b = x;
    p.d = l->dweight;
    p.d_type = CUDA_R_32F;
    p.alpha = cuda_unscale(cuda);
    p.beta = accumulate ? 1.0f : 0.0f;
    p.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    status = cuda_product(cuda, &p, NULL, err);
    if (status != STATUS_OK || !l->dbias)
        return status;
    return cuda_column_sums(cuda, dy, l->dbias, rows, l->out, accumulate, err);
}

enum status cuda_linear_backward_input(struct compute *c, const struct linear *l, const void *dy,
                                       void *dx, size_t rows, bool accumulate, struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    struct product p = {};
    enum status status;

    p.m = rows;
    p.n = l->in;
    p.k = l->out;
    p.a = dy;
    p.d = dx;
    p.d_type = cuda->type;
    p.alpha = 1.0f;
    p.beta = accumulate ? 1.0f : 0.0f;
    p.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    status = cuda_parameter(cuda, l->weight, l->out * l->in, 0, &p.b, err);
    return status == STATUS_OK ? cuda_product(cuda, &p, NULL, err) : status;
}
