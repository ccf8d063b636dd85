/*
 * nccl_staging: host buffers are staged in GPU memory.
 *
 * A copy from pageable memory blocks the caller until the stream reaches it, and a stream behind a
 * collective whose peer has died never does.  The GPU therefore copies only from and to page-locked
 * memory; the CPU copies the rest, before the launch and after the event.
 */
#include "common/base/memory.h"
#include "worker/compute/cuda/nccl_internal.h"

#include <string.h>

#define STAGING_ALIGNMENT 512 /* bytes */

/* ---- the caller's buffers ---- */

static enum status memory_kind_at(const void *at, enum memory_kind *ret, struct error *err)
{
    struct cudaPointerAttributes attributes;
    cudaError_t result = cudaPointerGetAttributes(&attributes, at);

    if (result != cudaSuccess) {
        (void)cudaGetLastError(); /* clear the error, so that it does not fail the next call */
        return nccl_status_from_cuda(result, "cudaPointerGetAttributes", err);
    }
    switch (attributes.type) {
    case cudaMemoryTypeDevice:
    case cudaMemoryTypeManaged:
        *ret = MEMORY_DEVICE;
        break;
    case cudaMemoryTypeHost:
        *ret = MEMORY_PINNED;
        break;
    default:
        *ret = MEMORY_PAGEABLE;
        break;
    }
    return STATUS_OK;
}

/* A buffer counts as page-locked only if its first and its last byte are. */
static enum status classify_buffer(struct nccl_buffer *b, void *user, size_t bytes,
                                   struct error *err)
{
    enum memory_kind last = MEMORY_DEVICE;
    enum status status;

    *b = (struct nccl_buffer){.user = user, .bytes = bytes, .device = bytes > 0 ? user : NULL};
    if (bytes == 0)
        return STATUS_OK;
    status = memory_kind_at(user, &b->kind, err);
    if (status == STATUS_OK)
        status = memory_kind_at((const char *)user + bytes - 1, &last, err);
    if (status == STATUS_OK && last > b->kind)
        b->kind = last;
    return status;
}

/* ---- staging addresses ---- */

static void assign_staging(struct nccl_buffer *b, bool copied, size_t *device_bytes,
                           size_t *pinned_bytes, const struct nccl *n)
{
    if (b->bytes == 0)
        return;
    if (b->kind != MEMORY_DEVICE || copied) {
        if (n)
            b->device = (char *)n->device_memory.base + *device_bytes;
        *device_bytes += size_round_up(b->bytes, STAGING_ALIGNMENT);
    }
    if (b->kind == MEMORY_PAGEABLE) {
        if (n)
            b->pinned = (char *)n->pinned_memory.base + *pinned_bytes;
        *pinned_bytes += size_round_up(b->bytes, STAGING_ALIGNMENT);
    }
}

/* NCCL has no in-place all_to_all. */
static bool needs_copy(const struct nccl_item *item)
{
    return item->args->call == COLLECTIVE_ALL_TO_ALL && item->input.user == item->output.user;
}

/* n NULL: only compute the sizes. */
static void assign_all_staging(struct nccl_item *items, unsigned count, size_t *device_bytes,
                               size_t *pinned_bytes, const struct nccl *n)
{
    *device_bytes = STAGING_ALIGNMENT; /* for the barrier */
    *pinned_bytes = 0;
    for (unsigned i = 0; i < count; i++) {
        assign_staging(&items[i].input, needs_copy(&items[i]), device_bytes, pinned_bytes, n);
        assign_staging(&items[i].output, false, device_bytes, pinned_bytes, n);
    }
}

static void release_device(struct nccl *n)
{
    if (n->device_memory.by_nccl)
        (void)n->library->MemFree(n->device_memory.base);
    else
        (void)cudaFree(n->device_memory.base);
    n->device_memory = (struct nccl_staging){.base = NULL};
}

/* No operation is running, so freeing does not block. */
static enum status reserve_staging(struct nccl *n, size_t device_bytes, size_t pinned_bytes,
                                   struct error *err)
{
    enum status status = STATUS_OK;

    if (device_bytes > n->device_memory.size) {
        release_device(n);
        if (n->library->MemAlloc && n->library->MemFree)
            n->device_memory.by_nccl =
                n->library->MemAlloc(&n->device_memory.base, device_bytes) == ncclSuccess;
        if (!n->device_memory.by_nccl) {
            (void)cudaGetLastError();
            n->device_memory.base = NULL;
            status = nccl_status_from_cuda(cudaMalloc(&n->device_memory.base, device_bytes),
                                           "cudaMalloc for nccl's staging", err);
        }
        if (status == STATUS_OK)
            n->device_memory.size = device_bytes;
    }
    if (pinned_bytes > n->pinned_memory.size && status == STATUS_OK) {
        (void)cudaFreeHost(n->pinned_memory.base);
        n->pinned_memory = (struct nccl_staging){.base = NULL};
        status = nccl_status_from_cuda(
            cudaHostAlloc(&n->pinned_memory.base, pinned_bytes, cudaHostAllocDefault),
            "cudaHostAlloc for nccl's staging", err);
        if (status == STATUS_OK)
            n->pinned_memory.size = pinned_bytes;
    }
    return status;
}

