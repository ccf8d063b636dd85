/*
 * ddp_record: DistributedDataParallel's logging data and the times of its buckets, as records of a
 * rank.  Names of figures are PyTorch's (DDPLoggingData) where it has them; experiments/METRICS.md
 * defines them.
 */
#ifndef SPARRING_WORKER_TRAIN_DDP_RECORD_H
#define SPARRING_WORKER_TRAIN_DDP_RECORD_H

#include "common/metrics/metrics.h"
#include "worker/sync/sync.h"
#include "worker/train/run_record.h"

/* Sums over the run; zeroed at the start. */
struct ddp_record {
    uint64_t steps;
    int64_t forward_ns, backward_ns, comm_ns, overlap_ns;
    size_t unused_bytes; /* of the parameters that had no gradient in the last step */
    bool used_changed;   /* the used set of some step differs from the first one's */
    bool *used_first;    /* owned; per view */
    bool used_known;     /* used_first is filled */
};

/* Kind `ddp`, before the first step. */
enum status ddp_record_start(struct ddp_record *r, struct metrics *m, const struct run_facts *facts,
                             const struct sync *sync, struct error *err);

/* Kind `bucket`, one per bucket, in the first 10 steps and every 100th; and the sums.
 * computed_ns: when this rank's backward had ended. */
enum status ddp_record_step(struct ddp_record *r, struct metrics *m, const struct sync *sync,
                            const struct step_record *step, int64_t computed_ns, struct error *err);

/* What this rank used in a step. */
void ddp_record_used(struct ddp_record *r, const struct tensor_table *table, const bool *used);

/* Kind `ddp_runtime`, at the end. */
enum status ddp_record_end(const struct ddp_record *r, struct metrics *m, struct error *err);

void ddp_record_release(struct ddp_record *r);

#endif
