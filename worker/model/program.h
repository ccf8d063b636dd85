/*
 * program: the model as a list of operations over numbered values, built once, run forward in order
 * and backward in reverse.  Each operation reads one value (and may add a second one, the residual)
 * and writes the next one; value 0 is the input.  Internal to the model's sources.
 *
 * Values are kept until backward has passed them.  Their gradients use a small pool of buffers
 * (gradient_plan.h).  Parameters lie in the slab in the reverse order of their registration, so
 * that the final gradients form a growing prefix during backward, apart from the order of a few.
 */
#ifndef SPARRING_WORKER_MODEL_PROGRAM_H
#define SPARRING_WORKER_MODEL_PROGRAM_H

#include "worker/model/model.h"

#define INPUT_VALUE 0u /* as a residual: none */

struct value {                      /* sizes are of one sample */
    size_t channels, height, width; /* an image; (n, 1, 1): features; (1, T, n): T rows.  Images
                                       are in the device's order (compute_channels_last). */
    size_t count;                   /* the product */
    void *data;          /* owned, device (max_batch, count); NULL for the input on the host */
    const void *current; /* of this step: data, except for the input and for skipped blocks */
    size_t gradient;     /* index into the pool; SIZE_MAX: none, or over `data` (the logits) */
};

/* Distribution of the initial parameters. */
struct initial {
    enum {
        INITIAL_TORCH,   /* PyTorch's default: uniform in +-1/sqrt(fan in) */
        INITIAL_KAIMING, /* normal with variance 2 / fan out; bias 0 */
        INITIAL_NORMAL,  /* normal with deviation `deviation`; bias 0 */
    } kind;
    double deviation;
};

/* A layer of a profile: takes time, and computes nothing. */
struct timed {
    int64_t forward_ns, backward_ns;
    bool busy;      /* for that processor time; false: until then, waiting */
    int64_t end_ns; /* not busy: of the layer's last forward or backward, as planned */
};

struct operation {
    const struct operation_kind *kind;
    unsigned in, residual, out; /* values */
    size_t first_view, views;   /* in the parameter table, the weight first */
    size_t start, count;        /* its range of the slab */
    bool first_use;             /* no earlier operation reads these parameters */
    bool shared_weight;         /* an earlier contribution to the first view's gradient exists in
                                   backward */
    bool accumulates;           /* an earlier contribution to the gradient of `in` exists */
    size_t ready_count;         /* gradients [0, ready_count) are final after its backward */
    bool fuses_activation_backward; /* linear: backward_input includes the backward of the
                                       preceding activation */
    bool activation_backward_fused; /* the next operation does so: backward omits its own
                                       activation */
    bool dropped;                   /* in this step */
    struct initial initial;
    size_t rows; /* of one sample, for operations on rows */
    union {
        struct linear linear;
        struct convolution convolution;
        struct pool pool;
        struct batch_norm batch_norm;
        struct layer_norm layer_norm;
        struct embedding embedding;
        struct attention attention;
        struct timed timed;
    };
    size_t first_buffer;    /* batch_norm: its running mean in the buffer table */
    float *batches_tracked; /* batch_norm: a buffer on the host, int64 */
    int64_t batches;        /* a copy while the buffers are downloaded */
    void *pre_activation;   /* owned, device values: the input of GELU */
    float *saved[2];        /* owned, device: statistics */
    int32_t *argmax;        /* owned, device: max_pool's indices */
};

/* Functions and properties of a kind of operation.  Optional functions are NULL. */
struct operation_kind {
    bool in_place;            /* backward may write the gradient of `in` over that of `out` */
    bool overwrites_input;    /* forward may overwrite `in`, which must have no other reader */
    bool sets_input_gradient; /* backward replaces the gradient of `in`, which must have no other
                                 reader */
    /* Allocates memory, sets pointers into the slabs, prepares the device's plans; close undoes it
     * except for pre_activation, saved and argmax, which the model frees. */
    enum status (*open)(struct model *m, struct operation *op, struct error *err);
    void (*close)(struct model *m, struct operation *op);
    /* Initialises parameters and buffers in the host slabs. */
    void (*init)(struct model *m, const struct operation *op, struct random *r,
                 enum random_rounding rounding);
    enum status (*forward)(struct model *m, struct operation *op, size_t batch, struct error *err);
    enum status (*evaluate)(struct model *m, struct operation *op, size_t batch,
                            struct error *err); /* NULL: forward */
    /* Applies the activation's derivative to the gradient of `out`, then computes the gradients of
     * the parameters; where the device computes both at once also the gradient of `in`:
     * backward_input NULL. */
    enum status (*backward)(struct model *m, struct operation *op, size_t batch, bool accumulate,
                            struct error *err);
    enum status (*backward_input)(struct model *m, struct operation *op, size_t batch,
                                  struct error *err);
    /* Floating-point operations of matrix products and convolutions in forward, per sample; NULL:
     * none. */
    uint64_t (*forward_flops)(const struct operation *op);
};