static size_t input_bytes(const struct nccl *n, const struct collective_args *a)
{
    size_t bytes = a->count * dtype_size(a->dtype);

    switch (a->call) {
    case COLLECTIVE_BROADCAST:
        return n->rank == a->root ? bytes : 0;
    case COLLECTIVE_SCATTER:
        return n->rank == a->root ? bytes * n->world_size : 0;
    case COLLECTIVE_REDUCE_SCATTER:
    case COLLECTIVE_ALL_TO_ALL:
        return bytes * n->world_size;
    case COLLECTIVE_RECV:
    case COLLECTIVE_BARRIER:
        return 0;
    default:
        return bytes;
    }
}

static size_t output_bytes(const struct nccl *n, const struct collective_args *a)
{
    size_t bytes = a->count * dtype_size(a->dtype);

    switch (a->call) {
    case COLLECTIVE_REDUCE:
        return n->rank == a->root ? bytes : 0;
    case COLLECTIVE_GATHER:
        return n->rank == a->root ? bytes * n->world_size : 0;
    case COLLECTIVE_ALL_GATHER:
    case COLLECTIVE_ALL_TO_ALL:
        return bytes * n->world_size;
    case COLLECTIVE_SEND:
    case COLLECTIVE_BARRIER:
        return 0;
    default:
        return bytes;
    }
}

enum status nccl_stage(struct nccl *n, struct error *err)
{
    size_t device_bytes, pinned_bytes;
    enum status status = STATUS_OK;

    for (unsigned i = 0; i < n->item_count && status == STATUS_OK; i++) {
        struct nccl_item *item = &n->items[i];
        union {
            const void *given;
            void *user; /* only read */
        } input = {.given = item->args->input};

        status = classify_buffer(&item->input, input.user, input_bytes(n, item->args), err);
        if (status == STATUS_OK)
            status = classify_buffer(&item->output, item->args->output, output_bytes(n, item->args),
                                     err);
    }
    if (status != STATUS_OK)
        return status;
    assign_all_staging(n->items, n->item_count, &device_bytes, &pinned_bytes, NULL);
    status = reserve_staging(n, device_bytes, pinned_bytes, err);
    if (status == STATUS_OK)
        assign_all_staging(n->items, n->item_count, &device_bytes, &pinned_bytes, n);
    return status;
}

/* ---- copies ---- */

enum status nccl_upload(struct nccl *n, struct error *err)
{
    enum status status = STATUS_OK;

    for (unsigned i = 0; i < n->item_count && status == STATUS_OK; i++) {
        const struct nccl_buffer *b = &n->items[i].input;
        const void *from = b->user;

        if (b->bytes == 0 || b->device == b->user)
            continue;
        if (b->kind == MEMORY_PAGEABLE) {
            memcpy(b->pinned, b->user, b->bytes);
            from = b->pinned;
        }
        status = nccl_status_from_cuda(
            cudaMemcpyAsync(b->device, from, b->bytes, cudaMemcpyDefault, n->stream),
            "cudaMemcpyAsync to the GPU for nccl", err);
    }
    return status;
}

enum status nccl_download_start(struct nccl *n, struct error *err)
{
    enum status status = STATUS_OK;

    for (unsigned i = 0; i < n->item_count && status == STATUS_OK; i++) {
        const struct nccl_buffer *b = &n->items[i].output;

        if (b->bytes == 0 || b->device == b->user)
            continue;
        status = nccl_status_from_cuda(
            cudaMemcpyAsync(b->kind == MEMORY_PAGEABLE ? b->pinned : b->user, b->device, b->bytes,
                            cudaMemcpyDefault, n->stream),
            "cudaMemcpyAsync to the host for nccl", err);
    }
    return status;
}

void nccl_download_finish(struct nccl *n)
{
    for (unsigned i = 0; i < n->item_count; i++) {
        const struct nccl_buffer *b = &n->items[i].output;

        if (b->bytes > 0 && b->kind == MEMORY_PAGEABLE)
            memcpy(b->user, b->pinned, b->bytes);
    }
}

void nccl_staging_release(struct nccl *n)
{
    release_device(n);
    (void)cudaFreeHost(n->pinned_memory.base);
    n->pinned_memory = (struct nccl_staging){.base = NULL};
}
