/*
 * nccl_launch: operations as NCCL calls, from staging to the event that marks their completion.
 *
 * The communicator is non-blocking: a call may return before NCCL has finished it, and until
 * ncclCommGetAsyncError returns ncclSuccess no other call may be made and nothing may be issued to
 * the stream.  A launch therefore has two phases, which nccl_advance polls: LAUNCHING, then
 * RUNNING.  No call here waits for the GPU.
 */
#include "worker/compute/cuda/nccl_internal.h"

#include "common/tensor/half.h"

#include <string.h>

static ncclDataType_t type_of(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_FLOAT32:
        return ncclFloat32;
    case DTYPE_BFLOAT16:
        return ncclBfloat16;
    case DTYPE_FLOAT16:
        return ncclFloat16;
    case DTYPE_FLOAT64:
        return ncclFloat64;
    case DTYPE_INT32:
        return ncclInt32;
    case DTYPE_INT64:
        return ncclInt64;
    default:
        return ncclUint8;
    }
}

/* ---- reduction operators ---- */

/* The factor in the operation's own type, as NCCL reads it. */
static void encode_factor(enum dtype dtype, double factor, unsigned char scalar[8])
{
    float single = (float)factor;
    uint16_t half =
        dtype == DTYPE_FLOAT16 ? float16_from_float(single) : bfloat16_from_float(single);

    if (dtype == DTYPE_FLOAT64)
        memcpy(scalar, &factor, sizeof(factor));
    else if (dtype == DTYPE_FLOAT32)
        memcpy(scalar, &single, sizeof(single));
    else
        memcpy(scalar, &half, sizeof(half));
}

static enum status choose_op(struct nccl *n, struct nccl_item *item, struct error *err)
{
    static const ncclRedOp_t ops[REDUCE_OP_COUNT] = {
        [REDUCE_SUM] = ncclSum, [REDUCE_AVG] = ncclAvg, [REDUCE_PROD] = ncclProd,
        [REDUCE_MIN] = ncclMin, [REDUCE_MAX] = ncclMax,
    };
    unsigned char scalar[8] = {0};
    enum status status;

    item->op = ops[item->args->op];
    item->owns_op = false;
    if (!collective_call_reduces(item->args->call) || item->args->op != REDUCE_PREMUL_SUM)
        return STATUS_OK;
    encode_factor(item->args->dtype, item->args->factor, scalar);
    status = status_from_nccl(n->library,
                              n->library->RedOpCreatePreMulSum(&item->op, scalar,
                                                               type_of(item->args->dtype),
                                                               ncclScalarHostImmediate, n->comm),
                              n->comm, "ncclRedOpCreatePreMulSum", err);
    item->owns_op = status == STATUS_OK;
    return status;
}

static void destroy_ops(struct nccl *n)
{
    for (unsigned i = 0; i < n->item_count; i++) {
        if (n->items[i].owns_op)
            (void)n->library->RedOpDestroy(n->items[i].op, n->comm);
        n->items[i].owns_op = false;
    }
}

/* ---- calls ---- */

static char *block_at(const struct nccl_buffer *b, unsigned rank, size_t bytes)
{
    return (char *)b->device + rank * bytes;
}

/* Copy this rank's own block of gather, scatter and all_to_all, which is not sent. */
static cudaError_t copy_own_block(struct nccl *n, const struct nccl_item *item)
{
    const struct collective_args *a = item->args;
    size_t bytes = a->count * dtype_size(a->dtype);
    bool many_in = a->call != COLLECTIVE_GATHER, many_out = a->call != COLLECTIVE_SCATTER;
    const char *from;
    char *to;

    if (a->call != COLLECTIVE_GATHER && a->call != COLLECTIVE_SCATTER &&
        a->call != COLLECTIVE_ALL_TO_ALL)
        return cudaSuccess;
    if ((a->call != COLLECTIVE_ALL_TO_ALL && n->rank != a->root) || bytes == 0)
        return cudaSuccess;
    from = block_at(&item->input, many_in ? n->rank : 0, bytes);
    to = block_at(&item->output, many_out ? n->rank : 0, bytes);
    if (from == to)
        return cudaSuccess;
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, n->stream);
}

/* Gather, scatter and all_to_all: a send and a receive for each pair of ranks, within a group. */
static ncclResult_t enqueue_pairs(struct nccl *n, const struct nccl_item *item)
{
    const struct collective_args *a = item->args;
    size_t bytes = a->count * dtype_size(a->dtype);
    ncclDataType_t type = type_of(a->dtype);
    ncclResult_t result = ncclSuccess;
    bool all = a->call == COLLECTIVE_ALL_TO_ALL, gather = a->call == COLLECTIVE_GATHER;

    for (unsigned r = 0; r < n->world_size; r++) {
        bool sends = all || (gather ? r == a->root : n->rank == a->root);
        bool receives = all || (gather ? n->rank == a->root : r == a->root);

        if (r == n->rank)
            continue;
        if (sends && result == ncclSuccess)
            result = n->library->Send(block_at(&item->input, gather ? 0 : r, bytes), a->count, type,
                                      (int)r, n->comm, n->stream);
        if (receives && result == ncclSuccess)
            result = n->library->Recv(block_at(&item->output, all || gather ? r : 0, bytes),
                                      a->count, type, (int)r, n->comm, n->stream);
    }
    return result;
}

