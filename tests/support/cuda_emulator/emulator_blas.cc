/*
 * emulator_blas: the part of cuBLASLt that the module uses: descriptors as arrays of attributes,
 * and products of column-major matrices by oneDNN in float32, with the epilogue in loops.  Types,
 * leading dimensions and epilogues are checked as NVIDIA's documentation states; pointers for the
 * alignment that was given to the heuristics, and those of an epilogue for 16 bytes, which cuBLASLt
 * assumes.  ReLU is the maximum of IEEE 754, which turns NaNs into zeros: the documentation
 * specifies nothing else.  CUDA_EMULATOR_NO_EPILOGUES makes every fused epilogue unsupported, to
 * test the fallback: "invalid" reports an invalid value, "late" reports it at the product only.
 */
#include "tests/support/cuda_emulator/cuda_emulator.h"

extern "C" {
#include "common/matrix/matrix.h"
}

#include <cublasLt.h>
#include <cublas_v2.h>

#include <cstdlib>
#include <vector>

struct operand {
    cudaDataType type;
    uint64_t rows, columns;
    int64_t stride;
};

static struct operand operand_of(cublasLtMatrixLayout_t layout)
{
    struct operand m;

    memcpy(&m.type, &layout->data[CUBLASLT_MATRIX_LAYOUT_TYPE], sizeof(m.type));
    m.rows = layout->data[CUBLASLT_MATRIX_LAYOUT_ROWS];
    m.columns = layout->data[CUBLASLT_MATRIX_LAYOUT_COLS];
    memcpy(&m.stride, &layout->data[CUBLASLT_MATRIX_LAYOUT_LD], sizeof(m.stride));
    return m;
}

static float load_element(const void *values, cudaDataType type, size_t i)
{
    switch (type) {
    case CUDA_R_16BF:
        return __bfloat162float(static_cast<const __nv_bfloat16 *>(values)[i]);
    case CUDA_R_16F:
        return __half2float(static_cast<const __half *>(values)[i]);
    default:
        return static_cast<const float *>(values)[i];
    }
}

static void store_element(void *values, cudaDataType type, size_t i, float value)
{
    switch (type) {
    case CUDA_R_16BF:
        static_cast<__nv_bfloat16 *>(values)[i] = __float2bfloat16(value);
        break;
    case CUDA_R_16F:
        static_cast<__half *>(values)[i] = __float2half(value);
        break;
    default:
        static_cast<float *>(values)[i] = value;
        break;
    }
}

template <typename T> static T attribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t a)
{
    T value;

    memcpy(&value, &d->data[a], sizeof(value));
    return value;
}

static std::vector<float> copy_dense(const void *values, const struct operand &m)
{
    std::vector<float> copy(m.rows * m.columns);

    for (size_t j = 0; j < m.columns; j++)
        for (size_t i = 0; i < m.rows; i++)
            copy[j * m.rows + i] = load_element(values, m.type, j * (size_t)m.stride + i);
    return copy;
}

struct product {
    cublasLtMatmulDescOpaque_t operation;
    float alpha, beta;
    const void *a, *b, *c;
    void *d;
    struct operand sizes[4]; /* A, B, C, D */
};

static float gelu(float x)
{
    return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}

static float gelu_slope(float x)
{
    float t = tanhf(0.7978845608f * (x + 0.044715f * x * x * x));

    return 0.5f * (1.0f + t) +
           0.5f * x * (1.0f - t * t) * 0.7978845608f * (1.0f + 3.0f * 0.044715f * x * x);
}

