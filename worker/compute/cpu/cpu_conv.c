/*
 * Convolution on the CPU by oneDNN: forward and both gradients are a "pass" each, made for one
 * batch size when that is first used (oneDNN keeps the code that it generated, so a change of the
 * batch, for the last batch of an epoch or to evaluate, is cheap).  A pass keeps the number of
 * threads that was set when it was made, and wants the same when it runs.
 *
 * oneDNN chooses how the tensors of a pass lie in memory; those that it wants in another layout
 * than ours are copied to scratch memory of the device and back by its reorders.  Direct algorithms
 * only: Winograd's, which oneDNN takes by itself where it can, are faster for 3 x 3 kernels but
 * lose almost one decimal digit.
 *
 * Bits: sums run in oneDNN's order, which depends on the processor and on the number of threads,
 * not on the run.
 */
#include "common/base/memory.h"
#include "worker/compute/cpu/cpu.h"

#include <assert.h>
#include <stdlib.h>

enum direction { FORWARD, BACKWARD_WEIGHT, BACKWARD_INPUT, DIRECTIONS };
enum tensor { INPUT, WEIGHT, OUTPUT, TENSORS };

/* A tensor of a pass, in our layout and in oneDNN's. */
struct side {
    dnnl_memory_t ours, theirs; /* the same one, where the layouts are equal */
    dnnl_primitive_t copy;      /* a reorder, to theirs or of the result to ours; NULL: equal */
    size_t offset;              /* of theirs in scratch memory, in floats */
};

struct pass {
    size_t batch; /* 0: not made */
    dnnl_primitive_t primitive;
    struct side sides[TENSORS];
};

struct conv_plan {
    size_t max_batch;
    size_t points; /* of an output plane */
    struct pass passes[DIRECTIONS];
};

/* Which tensor a pass writes; what oneDNN calls the tensors. */
static const enum tensor results[DIRECTIONS] = {OUTPUT, WEIGHT, INPUT};
static const int arguments[DIRECTIONS][TENSORS] = {
    {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST},
    {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST},
    {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST},
};
static const dnnl_query_t queries[DIRECTIONS][TENSORS] = {
    {dnnl_query_src_md, dnnl_query_weights_md, dnnl_query_dst_md},
    {dnnl_query_src_md, dnnl_query_diff_weights_md, dnnl_query_diff_dst_md},
    {dnnl_query_diff_src_md, dnnl_query_weights_md, dnnl_query_diff_dst_md},
};

/* ---- making a pass ---- */

static void release_layouts(onednn_layout t[TENSORS])
{
    for (int i = 0; i < TENSORS; i++)
        (void)dnnl_memory_desc_destroy(t[i]);
}

/* Also after a failure ret holds what is to be released. */
static dnnl_status_t make_layouts(const struct convolution *conv, size_t batch,
                                  dnnl_format_tag_t images, dnnl_format_tag_t filters,
                                  onednn_layout ret[TENSORS])
{
    dnnl_dim_t n = (dnnl_dim_t)batch, c = (dnnl_dim_t)conv->channels, k = (dnnl_dim_t)conv->kernel;
    dnnl_dim_t f = (dnnl_dim_t)conv->filters;
    const dnnl_dims_t sizes[TENSORS] = {
        {n, c, (dnnl_dim_t)conv->height, (dnnl_dim_t)conv->width},
        {f, c, k, k},
        {n, f, (dnnl_dim_t)compute_windows(conv->height, conv->kernel, conv->stride, conv->padding),
         (dnnl_dim_t)compute_windows(conv->width, conv->kernel, conv->stride, conv->padding)}};
    dnnl_status_t code = dnnl_success;

    for (int t = 0; t < TENSORS && code == dnnl_success; t++)
        code = dnnl_memory_desc_create_with_tag(&ret[t], 4, sizes[t], dnnl_f32,
                                                t == WEIGHT ? filters : images);
    return code;
}