static ncclResult_t enqueue_call(struct nccl *n, const struct nccl_item *item)
{
    const struct nccl_library *l = n->library;
    const struct collective_args *a = item->args;
    ncclDataType_t type = type_of(a->dtype);
    void *in = item->input.device, *out = item->output.device;
    int root = (int)a->root;

    switch (a->call) {
    case COLLECTIVE_ALL_REDUCE:
        return l->AllReduce(in, out, a->count, type, item->op, n->comm, n->stream);
    case COLLECTIVE_REDUCE:
        return l->Reduce(in, out, a->count, type, item->op, root, n->comm, n->stream);
    case COLLECTIVE_REDUCE_SCATTER:
        return l->ReduceScatter(in, out, a->count, type, item->op, n->comm, n->stream);
    case COLLECTIVE_BROADCAST: /* the first argument is read only at the root */
        return l->Broadcast(n->rank == a->root ? in : out, out, a->count, type, root, n->comm,
                            n->stream);
    case COLLECTIVE_ALL_GATHER:
        return l->AllGather(in, out, a->count, type, n->comm, n->stream);
    case COLLECTIVE_SEND:
        return l->Send(in, a->count, type, root, n->comm, n->stream);
    case COLLECTIVE_RECV:
        return l->Recv(out, a->count, type, root, n->comm, n->stream);
    case COLLECTIVE_BARRIER:
        return l->AllReduce(n->device_memory.base, n->device_memory.base, 1, ncclInt32, ncclMax,
                            n->comm, n->stream);
    default:
        return enqueue_pairs(n, item);
    }
}

/* Always one group: pairs need it, and all errors are then reported by ncclGroupEnd. */
static enum status enqueue_all(struct nccl *n, struct error *err)
{
    ncclResult_t result = n->library->GroupStart();
    ncclResult_t end;

    if (result != ncclSuccess)
        return status_from_nccl(n->library, result, n->comm, "ncclGroupStart", err);
    for (unsigned i = 0; i < n->item_count && result == ncclSuccess; i++) {
        const struct nccl_item *item = &n->items[i];

        if (item->args->count > 0 || item->args->call == COLLECTIVE_BARRIER)
            result = enqueue_call(n, item);
        if (result == ncclInProgress)
            result = ncclSuccess;
    }
    end = n->library->GroupEnd();
    if (result == ncclSuccess)
        result = end;
    return status_from_nccl(n->library, result, n->comm, "nccl", err);
}

static enum status launch_items(struct nccl *n, struct error *err)
{
    enum status status = nccl_status_from_cuda(cudaSetDevice(n->device), "cudaSetDevice", err);

    if (status == STATUS_OK)
        status = nccl_stage(n, err);
    for (unsigned i = 0; i < n->item_count && status == STATUS_OK; i++)
        status = choose_op(n, &n->items[i], err);
    if (status == STATUS_OK)
        status = nccl_upload(n, err);
    for (unsigned i = 0; i < n->item_count && status == STATUS_OK; i++)
        status = nccl_status_from_cuda(copy_own_block(n, &n->items[i]), "cudaMemcpyAsync", err);
    return status == STATUS_OK ? enqueue_all(n, err) : status;
}

enum status nccl_start(struct nccl *n, const struct collective_args *const *args, unsigned count,
                       struct error *err)
{
    enum status status;

    n->item_count = count;
    for (unsigned i = 0; i < count; i++)
        n->items[i] = (struct nccl_item){.args = args[i]};
    status = launch_items(n, err);
    n->phase = status == STATUS_OK ? PHASE_LAUNCHING : PHASE_FAILED;
    return status;
}

/* ---- polling ---- */

static enum status start_downloads(struct nccl *n, struct error *err)
{
    enum status status = nccl_download_start(n, err);

    destroy_ops(n);
    if (status == STATUS_OK)
        status =
            nccl_status_from_cuda(cudaEventRecord(n->event, n->stream), "cudaEventRecord", err);
    return status;
}

static enum nccl_progress set_failed(struct nccl *n)
{
    n->phase = PHASE_FAILED;
    return NCCL_FAILED;
}

enum nccl_progress nccl_advance(struct nccl *n, struct error *err)
{
    ncclResult_t state = ncclSuccess;
    ncclResult_t result;
    cudaError_t event;

    if (n->phase == PHASE_IDLE)
        return NCCL_IDLE;
    if (n->phase == PHASE_FAILED || cudaSetDevice(n->device) != cudaSuccess) {
        (void)error_set(err, STATUS_INTERNAL, "nccl: the communicator has failed");
        return set_failed(n);
    }
    result = n->library->CommGetAsyncError(n->comm, &state);
    if (result != ncclSuccess)
        state = result;
    if (status_from_nccl(n->library, state, n->comm, "nccl", err) != STATUS_OK)
        return set_failed(n);
    if (n->phase == PHASE_LAUNCHING) {
        if (state == ncclInProgress)
            return NCCL_BUSY;
        if (start_downloads(n, err) != STATUS_OK)
            return set_failed(n);
        n->phase = PHASE_RUNNING;
    }
    event = cudaEventQuery(n->event);
    if (event == cudaErrorNotReady) {
        (void)cudaGetLastError(); /* otherwise this thread's next kernel launch would return it */
        return NCCL_BUSY;
    }
    if (nccl_status_from_cuda(event, "nccl's kernel", err) != STATUS_OK)
        return set_failed(n);
    nccl_download_finish(n);
    n->phase = PHASE_IDLE;
    return NCCL_IDLE;
}
