/*
 * Linear layers: one product each, with bias, activation and residual in its epilogue if cuBLASLt
 * supports it for the shape, else in a pass over the result. cuBLASLt adds C (our residual) before
 * the activation, we add it after, so only a layer without activation uses C. cuBLASLt's ReLU is a
 * maximum with zero, which may hide a NaN; ours propagates NaN, so that the loss shows it, and is
 * such a pass, with the bias.  Backward computes a bias's gradient in the weight's product (BGRADB;
 * it replaces, and alpha does not scale it) and GELU's derivative in the input's product (DGELU).
 * ReLU has none: DRELU reads its own bit mask instead of the output that we save.
 */
#include "worker/compute/cuda/cuda_internal.h"

size_t cuda_row_stride(const struct compute *c, size_t width)
{
    size_t each = 16 / reinterpret_cast<const struct cuda *>(c)->value_size;

    return (width + each - 1) / each * each;
}

static uint32_t epilogue_of(const struct linear *l)
{
    if (l->activation == ACTIVATION_GELU)
        return l->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    return l->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

/* *ret_done false: cuBLASLt does not support it, and nothing is written. */
static enum status forward_fused(struct cuda *cuda, const struct linear *l, struct product p,
                                 const void *residual, void *pre, bool *ret_done, struct error *err)
{
    enum status status = STATUS_OK;

    if (l->activation == ACTIVATION_RELU || (residual && l->activation != ACTIVATION_NONE))
        return STATUS_OK;
    if (l->activation == ACTIVATION_GELU && (!pre || l->out % 8 != 0))
        return STATUS_OK; /* cuBLASLt requires this of aux */
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
    p.d_stride = linear_stride(l);
    p.d_type = cuda->type;
    p.alpha = 1.0f;
    p.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    status = cuda_parameter(cuda, l->weight, l->out * l->in, 0, &p.b, err);
    if (status == STATUS_OK)
        status = forward_fused(cuda, l, p, residual, pre, &done, err);
    if (status != STATUS_OK || done)
        return status;
    status = cuda_product(cuda, &p, NULL, err);
    return status == STATUS_OK ? cuda_linear_epilogue(cuda, l, residual, pre, y, rows, err)
                               : status;
}

/* The weight's gradient with the bias's in its epilogue. *ret_done false: not supported. */
static enum status backward_weight_fused(struct cuda *cuda, const struct linear *l,
                                         struct product p, bool accumulate, bool *ret_done,
                                         struct error *err)
{
    if (!l->dbias || accumulate || p.alpha != 1.0f)
        return STATUS_OK;
    p.epilogue = CUBLASLT_EPILOGUE_BGRADB; /* its B is our A, dy */
    p.bias = l->dbias;
    return cuda_product(cuda, &p, ret_done, err);
}

enum status cuda_linear_backward_weight(struct compute *c, const struct linear *l, const void *x,
                                        const void *dy, size_t rows, bool accumulate,
                                        struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    struct product p = {};
    bool done = false;
    enum status status;

    p.transpose_a = true;
    p.m = l->out;
    p.n = l->in;
    p.k = rows;
    p.a = dy;
    p.a_stride = linear_stride(l);
    p.b = x;
    p.d = l->dweight;
    p.d_type = CUDA_R_32F;
    p.alpha = cuda_unscale(cuda);
    p.beta = accumulate ? 1.0f : 0.0f;
    p.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    status = backward_weight_fused(cuda, l, p, accumulate, &done, err);
    if (status != STATUS_OK || done)
        return status;
    status = cuda_product(cuda, &p, NULL, err);
    if (status != STATUS_OK || !l->dbias)
        return status;
    return cuda_column_sums(cuda, dy, l->dbias, rows, l->out, linear_stride(l), accumulate, err);
}

/* dx times GELU's derivative. *ret_done false: not supported. */
static enum status backward_input_fused(struct cuda *cuda, const struct linear *l, struct product p,
                                        bool *ret_done, struct error *err)
{
    if (l->previous != ACTIVATION_GELU || l->in % 8 != 0)
        return STATUS_OK; /* cuBLASLt requires this of aux */
    p.epilogue = CUBLASLT_EPILOGUE_DGELU;
    p.aux = const_cast<void *>(l->previous_saved); /* read */
    return cuda_product(cuda, &p, ret_done, err);
}

enum status cuda_linear_backward_input(struct compute *c, const struct linear *l, const void *dy,
                                       void *dx, size_t rows, bool accumulate, struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    struct product p = {};
    bool done = false;
    enum status status;

    p.m = rows;
    p.n = l->in;
    p.k = l->out;
    p.a = dy;
    p.a_stride = linear_stride(l);
    p.d = dx;
    p.d_type = cuda->type;
    p.alpha = 1.0f;
    p.beta = accumulate ? 1.0f : 0.0f;
    p.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    status = cuda_parameter(cuda, l->weight, l->out * l->in, 0, &p.b, err);
    if (status == STATUS_OK)
        status = backward_input_fused(cuda, l, p, &done, err);
    if (status != STATUS_OK || done)
        return status;
    status = cuda_product(cuda, &p, NULL, err);
    if (status != STATUS_OK || l->previous == ACTIVATION_NONE)
        return status;
    return cuda_activation_backward(c, l->previous, l->previous_saved, dx, rows * l->in, err);
}