/* The gradients want the forward pass as a hint. */
static dnnl_status_t describe_pass(const struct cpu *cpu, const struct convolution *conv,
                                   enum direction direction, onednn_layout t[TENSORS],
                                   dnnl_primitive_desc_t *ret)
{
    dnnl_dim_t s = (dnnl_dim_t)conv->stride, p = (dnnl_dim_t)conv->padding;
    dnnl_dims_t strides = {s, s}, dense = {0, 0}, padding = {p, p};
    dnnl_primitive_desc_t hint;
    dnnl_status_t code = dnnl_convolution_forward_primitive_desc_create(
        &hint, cpu->engine, dnnl_forward_training, dnnl_convolution_direct, t[INPUT], t[WEIGHT],
        NULL, t[OUTPUT], strides, dense, padding, padding, NULL);

    if (code != dnnl_success)
        return code;
    if (direction == FORWARD) {
        *ret = hint;
        return dnnl_success;
    }
    code = direction == BACKWARD_WEIGHT
               ? dnnl_convolution_backward_weights_primitive_desc_create(
                     ret, cpu->engine, dnnl_convolution_direct, t[INPUT], t[WEIGHT], NULL,
                     t[OUTPUT], strides, dense, padding, padding, hint, NULL)
               : dnnl_convolution_backward_data_primitive_desc_create(
                     ret, cpu->engine, dnnl_convolution_direct, t[INPUT], t[WEIGHT], t[OUTPUT],
                     strides, dense, padding, padding, hint, NULL);
    (void)dnnl_primitive_desc_destroy(hint);
    return code;
}

static dnnl_status_t make_copy(const struct cpu *cpu, onednn_layout_ref from, onednn_layout_ref to,
                               dnnl_primitive_t *ret)
{
    dnnl_primitive_desc_t d;
    dnnl_status_t code =
        dnnl_reorder_primitive_desc_create(&d, from, cpu->engine, to, cpu->engine, NULL);

    if (code != dnnl_success)
        return code;
    code = dnnl_primitive_create(ret, d);
    (void)dnnl_primitive_desc_destroy(d);
    return code;
}

/* *used: floats of scratch memory so far. */
static dnnl_status_t make_side(const struct cpu *cpu, struct side *side, onednn_layout_ref ours,
                               onednn_layout_ref theirs, bool is_result, size_t *used)
{
    dnnl_status_t code = dnnl_memory_create(&side->ours, ours, cpu->engine, DNNL_MEMORY_NONE);

    side->theirs = side->ours;
    if (code != dnnl_success || dnnl_memory_desc_equal(ours, theirs))
        return code;
    side->theirs = NULL;
    side->offset = *used;
    *used += size_round_up(dnnl_memory_desc_get_size(theirs) / sizeof(float), MEM_LINE_FLOATS);
    code = dnnl_memory_create(&side->theirs, theirs, cpu->engine, DNNL_MEMORY_NONE);
    if (code != dnnl_success)
        return code;
    return is_result ? make_copy(cpu, theirs, ours, &side->copy)
                     : make_copy(cpu, ours, theirs, &side->copy);
}

static void release_pass(struct pass *pass)
{
    for (int t = 0; t < TENSORS; t++) {
        struct side *side = &pass->sides[t];

        (void)dnnl_primitive_destroy(side->copy);
        if (side->theirs != side->ours)
            (void)dnnl_memory_destroy(side->theirs);
        (void)dnnl_memory_destroy(side->ours);
    }
    (void)dnnl_primitive_destroy(pass->primitive);
    *pass = (struct pass){0};
}

static dnnl_status_t make_primitive(const struct cpu *cpu, const struct convolution *conv,
                                    enum direction direction, onednn_layout ours[TENSORS],
                                    onednn_layout any[TENSORS], struct pass *pass, size_t *used)
{
    dnnl_primitive_desc_t d = NULL;
    dnnl_status_t code = describe_pass(cpu, conv, direction, any, &d);

    if (code == dnnl_success)
        code = dnnl_primitive_create(&pass->primitive, d);
    for (int t = 0; t < TENSORS && code == dnnl_success; t++)
        code = make_side(cpu, &pass->sides[t], ours[t],
                         dnnl_primitive_desc_query_md(d, queries[direction][t], 0),
                         t == (int)results[direction], used);
    (void)dnnl_primitive_desc_destroy(d);
    return code;
}

