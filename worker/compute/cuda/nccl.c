/*
 * nccl: the life of a communicator, from the unique id to the abort.
 *
 * Every wait for another rank has a deadline: connecting and finalizing are polled, and the NCCL
 * calls that cannot be polled (destroy, abort) run in a separate thread, which is joined with a
 * deadline.
 */
#include "worker/compute/cuda/nccl_internal.h"

#include "common/base/clock.h"
#include "common/base/condition.h"
#include "worker/compute/cuda/cuda_device.h"

#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define POLL_NS  50000
#define ABORT_MS 3000 /* to clean up after a failed attempt to connect */

static void poll_sleep(void)
{
    const struct timespec pause = {.tv_nsec = POLL_NS};

    (void)nanosleep(&pause, NULL);
}

/* ---- before connecting ---- */

static enum status count_devices(int *ret, struct error *err)
{
    cudaError_t result = cudaGetDeviceCount(ret);

    if (result == cudaErrorNoDevice || (result == cudaSuccess && *ret == 0))
        return error_set(err, STATUS_UNAVAILABLE, "no GPU here (CUDA_VISIBLE_DEVICES is %s)",
                         getenv("CUDA_VISIBLE_DEVICES") ? getenv("CUDA_VISIBLE_DEVICES")
                                                        : "not set");
    if (result != cudaSuccess)
        return error_set(err, STATUS_UNAVAILABLE, "no usable GPU: %s (%s)",
                         cudaGetErrorString(result), cudaGetErrorName(result));
    return STATUS_OK;
}

static enum status check_available(struct error *err)
{
    const struct nccl_library *library;
    int devices;
    enum status status = count_devices(&devices, err);

    return status == STATUS_OK ? nccl_library_get(&library, err) : status;
}

static enum status identify_device(unsigned local_rank, bool make_id, struct nccl_identity *ret,
                                   struct error *err)
{
    const struct nccl_library *library;
    struct cudaDeviceProp properties;
    ncclUniqueId id;
    int devices;
    enum status status = count_devices(&devices, err);

    _Static_assert(sizeof(id) == NCCL_ID_BYTES, "NCCL's unique id has another size");
    *ret = (struct nccl_identity){.colocated = nccl_is_colocated()};
    if (status == STATUS_OK)
        status = nccl_library_get(&library, err);
    if (status != STATUS_OK)
        return status;
    ret->version = library->version;
    ret->device = cuda_device_in_use();
    if (ret->device < 0)
        ret->device = (int)(local_rank % (unsigned)devices);
    status = nccl_status_from_cuda(cudaGetDeviceProperties(&properties, ret->device),
                                   "cudaGetDeviceProperties", err);
    if (status == STATUS_OK)
        status = nccl_status_from_cuda(cudaSetDevice(ret->device), "cudaSetDevice", err);
    if (status != STATUS_OK)
        return status;
    memcpy(ret->gpu, properties.uuid.bytes, sizeof(ret->gpu));
    if (!make_id)
        return STATUS_OK;
    status = status_from_nccl(library, library->GetUniqueId(&id), NULL, "ncclGetUniqueId", err);
    if (status == STATUS_OK)
        memcpy(ret->id, &id, sizeof(id));
    return status;
}

static void version_text(int version, char *text, size_t size)
{
    int unit = version >= 10000 ? 10000 : 1000; /* NCCL_VERSION(X, Y, Z) */

    (void)snprintf(text, size, "%d.%d.%d", version / unit, version % unit / 100, version % 100);
}

static void describe_version(char *text, size_t size)
{
    const struct nccl_library *library;
    char headers[32], run_time[32] = "none";

    version_text(NCCL_VERSION_CODE, headers, sizeof(headers));
    if (nccl_library_get(&library, NULL) == STATUS_OK)
        version_text(library->version, run_time, sizeof(run_time));
    (void)snprintf(text, size, "NCCL %s (headers %s)", run_time, headers);
}

/* ---- closing ---- */

