/*
 * Matrix products by oneDNN's matmul primitive: one for each shape, made when it is first wanted,
 * which takes 0.1 to 0.6 ms, and kept.
 *
 * dnnl_sgemm needs nothing kept, but generates code for 57 ms of processor time when it is first
 * called, and this code needs a stack for signal handlers (stop.c).  oneDNN 2 multiplies by the
 * same code where rows are not dense, or without AVX-512.
 *
 * No lock: a primitive belongs to the thread that has made it, whose scratch memory it uses, and is
 * freed when the thread ends.
 */
#include "common/matrix/matrix.h"

#include "common/base/memory.h"
#include "common/matrix/onednn.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define LISTS      64
#define SHAPES_MAX 512            /* kept by a thread */
#define SMALL      (size_t)131072 /* multiplications for which a second thread costs what it saves */

/* libgomp's; its header is not in the path of every compiler. */
void omp_set_num_threads(int threads);
int omp_get_thread_num(void);
int omp_in_parallel(void);

enum operand { A, B, OUT, OPERANDS };

/* What a primitive depends on: words only, so that it is compared and hashed as an array. */
struct shape {
    size_t m, n, k;
    size_t strides[OPERANDS];
    size_t transposed_a, transposed_b, add, threads;
};

struct product {
    struct shape shape;
    dnnl_primitive_t primitive;
    dnnl_memory_t operands[OPERANDS];
    struct product *next;
};

/* A thread's. */
struct products {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    size_t count;
    struct product *lists[LISTS];
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static int key_error;
static __thread struct products *own;
static __thread int wanted_threads = 1;

void matrix_use_threads(unsigned threads)
{
    wanted_threads = (int)threads;
    omp_set_num_threads((int)threads);
}

unsigned matrix_thread(void)
{
    return (unsigned)omp_get_thread_num();
}

/* ---- a thread's products ---- */

static void product_destroy(struct product *p)
{
    for (int i = 0; i < OPERANDS; i++)
        (void)dnnl_memory_destroy(p->operands[i]);
    (void)dnnl_primitive_destroy(p->primitive);
    free(p);
}

static void release_all(struct products *all)
{
    for (size_t i = 0; i < LISTS; i++) {
        while (all->lists[i]) {
            struct product *p = all->lists[i];

            all->lists[i] = p->next;
            product_destroy(p);
        }
    }
    all->count = 0;
}

static void products_destroy(void *memory)
{
    struct products *all = memory;

    release_all(all);
    (void)dnnl_stream_destroy(all->stream);
    (void)dnnl_engine_destroy(all->engine);
    free(all);
}

static void make_key(void)
{
    key_error = pthread_key_create(&key, products_destroy);
}

static enum status products_create(struct error *err)
{
    struct products *all = NULL;
    enum status status = mem_calloc(1, sizeof(*all), "matrix products", &all, err);

    if (status != STATUS_OK)
        return status;
    (void)pthread_once(&once, make_key);
    if (key_error == 0 && dnnl_engine_create(&all->engine, dnnl_cpu, 0) == dnnl_success &&
        dnnl_stream_create(&all->stream, all->engine, dnnl_stream_default_flags) == dnnl_success &&
        pthread_setspecific(key, all) == 0) {
        own = all;
        return STATUS_OK;
    }
    products_destroy(all);
    return error_set(err, STATUS_INTERNAL, "oneDNN does not start on this processor");
}

/* ---- making one ---- */

static dnnl_status_t make_layouts(const struct shape *s, onednn_layout ret[OPERANDS])
{
    dnnl_dim_t m = (dnnl_dim_t)s->m, n = (dnnl_dim_t)s->n, k = (dnnl_dim_t)s->k;
    dnnl_dim_t a = (dnnl_dim_t)s->strides[A], b = (dnnl_dim_t)s->strides[B];
    const dnnl_dims_t sizes[OPERANDS] = {{m, k}, {k, n}, {m, n}};
    const dnnl_dims_t strides[OPERANDS] = {{s->transposed_a ? 1 : a, s->transposed_a ? a : 1},
                                           {s->transposed_b ? 1 : b, s->transposed_b ? b : 1},
                                           {(dnnl_dim_t)s->strides[OUT], 1}};
    dnnl_status_t code = dnnl_success;

    for (int i = 0; i < OPERANDS && code == dnnl_success; i++)
        code = dnnl_memory_desc_create_with_strides(&ret[i], 2, sizes[i], dnnl_f32, strides[i]);
    return code;
}

/* With `add` the product is added to `out`; else *ret stays NULL, oneDNN's defaults. */
static dnnl_status_t make_attributes(bool add, dnnl_primitive_attr_t *ret)
{
    dnnl_post_ops_t after = NULL;
    dnnl_status_t code;

    if (!add)
        return dnnl_success;
    code = dnnl_primitive_attr_create(ret);
    if (code == dnnl_success)
        code = dnnl_post_ops_create(&after);
    if (code == dnnl_success)
        code = dnnl_post_ops_append_sum(after, 1.0f, 0, dnnl_data_type_undef);
    if (code == dnnl_success)
        code = dnnl_primitive_attr_set_post_ops(*ret, after);
    (void)dnnl_post_ops_destroy(after);
    return code;
}

static dnnl_status_t make_primitive(const struct shape *s, onednn_layout layouts[OPERANDS],
                                    dnnl_primitive_t *ret)
{
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_primitive_desc_t described = NULL;
    dnnl_status_t code = make_attributes(s->add, &attributes);

    if (code == dnnl_success)
        code = dnnl_matmul_primitive_desc_create(&described, own->engine, layouts[A], layouts[B],
                                                 NULL, layouts[OUT], attributes);
    if (code == dnnl_success)
        code = dnnl_primitive_create(ret, described);
    (void)dnnl_primitive_desc_destroy(described);
    (void)dnnl_primitive_attr_destroy(attributes);
    return code;
}

/* Also after a failure p holds what is to be destroyed. */
static dnnl_status_t make_product(struct product *p)
{
    onednn_layout layouts[OPERANDS] = {NULL};
    dnnl_status_t code = make_layouts(&p->shape, layouts);

    if (code == dnnl_success)
        code = make_primitive(&p->shape, layouts, &p->primitive);
    for (int i = 0; i < OPERANDS && code == dnnl_success; i++)
        code = dnnl_memory_create(&p->operands[i], layouts[i], own->engine, DNNL_MEMORY_NONE);
    for (int i = 0; i < OPERANDS; i++)
        (void)dnnl_memory_desc_destroy(layouts[i]);
    return code;
}

static enum status fail(const struct shape *s, dnnl_status_t code, struct error *err)
{
    char what[128];

