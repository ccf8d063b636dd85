/*
 * Matrix products by cuBLASLt.  Our matrices are row-major; cuBLASLt, which is column-major, is
 * given the transposed problem with the factors exchanged, D^T = op(B)^T op(A)^T.  The heuristics'
 * choice for a shape is cached in a hash table of plans, and so is the fact that an epilogue is not
 * supported for a shape; the caller then uses a separate pass.  The same happens if an epilogue's
 * vector only has a float's alignment, as parameters in the slab may have: preferences cover the
 * alignment of matrices only, and kernels read a bias 16 bytes at a time.
 */
#include "worker/compute/cuda/cuda_internal.h"

#include <stdlib.h>
#include <string.h>

#define PLANS           1024u /* a power of two; the table is cleared when half full */
#define WORKSPACE_BYTES ((size_t)32 << 20)
#define ALIGNMENT_MAX   256u
#define EPILOGUE_BYTES  16u /* alignment of what only an epilogue reads or writes */

struct plan_key {
    size_t m, n, k;
    size_t a_stride, d_stride;
    uint32_t transposes; /* A: 1, B: 2 */
    uint32_t epilogue;
    uint32_t d_type;
    uint32_t alignment[6]; /* bytes: A, B, C, D, bias, aux */
    uint32_t adds;         /* beta is not 0 */
};

struct plan {
    struct plan_key key;
    bool used, supported;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, d; /* cuBLASLt's A is our B */
    cublasLtMatmulAlgo_t algorithm;
};

struct product_plans {
    cublasLtHandle_t handle;
    cublasLtMatmulPreference_t preference;
    void *workspace; /* owned, device */
    struct plan plans[PLANS];
    unsigned used;
};

/* ---- plans ---- */

static uint32_t alignment_of(const void *at)
{
    uint32_t alignment = ALIGNMENT_MAX;

    while (alignment > 1 && reinterpret_cast<uintptr_t>(at) % alignment != 0)
        alignment /= 2;
    return alignment;
}

static size_t a_stride(const struct product *p)
{
    return p->a_stride > 0 ? p->a_stride : p->transpose_a ? p->m : p->k;
}

static size_t d_stride(const struct product *p)
{
    return p->d_stride > 0 ? p->d_stride : p->n;
}

static struct plan_key key_of(const struct product *p)
{
    struct plan_key key;

    memset(&key, 0, sizeof(key)); /* compared as bytes */
    key.m = p->m;
    key.n = p->n;
    key.k = p->k;
    key.a_stride = a_stride(p);
    key.d_stride = d_stride(p);
    key.transposes = (p->transpose_a ? 1u : 0u) | (p->transpose_b ? 2u : 0u);
    key.epilogue = p->epilogue;
    key.d_type = (uint32_t)p->d_type;
    key.alignment[0] = alignment_of(p->a);
    key.alignment[1] = alignment_of(p->b);
    key.alignment[2] = alignment_of(p->c ? p->c : p->d);
    key.alignment[3] = alignment_of(p->d);
    key.alignment[4] = alignment_of(p->bias);
    key.alignment[5] = alignment_of(p->aux);
    key.adds = p->beta != 0.0f;
    return key;
}

static unsigned hash(const struct plan_key *key)
{
    const unsigned char *bytes = reinterpret_cast<const unsigned char *>(key);
    uint32_t h = 2166136261u; /* FNV-1a */

    for (size_t i = 0; i < sizeof(*key); i++)
        h = (h ^ bytes[i]) * 16777619u;
    return h % PLANS;
}

static void release_plan(struct plan *plan)
{
    if (plan->operation)
        (void)cublasLtMatmulDescDestroy(plan->operation);
    if (plan->a)
        (void)cublasLtMatrixLayoutDestroy(plan->a);
    if (plan->b)
        (void)cublasLtMatrixLayoutDestroy(plan->b);
    if (plan->d)
        (void)cublasLtMatrixLayoutDestroy(plan->d);
    memset(plan, 0, sizeof(*plan));
}

/* The plan of this key, or a free entry for it. */
static struct plan *find_plan(struct product_plans *plans, const struct plan_key *key)
{
    unsigned at = hash(key);

