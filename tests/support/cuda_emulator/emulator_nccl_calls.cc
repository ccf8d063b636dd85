/*
 * emulator_nccl_calls: the calls of the NCCL emulator: memory registration, operators, groups, and
 * the operations with the checks of their arguments.  Locking: see emulator_nccl.cc.
 */
#include "tests/support/cuda_emulator/emulator_nccl.h"

#include "common/tensor/half.h"

#include <cstring>

using namespace emulated_nccl;

static thread_local std::vector<std::pair<ncclComm_t, operation>> grouped;

/* ---- memory ---- */

extern "C" ncclResult_t ncclMemAlloc(void **ret, size_t size)
{
    return services()->malloc(ret, size) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

extern "C" ncclResult_t ncclMemFree(void *memory)
{
    return services()->free(memory) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

extern "C" ncclResult_t ncclCommRegister(const ncclComm_t n, void *memory, size_t size, void **ret)
{
    guard g(lock);
    ncclResult_t result = check_ready(n);

    if (result != ncclSuccess)
        return result;
    if (!services()->owns(memory, size))
        return refuse(ncclInvalidArgument, "ncclCommRegister: not device memory");
    *ret = new char;
    n->registered.insert(*ret);
    return ncclSuccess;
}

extern "C" ncclResult_t ncclCommDeregister(const ncclComm_t n, void *handle)
{
    guard g(lock);

    if (!n || n->registered.erase(handle) == 0)
        return refuse(ncclInvalidArgument, "ncclCommDeregister: not a handle");
    delete static_cast<char *>(handle);
    return ncclSuccess;
}

/* ---- operators ---- */

/* Read a scalar of the operator's type. */
static double read_scalar(const void *scalar, ncclDataType_t type)
{
    uint16_t half;
    float single;
    double whole;

    memcpy(&half, scalar, sizeof(half));
    if (type == ncclFloat16)
        return (double)float_from_float16(half);
    if (type == ncclBfloat16)
        return (double)float_from_bfloat16(half);
    memcpy(&single, scalar, sizeof(single));
    if (type == ncclFloat32)
        return (double)single;
    memcpy(&whole, scalar, sizeof(whole));
    return whole;
}

extern "C" ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *ret, void *scalar,
                                                 ncclDataType_t type,
                                                 ncclScalarResidence_t residence, ncclComm_t n)
{
    guard g(lock);
    ncclResult_t result = check_ready(n);

    if (result != ncclSuccess)
        return result;
    if (residence != ncclScalarHostImmediate ||
        (type != ncclFloat32 && type != ncclFloat64 && type != ncclFloat16 && type != ncclBfloat16))
        return refuse(ncclInvalidArgument, "the emulator scales floats, by a scalar of the host");
    n->ops[n->next_op] = {ncclSum, true, read_scalar(scalar, type)};
    n->op_types[n->next_op] = type;
    *ret = static_cast<ncclRedOp_t>(n->next_op++);
    return ncclSuccess;
}

extern "C" ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t n)
{
    guard g(lock);

    if (!n || n->ops.erase((int)op) == 0)
        return refuse(ncclInvalidArgument, "ncclRedOpDestroy: not an operator of the user's");
    return ncclSuccess;
}

/* ---- groups ---- */

extern "C" ncclResult_t ncclGroupStart()
{
    depth++;
    return ncclSuccess;
}

static ncclResult_t launch_group(ncclComm_t n)
{
    ncclResult_t result = check_ready(n);

    if (result != ncclSuccess)
        return result;
    for (const auto &call : grouped)
        if (call.first == n)
            n->pending.push_back(call.second);
    n->stage = LAUNCHING;
    n->pending_queries = random_pending_queries();
    n->state = n->pending_queries > 0 ? ncclInProgress : enqueue_pending(n);
    return n->state;
}

extern "C" ncclResult_t ncclGroupEnd()
{
    guard g(lock);
    std::set<ncclComm_t> comms;
    ncclResult_t result = group_error;

    if (depth == 0)
        return refuse(ncclInvalidUsage, "ncclGroupEnd without a begin");
    if (--depth > 0)
        return ncclSuccess;
    for (const auto &call : grouped)
        comms.insert(call.first);
    for (ncclComm_t n : comms) {
        if (group_error != ncclSuccess) { /* an error breaks all communicators of the group */
            n->state = group_error;
            n->stage = BROKEN;
        } else {
            ncclResult_t one = launch_group(n);

            result = one != ncclSuccess ? one : result;
        }
    }
    grouped.clear();
    group_error = ncclSuccess;
    return result;
}

/* ---- calls ---- */