/* Poll until NCCL's pending call has completed or failed; ncclInProgress at the deadline. */
static ncclResult_t poll_until_complete(struct nccl *n, ncclResult_t result, int64_t deadline_ns)
{
    while (result == ncclSuccess || result == ncclInProgress) {
        ncclResult_t state = ncclSuccess;

        result = n->library->CommGetAsyncError(n->comm, &state);
        if (result == ncclSuccess)
            result = state;
        if (result != ncclInProgress)
            break;
        if (clock_now_ns() >= deadline_ns)
            return ncclInProgress;
        poll_sleep();
    }
    return result;
}

static void *end_communicator_thread(void *argument)
{
    struct nccl *n = argument;

    (void)cudaSetDevice(n->device);
    if (n->end_orderly &&
        poll_until_complete(n, n->library->CommFinalize(n->comm), n->end_ns) == ncclSuccess)
        (void)n->library->CommDestroy(n->comm);
    else
        (void)n->library->CommAbort(n->comm);
    return NULL;
}

/* Half of the time is for finalizing; a communicator that is not finalized by then is aborted. */
static bool end_communicator(struct nccl *n, bool orderly, int64_t deadline_ns)
{
    int64_t now_ns = clock_now_ns();
    struct timespec until = condition_until(deadline_ns);
    pthread_t thread;

    n->end_orderly = orderly;
    n->end_ns = now_ns + (deadline_ns - now_ns) / 2;
    if (pthread_create(&thread, NULL, end_communicator_thread, n) != 0)
        return false;
    if (pthread_clockjoin_np(thread, NULL, CLOCK_MONOTONIC, &until) == 0)
        return true;
    (void)pthread_detach(thread); /* it still uses n; see nccl_ops.close */
    return false;
}

static void release_region(struct nccl *n, unsigned index)
{
    struct nccl_region *region = &n->regions[index];

    if (region->handle)
        (void)n->library->CommDeregister(n->comm, region->handle);
    else
        (void)cudaHostUnregister(region->base);
    *region = n->regions[--n->region_count];
}

/* Handles of registered device memory belong to the communicator and end with it. */
static void release_device_regions(struct nccl *n, bool orderly)
{
    for (unsigned i = n->region_count; i > 0; i--) {
        if (orderly && n->regions[i - 1].handle)
            release_region(n, i - 1);
        else if (n->regions[i - 1].handle)
            n->regions[i - 1] = n->regions[--n->region_count];
    }
}

static bool close_nccl(struct nccl *n, bool orderly, int64_t deadline_ns)
{
    (void)cudaSetDevice(n->device);
    release_device_regions(n, orderly);
    if (n->comm && !end_communicator(n, orderly, deadline_ns))
        return false;
    while (n->region_count > 0)
        release_region(n, n->region_count - 1);
    nccl_staging_release(n);
    if (n->event)
        (void)cudaEventDestroy(n->event);
    if (n->stream)
        (void)cudaStreamDestroy(n->stream);
    (void)cudaGetLastError(); /* errors have been reported */
    free(n);
    return true;
}

/* ---- opening ---- */

static enum status make_stream(struct nccl *n, struct error *err)
{
    enum status status = nccl_status_from_cuda(cudaSetDevice(n->device), "cudaSetDevice", err);

    if (status == STATUS_OK)
        status = nccl_status_from_cuda(cudaStreamCreateWithFlags(&n->stream, cudaStreamNonBlocking),
                                       "cudaStreamCreate", err);
    if (status == STATUS_OK)
        status = nccl_status_from_cuda(cudaEventCreateWithFlags(&n->event, cudaEventDisableTiming),
                                       "cudaEventCreate", err);
    return status;
}

