/*
 * nccl_library: one table per process, filled under pthread_once.
 *
 * NCCL rejects two ranks on one GPU of one host.  SPARRING_NCCL_COLOCATED=1 gives every process its
 * own host name (NCCL_HOSTID), so that NCCL treats them as different hosts and uses sockets: for
 * tests of correctness and recovery.  Ring and Simple are forced, because other algorithms wait for
 * kernels of other ranks, which share the GPU by time slices here.  The variables must be set
 * before NCCL's first call, and are not changed if the user has set them.
 */
#include "worker/compute/cuda/nccl_library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIBRARY_NAME "libnccl.so.2"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct nccl_library library;
static struct error failure; /* of loading; STATUS_OK: loaded */

bool nccl_is_colocated(void)
{
    const char *value = getenv("SPARRING_NCCL_COLOCATED");

    return value && strcmp(value, "1") == 0;
}

static void prepare_environment(void)
{
    char host[64];

    if (!nccl_is_colocated())
        return;
    (void)snprintf(host, sizeof(host), "sparring-%ld", (long)getpid());
    (void)setenv("NCCL_HOSTID", host, 0);
    (void)setenv("NCCL_ALGO", "Ring", 0);
    (void)setenv("NCCL_PROTO", "Simple", 0);
    (void)setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    (void)setenv("NCCL_IB_DISABLE", "1", 0);
}

/* POSIX: a pointer to an object can hold a function's address. */
static bool load_symbol(void *handle, const char *name, bool needed, void *ret)
{
    void *address = dlsym(handle, name);

    memcpy(ret, &address, sizeof(address));
    if (address || !needed)
        return true;
    (void)error_set(&failure, STATUS_UNAVAILABLE,
                    "%s lacks '%s': it is older than 2.14, this build's headers are %d.%d.%d",
                    LIBRARY_NAME, name, NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH);
    return false;
}

static void load(void)
{
    void *handle;
    const char *problem;
    bool complete = true;

    prepare_environment();
    handle = dlopen(LIBRARY_NAME, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!handle) {
        problem = dlerror();
        (void)error_set(&failure, STATUS_UNAVAILABLE, "no NCCL on this host: %s",
                        problem ? problem : LIBRARY_NAME);
        return;
    }
#define X(name, needed)                                                                            \
    complete = complete && load_symbol(handle, "nccl" #name, needed, &library.name);
    NCCL_FUNCTIONS(X)
#undef X
    if (complete && library.GetVersion(&library.version) != ncclSuccess)
        (void)error_set(&failure, STATUS_UNAVAILABLE, "%s does not report its version",
                        LIBRARY_NAME);
}

enum status nccl_library_get(const struct nccl_library **ret, struct error *err)
{
    (void)pthread_once(&once, load);
    if (failure.status != STATUS_OK)
        return error_set(err, failure.status, "%s", failure.text);
    *ret = &library;
    return STATUS_OK;
}

static enum status status_kind(ncclResult_t result)
{
    switch (result) {
    case ncclRemoteError:
        return STATUS_PEER_LOST;
    case ncclInvalidArgument:
    case ncclInvalidUsage:
        return STATUS_CONFIG;
    default:
        return STATUS_INTERNAL;
    }
}

enum status status_from_nccl(const struct nccl_library *l, ncclResult_t result, ncclComm_t comm,
                             const char *call, struct error *err)
{
    const char *more = NULL;
    char line[512] = "";

    if (result == ncclSuccess || result == ncclInProgress)
        return STATUS_OK;
    if (l->GetLastError)
        more = l->GetLastError(comm);
    (void)snprintf(line, sizeof(line), "%s", more ? more : "");
    line[strcspn(line, "\r\n")] = '\0';
    return error_set(err, status_kind(result), "%s: %s%s%s", call, l->GetErrorString(result),
                     line[0] != '\0' ? ": " : "", line);
}

enum status nccl_status_from_cuda(cudaError_t result, const char *call, struct error *err)
{
    if (result == cudaSuccess)
        return STATUS_OK;
    return error_set(err, result == cudaErrorMemoryAllocation ? STATUS_NO_MEMORY : STATUS_INTERNAL,
                     "%s: %s (%s)", call, cudaGetErrorString(result), cudaGetErrorName(result));
}
