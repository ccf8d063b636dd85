/*
 * ddp_record: DistributedDataParallel's logging data and the times of its buckets, as records of a
 * rank.  Figures have PyTorch's names (DDPLoggingData) where it defines them;
 * experiments/METRICS.md defines all.  Called by the trainer, train_step and finish, on the
 * training thread.
 */
#ifndef SPARRING_WORKER_TRAIN_DDP_RECORD_H
#define SPARRING_WORKER_TRAIN_DDP_RECORD_H

#include "common/metrics/metrics.h"
#include "worker/sync/sync.h"
#include "worker/train/run_record.h"

/* Sums over the run; must be zeroed before ddp_record_start. */
struct ddp_record {
    uint64_t steps;
    int64_t forward_ns, backward_ns, comm_ns, overlap_ns;
    size_t unused_bytes; /* of the parameters without a gradient in the last step */
    bool used_changed;   /* the used set of some step differs from the first one's */
    bool *used_first;    /* owned; per view */
    bool used_known;     /* used_first is filled */
};

/* Write a record of kind `ddp`.  Call before the first step. */
enum status ddp_record_start(struct ddp_record *r, struct metrics *m, const struct run_facts *facts,
                             const struct sync *sync, struct error *err);

/* Add a step to the sums; in the first 10 steps and every 100th, write a record of kind `bucket`
 * for each bucket.  computed_ns: end of this rank's backward. */
enum status ddp_record_step(struct ddp_record *r, struct metrics *m, const struct sync *sync,
                            const struct step_record *step, int64_t computed_ns, struct error *err);

/* Set the parameters that this rank used in a step; used[] is per view of `table`. */
void ddp_record_used(struct ddp_record *r, const struct tensor_table *table, const bool *used);

/* Write the averages as a record of kind `ddp_runtime`.  Call after the last step. */
enum status ddp_record_end(const struct ddp_record *r, struct metrics *m, struct error *err);

void ddp_record_release(struct ddp_record *r);

#endif
