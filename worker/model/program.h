/*
 * program: the model as a list of operations over numbered values, built once, run forward in order
 * and backward in reverse.  Each operation reads one value (and may add a second, the residual) and
 * writes the next one; value 0 is the input.  Internal to the model's sources.
 *
 * Values are kept until backward has passed them.  Their gradients live in a small pool of buffers
 * (gradient_plan.h).  Parameters lie in the slab in the reverse order of their registration, so
 * that what is final in backward is, but for the order of a few, a prefix that grows.
 */
#ifndef SPARRING_WORKER_MODEL_PROGRAM_H
#define SPARRING_WORKER_MODEL_PROGRAM_H

#include "worker/model/model.h"

#define INPUT_VALUE 0u /* as a residual: there is none */

struct value {                      /* sizes are of one sample */
    size_t channels, height, width; /* an image; (n, 1, 1): features; (1, T, n): T rows.  Images
                                       are in the device's order (compute_channels_last) */
    size_t count;                   /* the product */
    void *data;      /* owned, device (max_batch, count); the input's NULL on the host */
    const void *at;  /* where it is in this step: data, but of the input and what is skipped */
    size_t gradient; /* index into the pool; SIZE_MAX: none, or in `data` (the logits') */
};

/* How parameters start. */
struct initial {
    enum {
        INITIAL_TORCH,   /* the module's own: uniform in +-1/sqrt(fan in) */
        INITIAL_KAIMING, /* normal with variance 2 / fan out; bias 0 */
        INITIAL_NORMAL,  /* normal with deviation `deviation`; bias 0 */
    } kind;
    double deviation;
};

struct operation {
    const struct operation_kind *kind;
    unsigned in, residual, out; /* values */
    size_t first_view, views;   /* in the table, the weight first */
    size_t start, count;        /* its part of the slab */
    bool first_use;             /* no operation before reads these parameters */
    bool shared_weight;         /* in backward the first view has a contribution already */
    bool accumulates;           /* ... and the gradient of `in` has */
    size_t ready_count;         /* gradients [0, ready_count) are final after its backward */
    bool takes_slope; /* linear: its input gradient is taken back through the activation before */
    bool slope_taken; /* ... which that operation then leaves out */
    bool dropped;     /* in this step */
    struct initial initial;
    size_t rows; /* of one sample, for what acts on rows */
    union {
        struct linear linear;
        struct convolution convolution;
        struct pool pool;
        struct batch_norm batch_norm;
        struct layer_norm layer_norm;
        struct embedding embedding;
        struct attention attention;
    };
    size_t first_buffer;    /* batch_norm: its running mean in the buffer table */
    float *batches_tracked; /* batch_norm: a buffer on the host, int64 */
    int64_t batches;        /* ... kept while the buffers are fetched */
    void *kept;             /* owned, device values: GELU's input */
    float *saved[2];        /* owned, device: statistics */
    int32_t *chosen;        /* owned, device: of max_pool */
};

/* What all operations of a kind share.  Optional slots are NULL. */
struct operation_kind {
    bool in_place;   /* backward may write the gradient of `in` over that of `out` */
    bool owns_input; /* forward writes over `in`: nobody else reads it */
    bool sets_input; /* backward cannot add to the gradient of `in`: nobody else reads it */
    /* Memory, pointers into the slabs, the device's plans; close undoes what open does beyond
     * kept, saved and chosen. */
    enum status (*open)(struct model *m, struct operation *op, struct error *err);
    void (*close)(struct model *m, struct operation *op);
    /* Parameters and buffers in the host slabs. */
    void (*init)(struct model *m, const struct operation *op, struct random *r,
                 enum random_rounding rounding);
    enum status (*forward)(struct model *m, struct operation *op, size_t batch, struct error *err);
    enum status (*evaluate)(struct model *m, struct operation *op, size_t batch,
                            struct error *err); /* NULL: forward */
    /* The activation's mask over the gradient of `out`, then the parameters' gradients; where the
     * device makes both at once the gradient of `in`, too, and backward_input is NULL. */
    enum status (*backward)(struct model *m, struct operation *op, size_t batch, bool accumulate,
                            struct error *err);
    enum status (*backward_input)(struct model *m, struct operation *op, size_t batch,
                                  struct error *err);
    /* Floating-point operations of matrix products and convolutions, of one sample's forward; NULL:
     * none. */
    uint64_t (*forward_flops)(const struct operation *op);
};

extern const struct operation_kind operation_linear, operation_convolution, operation_batch_norm,
    operation_layer_norm, operation_max_pool, operation_mean, operation_flatten,
    operation_embedding, operation_attention;

