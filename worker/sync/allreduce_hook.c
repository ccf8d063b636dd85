/*
 * Hooks without state: a bucket is reduced as float32, or as 16-bit floats, half the bytes.  The
 * 16-bit copy is in the scratch, shared memory of the size of the largest bucket; buckets are
 * reduced one after the other, so one scratch is enough.  Called by the thread that reduces the
 * bucket.
 *
 * Source: torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py.  Differs from PyTorch: the
 * division happens inside the reduction, which rounds to 16 bits once, at its end.
 */
#include "worker/sync/allreduce.h"

static enum status none_reduce(struct sync_allreduce *s, size_t index, struct error *err)
{
    const struct bucket *b = &s->plan.buckets[index];

    return allreduce_reduce(s, DTYPE_FLOAT32, s->grads + b->offset, b->count, index, true, err);
}

static void none_bytes(const struct sync_allreduce *s, size_t index, uint64_t *ret_tx,
                       uint64_t *ret_rx)
{
    allreduce_reduce_bytes(s, DTYPE_FLOAT32, s->plan.buckets[index].count, ret_tx, ret_rx);
}

const struct hook_ops hook_none = {
    .name = "none",
    .reduce = none_reduce,
    .expected_bytes = none_bytes,
};

/* ---- 16 bits ---- */

static enum dtype wire_dtype(const struct sync_allreduce *s)
{
    return s->config.hook == DDP_HOOK_FP16 ? DTYPE_FLOAT16 : DTYPE_BFLOAT16;
}

static enum status half_open(struct sync_allreduce *s, struct error *err)
{
    size_t widest = 0;

    for (size_t i = 0; i < s->plan.length; i++)
        if (s->plan.buckets[i].count > widest)
            widest = s->plan.buckets[i].count;
    return allreduce_open_scratch(s, widest * sizeof(uint16_t), err);
}

static enum status half_reduce(struct sync_allreduce *s, size_t index, struct error *err)
{
    const struct bucket *b = &s->plan.buckets[index];
    struct collective_args probe = {.call = COLLECTIVE_ALL_REDUCE,
                                    .dtype = wire_dtype(s),
                                    .op = s->equal_weights ? REDUCE_AVG : REDUCE_PREMUL_SUM,
                                    .order = s->order,
                                    .count = b->count};
    bool scales = collective_supports(s->group, &probe);
    float *data = s->grads + b->offset;
    enum status status;

    if (!scales) /* before rounding to 16 bits */
        reduce_scale(DTYPE_FLOAT32, data, s->equal_weights ? 1.0 / s->world_size : s->factor,
                     b->count);
    cast_from_float32(wire_dtype(s), s->scratch.base, data, b->count);
    status = allreduce_reduce(s, wire_dtype(s), s->scratch.base, b->count, index, scales, err);
    if (status == STATUS_OK)
        cast_to_float32(wire_dtype(s), data, s->scratch.base, b->count);
    return status;
}

static void half_bytes(const struct sync_allreduce *s, size_t index, uint64_t *ret_tx,
                       uint64_t *ret_rx)
{
    allreduce_reduce_bytes(s, wire_dtype(s), s->plan.buckets[index].count, ret_tx, ret_rx);
}

const struct hook_ops hook_fp16 = {
    .name = "fp16",
    .open = half_open,
    .reduce = half_reduce,
    .expected_bytes = half_bytes,
};

const struct hook_ops hook_bf16 = {
    .name = "bf16",
    .open = half_open,
    .reduce = half_reduce,
    .expected_bytes = half_bytes,
};