    (void)snprintf(what, sizeof(what), "a product of matrices of %zu x %zu and %zu x %zu", s->m,
                   s->k, s->k, s->n);
    return onednn_fail(code, what, err);
}

static size_t list_of(const struct shape *s)
{
    size_t words[sizeof(*s) / sizeof(size_t)];
    size_t hash = 0;

    memcpy(words, s, sizeof(words));
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        hash = hash * 31 + words[i];
    return (hash ^ hash >> 6 ^ hash >> 12) % LISTS;
}

/* The calling thread's product of this shape; after a failure ret is not written. */
static enum status find_product(const struct shape *s, struct product **ret, struct error *err)
{
    enum status status = own ? STATUS_OK : products_create(err);
    size_t list = list_of(s);
    struct product *p = NULL;
    dnnl_status_t code;

    if (status != STATUS_OK)
        return status;
    for (p = own->lists[list]; p; p = p->next) {
        if (memcmp(&p->shape, s, sizeof(*s)) == 0) {
            *ret = p;
            return STATUS_OK;
        }
    }
    if (own->count == SHAPES_MAX)
        release_all(own);
    status = mem_calloc(1, sizeof(*p), "a matrix product", &p, err);
    if (status != STATUS_OK)
        return status;
    p->shape = *s;
    code = make_product(p);
    if (code != dnnl_success) {
        product_destroy(p);
        return fail(s, code, err);
    }
    p->next = own->lists[list];
    own->lists[list] = p;
    own->count++;
    *ret = p;
    return STATUS_OK;
}

/* ---- use ---- */

/* oneDNN plans and multiplies with the number of threads that is set: one within a parallel loop,
 * or if `count` multiplications are few. */
static size_t set_threads(size_t count)
{
    int threads = omp_in_parallel() || count < SMALL ? 1 : wanted_threads;

    omp_set_num_threads(threads);
    return (size_t)threads;
}

enum status matrix_product(size_t m, size_t n, size_t k, struct matrix a, struct matrix b, bool add,
                           float *out, size_t stride, struct error *err)
{
    const struct shape shape = {.m = m,
                                .n = n,
                                .k = k,
                                .strides = {a.stride, b.stride, stride},
                                .transposed_a = a.transposed,
                                .transposed_b = b.transposed,
                                .add = add,
                                .threads = set_threads(m * n * k)};
    struct product *p = NULL;
    enum status status = find_product(&shape, &p, err);
    dnnl_exec_arg_t arguments[OPERANDS];
    dnnl_status_t code;

    if (!p)
        return status;
    arguments[A] = (dnnl_exec_arg_t){DNNL_ARG_SRC, p->operands[A]};
    arguments[B] = (dnnl_exec_arg_t){DNNL_ARG_WEIGHTS, p->operands[B]};
    arguments[OUT] = (dnnl_exec_arg_t){DNNL_ARG_DST, p->operands[OUT]};
    code = dnnl_memory_set_data_handle(p->operands[A], onednn_handle(a.data));
    if (code == dnnl_success)
        code = dnnl_memory_set_data_handle(p->operands[B], onednn_handle(b.data));
    if (code == dnnl_success)
        code = dnnl_memory_set_data_handle(p->operands[OUT], out);
    if (code == dnnl_success)
        code = dnnl_primitive_execute(p->primitive, own->stream, OPERANDS, arguments);
    if (code == dnnl_success)
        code = dnnl_stream_wait(own->stream);
    return code == dnnl_success ? STATUS_OK : fail(&shape, code, err);
}