/* Operations [first, end) that LayerDrop may skip: `out` is then `in`. */
struct block {
    size_t first, end;
    unsigned in, out;
};

#define MODEL_GRAPHS 6u /* a whole batch and an epoch's last one, each in three roles */

/* Steps that are one launch (model_graph.c). */
struct step_graph {
    size_t batch;
    bool accumulate, hands_over, updates;
    uint64_t used;               /* at this use of any; 0: free */
    struct compute_graph *graph; /* owned; NULL: not noted yet */
};

/* What model_plan_update said of the next step. */
struct planned_update {
    bool planned; /* and may be made with the step */
    bool made;    /* was */
    double learning_rate;
    uint64_t step;
};

struct model {
    struct compute *compute; /* borrowed */
    struct tensor_table table, buffer_table, state_table;
    struct value *values; /* owned */
    size_t values_length, values_capacity;
    struct operation *operations; /* owned */
    size_t length, capacity;
    struct block *blocks; /* owned, in order, disjoint */
    size_t blocks_length, blocks_capacity;
    void **pool; /* owned, device: gradients */
    size_t pool_length;
    size_t positions;     /* labels of a sample */
    size_t logits_stride; /* elements from one row of logits to the next, as the device names it */
    size_t vocabulary;    /* inputs are ids below it; 0: inputs are numbers */
    size_t max_batch;
    model_await_fn *await; /* NULL: parameters are there */
    void *await_user;
    model_issued_fn *issued; /* NULL: nobody wants to know */
    void *issued_user;
    struct shared_memory memory; /* of the slabs on the host; else none */
    float *params, *grads;       /* device, table.count; owned with a GPU */
    float *host_params,
        *host_grads;     /* the same pointers where the device is the host; else owned */
    float *buffers;      /* device, owned with a GPU; NULL: none */
    float *host_buffers; /* behind host_params */
    bool *used;          /* owned; per view */
    double drop;         /* probability */
    struct random random;
    int64_t forward_ns;
    size_t downloads[COMPUTE_DOWNLOADS_MAX]; /* with a GPU: ready counts on their way */
    size_t downloads_length;
    struct optimizer *optimizer; /* borrowed; runs on the device; or NULL */
    enum gradient_path path;     /* with it */
    float *device_state[2];      /* owned, device: its state */
    bool host_is_old;            /* they, or the parameters, changed since model_fetch */
    struct planned_update update;
    struct step_graph graphs[MODEL_GRAPHS];
    bool graphs_off; /* not wanted */
    uint64_t graph_uses, graph_launches;
    struct error graph_failure; /* why steps are not noted; else empty */
};

static inline const void *program_read(const struct model *m, unsigned value)
{
    return m->values[value].at;
}

static inline const void *program_residual(const struct model *m, const struct operation *op)
{
    return op->residual == INPUT_VALUE ? NULL : program_read(m, op->residual);
}

static inline void *program_write(const struct model *m, unsigned value)
{
    return m->values[value].data;
}

/* The gradient of a value other than the input. */
static inline void *program_gradient(const struct model *m, unsigned value)
{
    const struct value *v = &m->values[value];

    return v->gradient == SIZE_MAX ? v->data : m->pool[v->gradient];
}

/* Parameters of the operation's view `index`, and their gradients, on the device and the host. */
static inline size_t program_offset(const struct model *m, const struct operation *op, size_t index)
{
    return m->table.views[op->first_view + index].offset;
}

static inline const float *program_params(const struct model *m, const struct operation *op,
                                          size_t index)
{
    return index < op->views ? m->params + program_offset(m, op, index) : NULL;
}

static inline float *program_grads(const struct model *m, const struct operation *op, size_t index)
{
    return index < op->views ? m->grads + program_offset(m, op, index) : NULL;
}

static inline float *program_host_params(const struct model *m, const struct operation *op,
                                         size_t index)
{
    return m->host_params + program_offset(m, op, index);
}

/* Weight (fan out's rows, fan in) and bias as op->initial says. */
void program_init_weight(struct model *m, const struct operation *op, size_t fan_in, size_t fan_out,
                         struct random *r, enum random_rounding rounding);

/* Weights 1, bias 0. */
void program_init_norm(struct model *m, const struct operation *op);

/* Work out the operations' facts, once all are there and the table of parameters is laid out. */
enum status program_arrange(struct model *m, struct error *err);

/* The pool, and which buffer of it each value's gradient lies in. */
enum status program_plan_gradients(struct model *m, struct error *err);

/* max_batch * count of float32 or of values; what: for the error text. */
enum status program_alloc(struct model *m, size_t count, const char *what, float **ret,
                          struct error *err);
enum status program_alloc_values(struct model *m, size_t count, const char *what, void **ret,
                                 struct error *err);

#endif