extern const struct operation_kind operation_linear, operation_convolution, operation_batch_norm,
    operation_layer_norm, operation_max_pool, operation_mean, operation_flatten,
    operation_embedding, operation_attention, operation_timed;

/* Operations [first, end) that LayerDrop may skip; `out` then takes the value of `in`. */
struct block {
    size_t first, end;
    unsigned in, out;
};

#define MODEL_GRAPHS 6u /* a full batch and an epoch's last one, each in three roles */

/* A captured step, issued as one launch (model_graph.c). */
struct step_graph {
    size_t batch;
    bool accumulate, has_ready, includes_update;
    uint64_t last_use;           /* value of graph_uses then; 0: free */
    struct compute_graph *graph; /* owned; NULL: not captured yet */
};

/* The arguments of model_plan_update for the next step. */
struct planned_update {
    bool planned; /* the step's launch may include it */
    bool applied; /* the step's launch has included it */
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
    size_t logits_stride; /* elements from one row of logits to the next (compute_row_stride) */
    size_t vocabulary;    /* inputs are ids below it; 0: inputs are numbers */
    size_t max_batch;
    uint64_t times_hash;    /* of a profile; 0: none */
    bool ready_after_reads; /* model_set_ready_after_reads */
    model_await_fn *await;  /* NULL: parameters are complete */
    void *await_user;
    model_issued_fn *issued; /* NULL: not called */
    void *issued_user;
    struct shared_memory memory; /* contains the slabs on the CPU; else none */
    float *params, *grads;       /* device, table.count; owned with a GPU */
    float *host_params,
        *host_grads;         /* the same pointers where the device is the host; else owned */
    float *buffers;          /* device, owned with a GPU; NULL: none */
    float *host_buffers;     /* after host_params */
    bool *used;              /* owned; per view */
    double drop_probability; /* of LayerDrop */
    struct random random;
    int64_t forward_ns;
    size_t downloads[COMPUTE_DOWNLOADS_MAX]; /* with a GPU: the ready counts of pending downloads */
    size_t downloads_length;
    struct optimizer *optimizer; /* borrowed; runs on the device; NULL: on the host */
    enum gradient_path path;     /* with it */
    float *device_state[2];      /* owned, device: the optimizer's state */
    bool host_is_stale;          /* state or parameters have changed since model_fetch */
    struct planned_update update;
    struct step_graph graphs[MODEL_GRAPHS];
    bool graphs_disabled; /* disabled by model_use_graphs */
    uint64_t graph_uses, graph_launches;
    struct error graph_failure; /* why capturing failed; else empty */
};

static inline const void *program_read(const struct model *m, unsigned value)
{
    return m->values[value].current;
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

/* Parameters and gradients of the operation's view `index`, on the device and on the host. */
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

/* Initialise weight (rows of fan out, fan in) and bias as op->initial says. */
void program_init_weight(struct model *m, const struct operation *op, size_t fan_in, size_t fan_out,
                         struct random *r, enum random_rounding rounding);

/* Weights 1, bias 0. */
void program_init_norm(struct model *m, const struct operation *op);

/* Derive the operations' offsets, ready counts and flags, once all operations exist and the table
 * of parameters is laid out. */
enum status program_analyse(struct model *m, struct error *err);

/* Allocate the pool, and assign a buffer of it to each value's gradient. */
enum status program_plan_gradients(struct model *m, struct error *err);

/* Allocate max_batch * count float32 or values; what: for the error text. */
enum status program_alloc(struct model *m, size_t count, const char *what, float **ret,
                          struct error *err);
enum status program_alloc_values(struct model *m, size_t count, const char *what, void **ret,
                                 struct error *err);

#endif