/* Scratch memory also has room for the result of a gradient that is to be added. */
static enum status make_pass(struct cpu *cpu, const struct convolution *conv,
                             enum direction direction, size_t batch, struct pass *pass,
                             struct error *err)
{
    onednn_layout ours[TENSORS] = {NULL}, any[TENSORS] = {NULL};
    size_t used = 0;
    enum status status;
    dnnl_status_t code = make_layouts(conv, batch, dnnl_nchw, dnnl_oihw, ours);

    matrix_use_threads(cpu->threads);
    if (code == dnnl_success)
        code = make_layouts(conv, batch, dnnl_format_tag_any, dnnl_format_tag_any, any);
    if (code == dnnl_success)
        code = make_primitive(cpu, conv, direction, ours, any, pass, &used);
    if (code == dnnl_success && direction != FORWARD)
        used += dnnl_memory_desc_get_size(ours[results[direction]]) / sizeof(float);
    release_layouts(ours);
    release_layouts(any);
    pass->batch = batch;
    status = code == dnnl_success ? cpu_reserve(cpu, used, "scratch memory of a convolution", err)
                                  : onednn_fail(code, "a convolution", err);
    if (status != STATUS_OK)
        release_pass(pass);
    return status;
}

enum status cpu_conv_prepare(struct compute *c, struct convolution *conv, size_t max_batch,
                             struct error *err)
{
    struct conv_plan *plan = NULL;
    enum status status = mem_calloc(1, sizeof(*plan), "plan of a convolution", &plan, err);

    if (status != STATUS_OK)
        return status;
    plan->max_batch = max_batch;
    plan->points = compute_windows(conv->height, conv->kernel, conv->stride, conv->padding) *
                   compute_windows(conv->width, conv->kernel, conv->stride, conv->padding);
    conv->plan = plan;
    for (enum direction d = FORWARD; d < DIRECTIONS && status == STATUS_OK; d++)
        status = make_pass((struct cpu *)c, conv, d, max_batch, &plan->passes[d], err);
    if (status != STATUS_OK)
        cpu_conv_release(c, conv);
    return status;
}

void cpu_conv_release(struct compute *c, struct convolution *conv)
{
    struct conv_plan *plan = conv->plan;

    (void)c;
    for (enum direction d = FORWARD; d < DIRECTIONS; d++)
        release_pass(&plan->passes[d]);
    free(plan);
    conv->plan = NULL;
}

/* ---- running a pass ---- */

static dnnl_status_t run_copy(const struct cpu *cpu, const struct side *side, bool is_result)
{
    dnnl_exec_arg_t words[] = {{DNNL_ARG_FROM, is_result ? side->theirs : side->ours},
                               {DNNL_ARG_TO, is_result ? side->ours : side->theirs}};

    return side->copy ? dnnl_primitive_execute(side->copy, cpu->stream, 2, words) : dnnl_success;
}

static dnnl_status_t set_memory(const struct cpu *cpu, const struct side *side, void *data)
{
    dnnl_status_t code = dnnl_memory_set_data_handle(side->ours, data);

    if (code == dnnl_success && side->copy)
        code = dnnl_memory_set_data_handle(side->theirs, cpu->scratch + side->offset);
    return code;
}

static dnnl_status_t execute(const struct cpu *cpu, const struct pass *pass,
                             enum direction direction, void *const data[TENSORS])
{
    const enum tensor result = results[direction];
    dnnl_exec_arg_t words[TENSORS];
    dnnl_status_t code = dnnl_success;

    for (int t = 0; t < TENSORS && code == dnnl_success; t++) {
        words[t] = (dnnl_exec_arg_t){arguments[direction][t], pass->sides[t].theirs};
        code = set_memory(cpu, &pass->sides[t], data[t]);
        if (code == dnnl_success && t != (int)result)
            code = run_copy(cpu, &pass->sides[t], false);
    }
    if (code == dnnl_success)
        code = dnnl_primitive_execute(pass->primitive, cpu->stream, TENSORS, words);
    if (code == dnnl_success)
        code = run_copy(cpu, &pass->sides[result], true);
    return code == dnnl_success ? dnnl_stream_wait(cpu->stream) : code;
}

