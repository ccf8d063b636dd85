/*
 * nccl_library: NCCL's functions, looked up at run time, so that the module loads on hosts without
 * NCCL and returns an error.  Compiled with the toolkit's nccl.h; the library's version may differ.
 */
#ifndef SPARRING_WORKER_COMPUTE_CUDA_NCCL_LIBRARY_H
#define SPARRING_WORKER_COMPUTE_CUDA_NCCL_LIBRARY_H

#include "common/base/error.h"

#include <nccl.h>
#include <stdbool.h>

/* name without its "nccl", needed: 1, optional: 0 (NULL where the library lacks it) */
#define NCCL_FUNCTIONS(X)                                                                          \
    X(GetVersion, 1)                                                                               \
    X(GetUniqueId, 1)                                                                              \
    X(GetErrorString, 1)                                                                           \
    X(CommInitRankConfig, 1) /* 2.14 */                                                            \
    X(CommGetAsyncError, 1)                                                                        \
    X(CommFinalize, 1) /* 2.14 */                                                                  \
    X(CommDestroy, 1)                                                                              \
    X(CommAbort, 1)                                                                                \
    X(RedOpCreatePreMulSum, 1) /* 2.11 */                                                          \
    X(RedOpDestroy, 1)                                                                             \
    X(AllReduce, 1)                                                                                \
    X(Broadcast, 1)                                                                                \
    X(Reduce, 1)                                                                                   \
    X(AllGather, 1)                                                                                \
    X(ReduceScatter, 1)                                                                            \
    X(Send, 1)                                                                                     \
    X(Recv, 1)                                                                                     \
    X(GroupStart, 1)                                                                               \
    X(GroupEnd, 1)                                                                                 \
    X(GetLastError, 0)   /* 2.13 */                                                                \
    X(CommRegister, 0)   /* 2.19 */                                                                \
    X(CommDeregister, 0) /* 2.19 */                                                                \
    X(MemAlloc, 0)       /* 2.19 */                                                                \
    X(MemFree, 0)        /* 2.19 */

struct nccl_library {
    int version; /* of the library, as NCCL_VERSION_CODE */
#define X(name, needed) __typeof__(&nccl##name) name;
    NCCL_FUNCTIONS(X)
#undef X
};

/* Loads the library once per process and never unloads it; any thread.  STATUS_UNAVAILABLE: no
 * libnccl.so.2, or one without a required function. */
enum status nccl_library_get(const struct nccl_library **ret, struct error *err);

/* True if several ranks may share one GPU (SPARRING_NCCL_COLOCATED=1). */
bool nccl_is_colocated(void);

/* STATUS_OK for ncclSuccess and ncclInProgress.  comm may be NULL. */
enum status status_from_nccl(const struct nccl_library *l, ncclResult_t result, ncclComm_t comm,
                             const char *call, struct error *err);

/* status_from_cuda for C. */
enum status nccl_status_from_cuda(cudaError_t result, const char *call, struct error *err);

#endif
