/*
 * nccl_internal: one communicator with its stream and staging memory; internal to the CUDA module.
 */
#ifndef SPARRING_WORKER_COMPUTE_CUDA_NCCL_INTERNAL_H
#define SPARRING_WORKER_COMPUTE_CUDA_NCCL_INTERNAL_H

#include "common/collective/library/nccl.h"
#include "worker/compute/cuda/nccl_library.h"

enum memory_kind {
    MEMORY_DEVICE,   /* used by NCCL in place */
    MEMORY_PINNED,   /* host, page-locked: copied by the GPU */
    MEMORY_PAGEABLE, /* host: copied twice */
};

/* A caller's buffer and its staging addresses. */
struct nccl_buffer {
    void *user;
    size_t bytes;
    enum memory_kind kind;
    void *device; /* address for NCCL: user, or in the staging memory */
    void *pinned; /* MEMORY_PAGEABLE: address in the page-locked memory */
};

struct nccl_item {
    const struct collective_args *args;
    struct nccl_buffer input, output;
    ncclRedOp_t op;
    bool owns_op; /* destroyed once NCCL has completed the launch */
};

enum nccl_phase {
    PHASE_IDLE,
    PHASE_LAUNCHING, /* NCCL connects or enqueues: nothing may be issued to the stream yet */
    PHASE_RUNNING,   /* the event is recorded */
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
    struct nccl_item items[NCCL_BATCH_MAX]; /* of the running batch */
    unsigned item_count;
    struct nccl_staging device_memory, pinned_memory;
    struct nccl_region regions[NCCL_REGIONS_MAX];
    unsigned region_count;
    bool end_orderly; /* argument of end_communicator_thread: finalize before destroying ... */
    int64_t end_ns;   /* ... and the deadline of that */
};

/* nccl_staging.c: sizes and staging addresses of all items' buffers, then copies in and out. */
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
