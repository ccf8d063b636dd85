/*
 * trainer: the parts of one rank's run, opened and closed together.  Called by the training loop;
 * the other modules of worker/train get it as their context.  Threads: the training thread,
 * callbacks from the model and the synchronisation included.
 */
#ifndef SPARRING_WORKER_TRAIN_TRAINER_H
#define SPARRING_WORKER_TRAIN_TRAINER_H

#include "common/base/strbuf.h"
#include "common/collective/flight/flight.h"
#include "common/launch_env/launch_env.h"
#include "common/optimizer/optimizer.h"
#include "common/store/store.h"
#include "worker/compute/compute.h"
#include "worker/data/dataset.h"
#include "worker/data/loader.h"
#include "worker/data/sampler.h"
#include "worker/model/model.h"
#include "worker/options/options.h"
#include "worker/sync/sync.h"
#include "worker/train/active_features.h"
#include "worker/train/checkpointer.h"
#include "worker/train/ddp_record.h"
#include "worker/train/delay_schedule.h"
#include "worker/train/link_rate.h"
#include "worker/train/overlap.h"
#include "worker/train/recovery.h"
#include "worker/train/replicas.h"
#include "worker/train/run_record.h"
#include "worker/train/stopping.h"
#include "worker/train/upload_ahead.h"

struct trainer {
    const struct worker_options *options;
    const struct option_result *origins;
    const struct launch_env *launch;
    unsigned rank, world_size; /* among the ranks left */
    struct recovery recovery;
    struct checkpointer checkpointer;
    struct stopping stopping;
    struct compute *compute;
    struct dataset *train_set;
    struct dataset *test_set; /* NULL: none, or another rank evaluates */
    struct model *model;
    struct replicas *replicas; /* NULL: one device */
    struct sampler sampler;
    struct loader *loader;
    struct upload_ahead upload_ahead;
    struct optimizer_config optimizer_config;
    struct optimizer optimizer; /* its state is also the buffer for state fetched from the
                                   servers */
    struct store *store;        /* NULL: one rank, or an elastic job */
    struct flight *flight;      /* NULL: not --sync allreduce */
    struct sync *sync;
    struct strbuf manifest;
    struct run_facts facts;
    struct run_record record;
    struct ddp_record ddp;
    int64_t computed_ns;    /* end of the step's backward */
    size_t partition_bytes; /* as used; chosen if the option is 0 */
    struct link_rate link_rate;
    uint32_t *server_weights; /* owned; NULL: equal */
    struct consistency consistency;
    struct compression compression;
    struct delay_schedule delays;
    int64_t last_step_ns;  /* of the previous step */
    int64_t busy_delay_ns; /* the schedule's busy delay in it */
    struct overlap overlap;
    struct active_features active_features;
    uint64_t total_steps;       /* updates of the whole run */
    uint64_t updates_per_epoch; /* of the rank with the most samples */
    uint64_t skipped_steps;     /* updates made without this rank, which was late */
    bool announces_samples;     /* ranks exchange sample counts before each update */
    bool exhausted;             /* uneven: this rank has no inputs left in the epoch */
    bool graph_failure_logged;  /* why steps are not a CUDA graph */
    bool tracks_used;           /* parameters may have no gradient in a step: see used */
    bool *used;                 /* owned; per view: has a gradient in the last step */
};

/* Open all parts, up to and including the initial parameters, which are then equal on all ranks.
 * Blocks up to --timeout-ms for other ranks.  Call trainer_close also after a failure. */
enum status trainer_open(struct trainer *t, struct error *err);

/* failure NULL: the run has succeeded.  Blocks: with ps for Leave, up to --timeout-ms or 2 s after
 * a failure; on rank 0 also up to the linger time of the store that it serves. */
void trainer_close(struct trainer *t, const struct error *failure);

#endif