static void apply_epilogue(const struct product &p, cublasLtMatmulDesc_t op,
                           const std::vector<float> &r)
{
    unsigned epilogue = attribute<uint32_t>(op, CUBLASLT_MATMUL_DESC_EPILOGUE);
    const void *bias = attribute<const void *>(op, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
    void *aux = attribute<void *>(op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER);
    int64_t aux_stride = attribute<int64_t>(op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD);
    const struct operand &d = p.sizes[3];
    bool slope = (epilogue & CUBLASLT_EPILOGUE_DGELU) == CUBLASLT_EPILOGUE_DGELU;

    for (size_t j = 0; j < d.columns; j++) {
        for (size_t i = 0; i < d.rows; i++) {
            float value = p.alpha * r[j * d.rows + i];

            if (p.beta != 0.0f)
                value +=
                    p.beta * load_element(p.c, p.sizes[2].type, j * (size_t)p.sizes[2].stride + i);
            if (epilogue & CUBLASLT_EPILOGUE_BIAS)
                value += load_element(bias, d.type, i);
            if (slope)
                value *= gelu_slope(load_element(aux, d.type, j * (size_t)aux_stride + i));
            else if (epilogue & 128)
                store_element(aux, d.type, j * (size_t)aux_stride + i, value);
            if (epilogue & CUBLASLT_EPILOGUE_RELU)
                value = fmaxf(value, 0.0f);
            if (epilogue & CUBLASLT_EPILOGUE_GELU)
                value = gelu(value);
            store_element(p.d, d.type, j * (size_t)d.stride + i, value);
        }
    }
}

/* BGRADB: a sum per column of op(B), with the type of D, without alpha and beta. */
static void sum_columns(const struct product &p, cublasLtMatmulDesc_t op,
                        const std::vector<float> &b, size_t k, bool transposed)
{
    void *bias = attribute<void *>(op, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
    const struct operand &d = p.sizes[3];

    for (size_t j = 0; j < d.columns; j++) {
        float sum = 0.0f;

        for (size_t i = 0; i < k; i++)
            sum += b[transposed ? i * p.sizes[1].rows + j : j * p.sizes[1].rows + i];
        store_element(bias, d.type, j, sum);
    }
}

static void multiply(struct product p)
{
    cublasLtMatmulDesc_t op = &p.operation;
    bool ta = attribute<int32_t>(op, CUBLASLT_MATMUL_DESC_TRANSA) == CUBLAS_OP_T;
    bool tb = attribute<int32_t>(op, CUBLASLT_MATMUL_DESC_TRANSB) == CUBLAS_OP_T;
    const struct operand &d = p.sizes[3];
    size_t k = ta ? p.sizes[0].rows : p.sizes[0].columns;
    std::vector<float> a = copy_dense(p.a, p.sizes[0]);
    std::vector<float> b = copy_dense(p.b, p.sizes[1]);
    std::vector<float> r(d.rows * d.columns);

    /* A column-major product is the row-major one of the transposes, in the other order. */
    matrix_use_threads(1);
    if (matrix_product(d.columns, d.rows, k, {b.data(), p.sizes[1].rows, tb},
                       {a.data(), p.sizes[0].rows, ta}, false, r.data(), d.rows,
                       nullptr) != STATUS_OK)
        abort();
    if (attribute<uint32_t>(op, CUBLASLT_MATMUL_DESC_EPILOGUE) == CUBLASLT_EPILOGUE_BGRADB)
        sum_columns(p, op, b, k, tb);
    apply_epilogue(p, op, r);
}

static bool shapes_match(cublasLtMatmulDesc_t op, const struct operand *s)
{
    bool ta = attribute<int32_t>(op, CUBLASLT_MATMUL_DESC_TRANSA) == CUBLAS_OP_T;
    bool tb = attribute<int32_t>(op, CUBLASLT_MATMUL_DESC_TRANSB) == CUBLAS_OP_T;
    unsigned epilogue = attribute<uint32_t>(op, CUBLASLT_MATMUL_DESC_EPILOGUE);

    for (unsigned i = 0; i < 4; i++)
        if (s[i].rows == 0 || s[i].columns == 0 || s[i].stride < (int64_t)s[i].rows)
            return false;
    if ((ta ? s[0].columns : s[0].rows) != s[3].rows ||
        (tb ? s[1].rows : s[1].columns) != s[3].columns)
        return false;
    if ((ta ? s[0].rows : s[0].columns) != (tb ? s[1].columns : s[1].rows))
        return false;
    if (s[2].rows != s[3].rows || s[2].columns != s[3].columns || s[0].type != s[1].type)
        return false;
    return !(epilogue & 128) ||
           attribute<int64_t>(op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD) % 8 == 0;
}

/* True if the variable refuses the epilogue in this mode; NULL: in any mode. */
static bool is_epilogue_refused(cublasLtMatmulDesc_t op, const char *mode)
{
    const char *text = getenv("CUDA_EMULATOR_NO_EPILOGUES");

    return attribute<uint32_t>(op, CUBLASLT_MATMUL_DESC_EPILOGUE) != CUBLASLT_EPILOGUE_DEFAULT &&
           text && (!mode || strcmp(text, mode) == 0);
}

static bool aligned(const void *at, uint64_t bytes)
{
    return reinterpret_cast<uintptr_t>(at) % bytes == 0;
}

/* Pointers have the alignment for which the algorithm was chosen, or a real kernel would fault. */
static bool pointers_are_aligned(const struct product &p, const cublasLtMatmulAlgo_t *algorithm)
{
    cublasLtMatmulDesc_t op = const_cast<cublasLtMatmulDesc_t>(&p.operation);

    return aligned(p.a, algorithm->data[0]) && aligned(p.b, algorithm->data[1]) &&
           aligned(p.c, algorithm->data[2]) && aligned(p.d, algorithm->data[3]) &&
           aligned(attribute<const void *>(op, CUBLASLT_MATMUL_DESC_BIAS_POINTER), 16) &&
           aligned(attribute<const void *>(op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER), 16);
}

/* ---- cuBLASLt ---- */

cublasStatus_t cublasLtCreate(cublasLtHandle_t *ret)
{
    *ret = static_cast<cublasLtHandle_t>(malloc(1));
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *ret, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    if (scale != CUDA_R_32F ||
        (compute != CUBLAS_COMPUTE_32F && compute != CUBLAS_COMPUTE_32F_FAST_TF32))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    *ret = static_cast<cublasLtMatmulDesc_t>(calloc(1, sizeof(**ret)));
    (*ret)->data[CUBLASLT_MATMUL_DESC_EPILOGUE] = CUBLASLT_EPILOGUE_DEFAULT;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
    free(d);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d,
                                              cublasLtMatmulDescAttributes_t a, const void *value,
                                              size_t size)
{
    if (size > sizeof(d->data[0]))
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&d->data[a], value, size);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *ret, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t stride)
{
    *ret = static_cast<cublasLtMatrixLayout_t>(calloc(1, sizeof(**ret)));
    memcpy(&(*ret)->data[CUBLASLT_MATRIX_LAYOUT_TYPE], &type, sizeof(type));
    (*ret)->data[CUBLASLT_MATRIX_LAYOUT_ROWS] = rows;
    (*ret)->data[CUBLASLT_MATRIX_LAYOUT_COLS] = columns;
    memcpy(&(*ret)->data[CUBLASLT_MATRIX_LAYOUT_LD], &stride, sizeof(stride));
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    free(layout);
    return CUBLAS_STATUS_SUCCESS;
}

struct preference {
    uint32_t alignment[4]; /* of A, B, C, D */
};

static struct preference *preference_of(cublasLtMatmulPreference_t p)
{
    return reinterpret_cast<struct preference *>(p);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *ret)
{
    *ret = static_cast<cublasLtMatmulPreference_t>(calloc(1, sizeof(**ret)));
    for (uint32_t &alignment : preference_of(*ret)->alignment)
        alignment = 256;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    free(p);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t a,
                                                    const void *value, size_t size)
{
    const int operand = (int)a - (int)CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;

    if (operand < 0 || operand > 3) /* size of the workspace: none is needed */
        return CUBLAS_STATUS_SUCCESS;
    if (size != sizeof(uint32_t))
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&preference_of(p)->alignment[operand], value, size);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t op,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int count,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int *ret_count)
{
    struct operand sizes[4] = {operand_of(a), operand_of(b), operand_of(c), operand_of(d)};

    *ret_count = 0;
    if (is_epilogue_refused(op, "invalid"))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (count < 1 || !shapes_match(op, sizes) ||
        (is_epilogue_refused(op, NULL) && !is_epilogue_refused(op, "late")))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    memset(&results[0], 0, sizeof(results[0]));
    for (unsigned i = 0; i < 4; i++)
        results[0].algo.data[i] = preference_of(preference)->alignment[i];
    *ret_count = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t op, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t *algorithm, void *, size_t,
                              cudaStream_t stream)
{
    struct product p = {};

    p.operation = *op;
    p.alpha = *static_cast<const float *>(alpha);
    p.beta = *static_cast<const float *>(beta);
    p.a = a;
    p.b = b;
    p.c = c;
    p.d = d;
    p.sizes[0] = operand_of(a_layout);
    p.sizes[1] = operand_of(b_layout);
    p.sizes[2] = operand_of(c_layout);
    p.sizes[3] = operand_of(d_layout);
    if (!shapes_match(op, p.sizes))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (is_epilogue_refused(op, NULL))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!pointers_are_aligned(p, algorithm))
        return CUBLAS_STATUS_EXECUTION_FAILED;
    return cuda_emulator::enqueue(stream, [=] { multiply(p); }) == cudaSuccess
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_EXECUTION_FAILED;
}

const char *cublasGetStatusString(cublasStatus_t)
{
    return "an error of the emulated cuBLAS";
}

const char *cublasGetStatusName(cublasStatus_t)
{
    return "cublasStatus_t";
}