static bool is_device_buffer(const void *memory, size_t bytes)
{
    return bytes == 0 || services()->owns(memory, bytes);
}

static ncclResult_t check_op(ncclComm_t n, operation &o, ncclRedOp_t op)
{
    if (o.kind > kind::reduce_scatter)
        return ncclSuccess;
    if (type_size(o.type) == 1)
        return refuse(ncclInvalidArgument, "the emulator does not reduce bytes");
    o.reduction = {op, false, 1};
    if (op >= 0 && op < ncclNumOps)
        return ncclSuccess;
    if (n->ops.count((int)op) == 0 || n->op_types[(int)op] != o.type)
        return refuse(ncclInvalidArgument, "no such operator, or one for another type");
    o.reduction = n->ops[(int)op];
    return ncclSuccess;
}

/* Bytes of its input or output that an operation accesses. */
static size_t touched_bytes(const comm &c, const operation &o, bool input)
{
    size_t bytes = o.count * type_size(o.type);

    switch (o.kind) {
    case kind::reduce:
        return input || c.rank == o.root ? bytes : 0;
    case kind::broadcast:
        return !input || c.rank == o.root ? bytes : 0;
    case kind::reduce_scatter:
        return input ? bytes * (size_t)c.ranks : bytes;
    case kind::all_gather:
        return input ? bytes : bytes * (size_t)c.ranks;
    case kind::send:
        return input ? bytes : 0;
    case kind::recv:
        return input ? 0 : bytes;
    default:
        return bytes;
    }
}

static ncclResult_t submit_operation(ncclComm_t n, operation o, ncclRedOp_t op)
{
    guard g(lock);
    ncclResult_t result = check_ready(n);

    if (result != ncclSuccess)
        return result;
    if (o.root < 0 || o.root >= n->c->ranks || o.type < 0 || o.type >= ncclNumTypes)
        return refuse(ncclInvalidArgument, "root, peer or type");
    if (services()->device_of(o.stream) != n->c->device)
        return refuse(ncclInvalidArgument, "not a stream of the communicator's device");
    if (!is_device_buffer(o.input, touched_bytes(*n->c, o, true)) ||
        !is_device_buffer(o.output, touched_bytes(*n->c, o, false)))
        return refuse(ncclInvalidArgument, "a buffer is not all device memory");
    result = check_op(n, o, op);
    if (result != ncclSuccess)
        return result;
    (void)ncclGroupStart();
    grouped.push_back({n, o});
    return ncclGroupEnd();
}

extern "C" ncclResult_t ncclAllReduce(const void *input, void *output, size_t count,
                                      ncclDataType_t type, ncclRedOp_t op, ncclComm_t n,
                                      cudaStream_t stream)
{
    return submit_operation(n, {kind::all_reduce, input, output, count, type, {}, 0, stream}, op);
}

extern "C" ncclResult_t ncclReduce(const void *input, void *output, size_t count,
                                   ncclDataType_t type, ncclRedOp_t op, int root, ncclComm_t n,
                                   cudaStream_t stream)
{
    return submit_operation(n, {kind::reduce, input, output, count, type, {}, root, stream}, op);
}

extern "C" ncclResult_t ncclReduceScatter(const void *input, void *output, size_t count,
                                          ncclDataType_t type, ncclRedOp_t op, ncclComm_t n,
                                          cudaStream_t stream)
{
    return submit_operation(n, {kind::reduce_scatter, input, output, count, type, {}, 0, stream},
                            op);
}

extern "C" ncclResult_t ncclBroadcast(const void *input, void *output, size_t count,
                                      ncclDataType_t type, int root, ncclComm_t n,
                                      cudaStream_t stream)
{
    return submit_operation(n, {kind::broadcast, input, output, count, type, {}, root, stream},
                            ncclSum);
}

extern "C" ncclResult_t ncclAllGather(const void *input, void *output, size_t count,
                                      ncclDataType_t type, ncclComm_t n, cudaStream_t stream)
{
    return submit_operation(n, {kind::all_gather, input, output, count, type, {}, 0, stream},
                            ncclSum);
}

extern "C" ncclResult_t ncclSend(const void *input, size_t count, ncclDataType_t type, int peer,
                                 ncclComm_t n, cudaStream_t stream)
{
    return submit_operation(n, {kind::send, input, nullptr, count, type, {}, peer, stream},
                            ncclSum);
}

extern "C" ncclResult_t ncclRecv(void *output, size_t count, ncclDataType_t type, int peer,
                                 ncclComm_t n, cudaStream_t stream)
{
    return submit_operation(n, {kind::recv, nullptr, output, count, type, {}, peer, stream},
                            ncclSum);
}