    while (plans->plans[at].used && memcmp(&plans->plans[at].key, key, sizeof(*key)) != 0)
        at = (at + 1) % PLANS;
    if (plans->plans[at].used || plans->used < PLANS / 2)
        return &plans->plans[at];
    for (unsigned i = 0; i < PLANS; i++)
        release_plan(&plans->plans[i]);
    plans->used = 0;
    return &plans->plans[hash(key)];
}

template <typename T>
static cublasStatus_t set_attribute(cublasLtMatmulDesc_t operation,
                                    cublasLtMatmulDescAttributes_t attribute, T value)
{
    return cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof(value));
}

static cublasStatus_t make_descriptors(const struct cuda *cuda, struct plan *plan,
                                       const struct product *p)
{
    cublasStatus_t s = cublasLtMatmulDescCreate(&plan->operation, cuda->product_type, CUDA_R_32F);

    if (s == CUBLAS_STATUS_SUCCESS)
        s = set_attribute<int32_t>(plan->operation, CUBLASLT_MATMUL_DESC_TRANSA,
                                   p->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = set_attribute<int32_t>(plan->operation, CUBLASLT_MATMUL_DESC_TRANSB,
                                   p->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = set_attribute<uint32_t>(plan->operation, CUBLASLT_MATMUL_DESC_EPILOGUE, p->epilogue);
    if (s == CUBLAS_STATUS_SUCCESS && p->aux)
        s = set_attribute<int64_t>(plan->operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD,
                                   (int64_t)p->n);
    if (s == CUBLAS_STATUS_SUCCESS) /* B is (k, n), as a column-major matrix (n, k) */
        s = cublasLtMatrixLayoutCreate(&plan->a, cuda->type, p->transpose_b ? p->k : p->n,
                                       p->transpose_b ? p->n : p->k,
                                       (int64_t)(p->transpose_b ? p->k : p->n));
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatrixLayoutCreate(&plan->b, cuda->type, p->transpose_a ? p->m : p->k,
                                       p->transpose_a ? p->k : p->m, (int64_t)a_stride(p));
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatrixLayoutCreate(&plan->d, p->d_type, p->n, p->m, (int64_t)d_stride(p));
    return s;
}

static cublasStatus_t set_pointers(const struct plan *plan, const struct product *p)
{
    cublasStatus_t s = CUBLAS_STATUS_SUCCESS;

    if (p->bias)
        s = set_attribute<const void *>(plan->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                        p->bias);
    if (s == CUBLAS_STATUS_SUCCESS && p->aux)
        s = set_attribute<void *>(plan->operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
                                  p->aux);
    return s;
}

/* True if cuBLASLt does not support the product; with an epilogue it may report an invalid value.
 */
static bool is_unsupported(const struct plan *plan, cublasStatus_t s)
{
    return s == CUBLAS_STATUS_NOT_SUPPORTED ||
           (s == CUBLAS_STATUS_INVALID_VALUE && plan->key.epilogue != CUBLASLT_EPILOGUE_DEFAULT);
}

static cublasStatus_t choose_algorithm(struct product_plans *plans, struct plan *plan)
{
    const cublasLtMatmulPreferenceAttributes_t attributes[4] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    cublasLtMatmulHeuristicResult_t result;
    int found = 0;
    cublasStatus_t s = CUBLAS_STATUS_SUCCESS;

    for (unsigned i = 0; i < 4 && s == CUBLAS_STATUS_SUCCESS; i++)
        s = cublasLtMatmulPreferenceSetAttribute(plans->preference, attributes[i],
                                                 &plan->key.alignment[i],
                                                 sizeof(plan->key.alignment[i]));
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatmulAlgoGetHeuristic(plans->handle, plan->operation, plan->a, plan->b,
                                           plan->d, plan->d, plans->preference, 1, &result, &found);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = found > 0 ? result.state : CUBLAS_STATUS_NOT_SUPPORTED;
    if (is_unsupported(plan, s))
        return CUBLAS_STATUS_SUCCESS; /* plan->supported stays false */
    if (s == CUBLAS_STATUS_SUCCESS) {
        plan->algorithm = result.algo;
        plan->supported = true;
    }
    return s;
}

static cublasStatus_t make_plan(const struct cuda *cuda, struct plan *plan,
                                const struct plan_key *key, const struct product *p)
{
    cublasStatus_t s;

    plan->key = *key;
    s = make_descriptors(cuda, plan, p);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = set_pointers(plan, p); /* the heuristics use their alignment */
    if (s == CUBLAS_STATUS_SUCCESS)
        s = choose_algorithm(cuda->plans, plan);
    if (s == CUBLAS_STATUS_SUCCESS) {
        plan->used = true;
        cuda->plans->used++;
    } else {
        release_plan(plan);
    }
    return s;
}

/* ---- products ---- */

static bool epilogue_fits(const struct plan_key *key)
{
    return key->alignment[4] >= EPILOGUE_BYTES && key->alignment[5] >= EPILOGUE_BYTES;
}

static cublasStatus_t launch_product(struct cuda *cuda, const struct plan *plan,
                                     const struct product *p)
{
    cublasStatus_t s = set_pointers(plan, p);

    if (s != CUBLAS_STATUS_SUCCESS)
        return s;
    return cublasLtMatmul(cuda->plans->handle, plan->operation, &p->alpha, p->b, plan->a, p->a,
                          plan->b, &p->beta, p->c ? p->c : p->d, plan->d, p->d, plan->d,
                          &plan->algorithm, cuda->plans->workspace, WORKSPACE_BYTES, cuda->work);
}

enum status cuda_product(struct cuda *cuda, const struct product *p, bool *ret_done,
                         struct error *err)
{
    struct plan_key key = key_of(p);
    struct plan *plan;
    cublasStatus_t s;

    if (ret_done && !epilogue_fits(&key))
        return STATUS_OK; /* *ret_done stays false */
    plan = find_plan(cuda->plans, &key);
    if (!plan->used) {
        enum status status =
            status_from_cublas(make_plan(cuda, plan, &key, p), "planning a product", err);

        if (status != STATUS_OK)
            return status;
    }
    if (plan->supported) {
        s = launch_product(cuda, plan, p);
        if (!ret_done || !is_unsupported(plan, s)) {
            if (ret_done)
                *ret_done = s == CUBLAS_STATUS_SUCCESS;
            return status_from_cublas(s, "cublasLtMatmul", err);
        }
        plan->supported = false; /* rejected at the launch: nothing was done */
    }
    return ret_done ? STATUS_OK
                    : error_set(err, STATUS_UNSUPPORTED,
                                "cuBLASLt has no product of %zu x %zu x %zu", p->m, p->n, p->k);
}

enum status cuda_products_open(struct cuda *cuda, struct error *err)
{
    const size_t workspace_bytes = WORKSPACE_BYTES;
    struct product_plans *plans =
        static_cast<struct product_plans *>(calloc(1, sizeof(struct product_plans)));
    float *workspace = NULL;
    enum status status;

    if (!plans)
        return error_set(err, STATUS_NO_MEMORY, "cuda device: cannot allocate %zu bytes",
                         sizeof(*plans));
    cuda->plans = plans;
    status = status_from_cublas(cublasLtCreate(&plans->handle), "cublasLtCreate", err);
    if (status == STATUS_OK)
        status = status_from_cublas(cublasLtMatmulPreferenceCreate(&plans->preference),
                                    "cublasLtMatmulPreferenceCreate", err);
    if (status == STATUS_OK)
        status = status_from_cublas(cublasLtMatmulPreferenceSetAttribute(
                                        plans->preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                        &workspace_bytes, sizeof(workspace_bytes)),
                                    "cublasLtMatmulPreferenceSetAttribute", err);
    if (status == STATUS_OK)
        status = cuda_alloc(&cuda->base, WORKSPACE_BYTES / sizeof(float), "cuBLASLt's workspace",
                            &workspace, err);
    plans->workspace = workspace;
    return status;
}

void cuda_products_close(struct cuda *cuda)
{
    struct product_plans *plans = cuda->plans;

    if (!plans)
        return;
    for (unsigned i = 0; i < PLANS; i++)
        release_plan(&plans->plans[i]);
    (void)cudaFree(plans->workspace);
    if (plans->preference)
        (void)cublasLtMatmulPreferenceDestroy(plans->preference);
    if (plans->handle)
        (void)cublasLtDestroy(plans->handle);
    free(plans);
    cuda->plans = NULL;
}
