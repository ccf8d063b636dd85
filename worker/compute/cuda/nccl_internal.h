/*
 * nccl_internal: one communicator with its stream and staging memory; inside the CUDA module.
 */
#ifndef SPARRING_WORKER_COMPUTE_CUDA_NCCL_INTERNAL_H
#define SPARRING_WORKER_COMPUTE_CUDA_NCCL_INTERNAL_H

#include "common/collective/library/nccl.h"
#include "worker/compute/cuda/nccl_library.h"

enum memory_kind {
    MEMORY_DEVICE,   /* NCCL works in it */
    MEMORY_PINNED,   /* host, page-locked: copied by the GPU */
    MEMORY_PAGEABLE, /* host: copied twice */
};

/* A caller's buffer, and where its bytes are staged. */
struct nccl_buffer {
    void *user;
    size_t bytes;
    enum memory_kind kind;
    void *device; /* what NCCL gets: user, or a place in the staging memory */
    void *pinned; /* MEMORY_PAGEABLE: a place in the page-locked memory */
};

struct nccl_item {
    const struct collective_args *args;
    struct nccl_buffer input, output;
    ncclRedOp_t op;
    bool owns_op; /* destroyed once the launch has settled */
};

enum nccl_phase {
    PHASE_IDLE,
    PHASE_LAUNCHING, /* NCCL connects or enqueues: nothing may be put on the stream yet */
    PHASE_FLYING,    /* the event is recorded */
    PHASE_FAILED,
};

/* Memory that grows to the largest operation. */
struct nccl_staging {
    void *base;
    size_t size;
    bool by_nccl; /* ncclMemAlloc */
};

struct nccl_region {
    void *base;
    void *handle; /* ncclCommRegister's; NULL: host memory that we page-locked */
};

#define NCCL_REGIONS_MAX 8

struct nccl {
    const struct nccl_library *library;
    ncclComm_t comm;
    cudaStream_t stream;
    cudaEvent_t event;
    unsigned rank, world_size;
    int device;
    enum nccl_phase phase;
    struct nccl_item items[NCCL_BATCH_MAX]; /* of the batch under way */
    unsigned item_count;
    struct nccl_staging device_memory, pinned_memory;
    struct nccl_region regions[NCCL_REGIONS_MAX];
    unsigned region_count;
    bool ends_in_order; /* for the thread that ends the communicator ... */
    int64_t end_ns;     /* ... and until when it may take its time */
};

/* nccl_staging.c: sizes and places of all items' buffers; then copies in and out. */
enum status nccl_stage(struct nccl *n, struct error *err);
enum status nccl_upload(struct nccl *n, struct error *err);
enum status nccl_download_start(struct nccl *n, struct error *err);
void nccl_download_finish(struct nccl *n);
void nccl_staging_release(struct nccl *n);

/* nccl_launch.c */
enum status nccl_start(struct nccl *n, const struct collective_args *const *args, unsigned count,
                       struct error *err);
enum nccl_progress nccl_advance(struct nccl *n, struct error *err);

#endif
