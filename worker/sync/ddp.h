/*
 * ddp: the settings of DistributedDataParallel.  Filled by worker/options, read by allreduce*.c
 * and worker/train (trainer, ddp_record).
 * Source: torch/nn/parallel/distributed.py, torch/distributed/algorithms.
 */
#ifndef SPARRING_WORKER_SYNC_DDP_H
#define SPARRING_WORKER_SYNC_DDP_H

#include <stdbool.h>
#include <stdint.h>

enum ddp_hook { /* encoding of a bucket on the wire */
                DDP_HOOK_NONE,
                DDP_HOOK_FP16,
                DDP_HOOK_BF16,
                DDP_HOOK_POWERSGD,
};

enum ddp_uneven {           /* when the ranks' inputs differ in length */
                  DDP_EVEN, /* they do not: no exchange of counts */
                  DDP_JOIN, /* ranks without inputs shadow the others' operations with zeros */
                  DDP_STOP, /* every rank fails once one has no inputs; the error has the first such
                               rank */
};

struct ddp_config {
    double bucket_cap_mb; /* MiB; < 0: PyTorch's default, 25 with a first bucket of 1 */
    int comm_cpu;         /* core of the communication thread; < 0: any */
    bool broadcast_buffers;
    bool find_unused_parameters;
    bool static_graph; /* all steps use what the first step uses */
    enum ddp_uneven uneven;
    bool divide_by_active;  /* with DDP_JOIN: instead of by the world size */
    bool weight_by_samples; /* the mean over samples, not over ranks */
    enum ddp_hook hook;
    unsigned powersgd_rank;          /* of the approximation, >= 1 */
    uint64_t powersgd_start;         /* plain all-reduce before this step */
    double powersgd_min_rate;        /* compress only what becomes smaller by more than this */
    bool powersgd_no_error_feedback; /* PyTorch's defaults are error feedback ... */
    bool powersgd_no_warm_start;     /* ... and warm start */
};

#define DDP_DEFAULTS                                                                               \
    ((struct ddp_config){.bucket_cap_mb = -1,                                                      \
                         .comm_cpu = -1,                                                           \
                         .broadcast_buffers = true,                                                \
                         .powersgd_rank = 1,                                                       \
                         .powersgd_start = 10,                                                     \
                         .powersgd_min_rate = 2})

#endif
