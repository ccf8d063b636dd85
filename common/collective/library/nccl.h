/*
 * nccl: what the CUDA module offers to the nccl backend: NCCL and its staging, without types of
 * CUDA or NCCL.  The backend (nccl_backend.c) communicates with the other ranks, the module with
 * the GPU.
 *
 * Buffers may be in device memory, or in host memory: those go through the device, page-locked
 * ones directly, others through a page-locked copy.  Staging memory grows to the largest operation
 * and is then kept.  What is in device memory must be complete when an operation is started: its
 * stream does not wait for others.
 * Threads: one caller at a time per struct nccl.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_NCCL_H
#define SPARRING_COMMON_COLLECTIVE_NCCL_H

#include "common/collective/collective.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NCCL_MODULE_VERSION 1u
#define NCCL_MODULE_SYMBOL  "sparring_cuda_collective"
#define NCCL_ID_BYTES       128 /* of a unique id */
#define NCCL_BATCH_MAX      COLLECTIVE_WORKS_MAX

struct nccl; /* one communicator */

/* What ranks exchange before they connect; the same layout on all of them. */
struct nccl_identity {
    uint32_t status;                 /* enum status: why this rank cannot, */
    char text[256];                  /* and its text */
    int32_t version;                 /* of the library: all ranks must have the same */
    int32_t device;                  /* of this host */
    unsigned char gpu[16];           /* its UUID */
    uint8_t colocated;               /* SPARRING_NCCL_COLOCATED is set */
    unsigned char id[NCCL_ID_BYTES]; /* of the rank that was asked for one */
};

struct nccl_config {
    unsigned rank, world_size;
    const unsigned char *id; /* NCCL_ID_BYTES of this attempt: never used before */
    int device;
    const char *name; /* shows in NCCL's own logs */
    int64_t deadline_ns;
    bool (*cancelled)(const void *argument); /* asked between polls */
    const void *argument;
};

enum nccl_progress { NCCL_IDLE, NCCL_BUSY, NCCL_FAILED };

struct nccl_ops {
    uint32_t version; /* NCCL_MODULE_VERSION */

    /* Is there a driver, a GPU, a library?  STATUS_UNAVAILABLE in one line. */
    enum status (*check)(struct error *err);

    /* Choose the device (the one that compute opened in this process, else local_rank modulo the
     * devices) and fill `ret`; make_id: with a fresh unique id. */
    enum status (*identify)(unsigned local_rank, bool make_id, struct nccl_identity *ret,
                            struct error *err);

    /* "NCCL 2.28.9 (headers 2.28.9)" */
    void (*describe)(char *text, size_t size);

    /* Blocks until all ranks are connected, the deadline has passed or cancelled returns true. */
    enum status (*open)(const struct nccl_config *config, struct nccl **ret, struct error *err);

    /* Launch one collective, or several sends and receives that progress together.  The args and
     * their buffers are borrowed until advance returns NCCL_IDLE.  Does not wait for other ranks.
     */
    enum status (*start)(struct nccl *n, const struct collective_args *const *args, unsigned count,
                         struct error *err);

    /* A step without blocking: NCCL_IDLE when the last start has ended and outputs are in place. */
    enum nccl_progress (*advance)(struct nccl *n, struct error *err);

    /* Page-lock host memory, register device memory; a failure costs speed only. */
    enum status (*register_memory)(struct nccl *n, void *base, size_t size, struct error *err);
    void (*unregister_memory)(struct nccl *n, void *base);

    /* In order (all ranks do) or by abort; false when the library does not come back: then nothing
     * is freed, and the process should end.  Blocks until deadline_ns. */
    bool (*close)(struct nccl *n, bool in_order, int64_t deadline_ns);
};

typedef const struct nccl_ops *nccl_module_fn(void);

#endif