static enum status connect_ranks(struct nccl *n, const struct nccl_config *c, struct error *err)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    ncclResult_t state;
    ncclResult_t result;

    config.blocking = 0;
    config.commName = c->name;
    memcpy(&id, c->id, sizeof(id));
    state = n->library->CommInitRankConfig(&n->comm, (int)c->world_size, id, (int)c->rank, &config);
    while ((state == ncclSuccess || state == ncclInProgress) && n->comm) {
        result = n->library->CommGetAsyncError(n->comm, &state);
        if (result != ncclSuccess)
            state = result;
        if (state != ncclInProgress)
            break;
        if (c->cancelled(c->argument))
            return error_set(err, STATUS_PEER_LOST, "nccl: a rank was lost while connecting");
        if (clock_now_ns() >= c->deadline_ns)
            return error_set(err, STATUS_TIMEOUT,
                             "nccl: the ranks were not connected within the time-out");
        poll_sleep();
    }
    if (state == ncclInProgress)
        state = ncclInternalError; /* no communicator was created */
    return status_from_nccl(n->library, state, n->comm, "nccl, connecting", err);
}

static enum status open_nccl(const struct nccl_config *config, struct nccl **ret, struct error *err)
{
    struct nccl *n = calloc(1, sizeof(*n));
    enum status status;

    if (!n)
        return error_set(err, STATUS_NO_MEMORY, "nccl: cannot allocate %zu bytes", sizeof(*n));
    n->rank = config->rank;
    n->world_size = config->world_size;
    n->device = config->device;
    status = nccl_library_get(&n->library, err);
    if (status == STATUS_OK)
        status = make_stream(n, err);
    if (status == STATUS_OK)
        status = connect_ranks(n, config, err);
    if (status != STATUS_OK) {
        /* If closing times out, its memory is leaked: only the first error is reported. */
        (void)close_nccl(n, false, clock_deadline_ns(ABORT_MS));
        return status;
    }
    *ret = n;
    return STATUS_OK;
}

/* ---- registered memory ---- */

static enum status register_region(struct nccl *n, void *base, size_t size, struct error *err)
{
    struct cudaPointerAttributes attributes;
    struct nccl_region region = {.base = base};
    enum status status;

    if (n->region_count == NCCL_REGIONS_MAX)
        return error_set(err, STATUS_INVALID, "nccl: more than %d regions", NCCL_REGIONS_MAX);
    (void)cudaSetDevice(n->device);
    status = nccl_status_from_cuda(cudaPointerGetAttributes(&attributes, base),
                                   "cudaPointerGetAttributes", err);
    if (status == STATUS_OK && attributes.type == cudaMemoryTypeHost)
        return STATUS_OK; /* already page-locked */
    if (status == STATUS_OK && attributes.type == cudaMemoryTypeDevice) {
        if (!n->library->CommRegister || !n->library->CommDeregister)
            return error_set(err, STATUS_UNSUPPORTED, "this NCCL has no ncclCommRegister");
        status = status_from_nccl(n->library,
                                  n->library->CommRegister(n->comm, base, size, &region.handle),
                                  n->comm, "ncclCommRegister", err);
    } else if (status == STATUS_OK) {
        status = nccl_status_from_cuda(cudaHostRegister(base, size, cudaHostRegisterDefault),
                                       "cudaHostRegister", err);
    }
    (void)cudaGetLastError();
    if (status == STATUS_OK)
        n->regions[n->region_count++] = region;
    return status;
}

static void unregister_region(struct nccl *n, void *base)
{
    (void)cudaSetDevice(n->device);
    for (unsigned i = 0; i < n->region_count; i++) {
        if (n->regions[i].base == base) {
            release_region(n, i);
            return;
        }
    }
}

static const struct nccl_ops ops = {
    .version = NCCL_MODULE_VERSION,
    .check = check_available,
    .identify = identify_device,
    .describe = describe_version,
    .open = open_nccl,
    .start = nccl_start,
    .advance = nccl_advance,
    .register_memory = register_region,
    .unregister_memory = unregister_region,
    .close = close_nccl,
};

extern nccl_module_fn sparring_cuda_collective;

__attribute__((visibility("default"))) const struct nccl_ops *sparring_cuda_collective(void)
{
    return &ops;
}