/* Run a pass over tensors in our layout; with `accumulate` the result, of `count` floats, is
 * added. */
static enum status run(struct cpu *cpu, const struct convolution *conv, enum direction direction,
                       const void *const tensors[TENSORS], size_t batch, bool accumulate,
                       size_t count, struct error *err)
{
    struct conv_plan *plan = conv->plan;
    struct pass *pass = &plan->passes[direction];
    const enum tensor result = results[direction];
    void *data[TENSORS] = {onednn_handle(tensors[INPUT]), onednn_handle(tensors[WEIGHT]),
                           onednn_handle(tensors[OUTPUT])};
    float *sum = data[result];
    dnnl_status_t code;

    assert(batch > 0 && batch <= plan->max_batch);
    matrix_use_threads(cpu->threads);
    if (pass->batch != batch) {
        enum status status;

        release_pass(pass);
        status = make_pass(cpu, conv, direction, batch, pass, err);
        if (status != STATUS_OK)
            return status;
    }
    if (accumulate)
        data[result] = cpu->scratch + cpu->scratch_count - count;
    code = execute(cpu, pass, direction, data);
    if (code != dnnl_success)
        return onednn_fail(code, "a convolution", err);
    if (accumulate)
        cpu->sequence->add(sum, data[result], count);
    return STATUS_OK;
}

/* ---- the operations ---- */

enum status cpu_conv_forward(struct compute *c, const struct convolution *conv, const void *x,
                             void *y, size_t batch, struct error *err)
{
    struct cpu *cpu = (struct cpu *)c;
    const struct conv_plan *plan = conv->plan;
    const void *const tensors[TENSORS] = {x, conv->weight, y};
    bool relu = conv->activation == ACTIVATION_RELU;
    enum status status = run(cpu, conv, FORWARD, tensors, batch, false, 0, err);

    if (status != STATUS_OK || (!conv->bias && !relu))
        return status;
    PARALLEL_LOOP(batch * conv->filters * plan->points)
    for (size_t i = 0; i < batch * conv->filters; i++) {
        float *plane = (float *)y + i * plan->points;

        cpu->images->add_scalar(plane, plane, plan->points,
                                conv->bias ? conv->bias[i % conv->filters] : 0.0f, relu);
    }
    return STATUS_OK;
}

static void backward_bias(const struct cpu *cpu, const struct convolution *conv, const float *dy,
                          size_t batch, bool accumulate)
{
    const struct conv_plan *plan = conv->plan;

    PARALLEL_LOOP(batch * conv->filters * plan->points)
    for (size_t f = 0; f < conv->filters; f++) {
        double sum = 0.0;

        for (size_t i = 0; i < batch; i++)
            sum += cpu->images->sum(dy + (i * conv->filters + f) * plan->points, plan->points);
        conv->dbias[f] = (accumulate ? conv->dbias[f] : 0.0f) + (float)sum;
    }
}

enum status cpu_conv_backward_weight(struct compute *c, const struct convolution *conv,
                                     const void *x, const void *dy, size_t batch, bool accumulate,
                                     struct error *err)
{
    const void *const tensors[TENSORS] = {x, conv->dweight, dy};
    size_t count = conv->filters * conv->channels * conv->kernel * conv->kernel;
    enum status status =
        run((struct cpu *)c, conv, BACKWARD_WEIGHT, tensors, batch, accumulate, count, err);

    if (status == STATUS_OK && conv->dbias)
        backward_bias((const struct cpu *)c, conv, dy, batch, accumulate);
    return status;
}

enum status cpu_conv_backward_input(struct compute *c, const struct convolution *conv,
                                    const void *dy, void *dx, size_t batch, bool accumulate,
                                    struct error *err)
{
    const void *const tensors[TENSORS] = {dx, conv->weight, dy};
    size_t count = batch * conv->channels * conv->height * conv->width;

    return run((struct cpu *)c, conv, BACKWARD_INPUT, tensors, batch, accumulate, count, err);
}
