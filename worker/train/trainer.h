/*
 * trainer: the parts of one rank's run, opened and closed together.
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
#include "worker/train/ahead.h"
#include "worker/train/checkpointer.h"
#include "worker/train/ddp_record.h"
#include "worker/train/delay_schedule.h"
#include "worker/train/overlap.h"
#include "worker/train/recovery.h"
#include "worker/train/replicas.h"
#include "worker/train/run_record.h"
#include "worker/train/stopping.h"
#include "worker/train/wanted.h"

struct trainer {
    const struct worker_options *options;
    const struct option_result *origins;
    const struct launch_env *launch;
    unsigned rank, world_size; /* among the ranks that are left */
    struct recovery recovery;
    struct checkpointer checkpointer;
    struct stopping stopping;
    struct compute *compute;
    struct dataset *train_set;
    struct dataset *test_set; /* NULL: none, or not this rank's task */
    struct model *model;
    struct replicas *replicas; /* NULL: one device */
    struct sampler sampler;
    struct loader *loader;
    struct ahead ahead;
    struct optimizer_config optimizer_config;
    struct optimizer optimizer; /* without state when the servers update */
    struct store *store;        /* NULL: alone */
    struct flight *flight;      /* NULL: nothing to record */
    struct sync *sync;
    struct strbuf manifest;
    struct run_facts facts;
    struct run_record record;
    struct ddp_record ddp;
    int64_t computed_ns;      /* when the step's backward had ended */
    size_t partition_bytes;   /* as used: chosen when the option is 0 */
    uint32_t *server_weights; /* owned; NULL: equal */
    struct consistency consistency;
    struct compression compression;
    struct delay_schedule delays;
    int64_t last_step_ns; /* of the step before */
    int64_t burnt_ns;     /* what of that the schedule took, busy */
    struct overlap overlap;
    struct wanted wanted;
    uint64_t total_steps;       /* updates of the whole run */
    uint64_t updates_per_epoch; /* of the rank with the most samples */
    uint64_t skipped_steps;     /* that the others made while this rank was late */
    bool enlists;               /* ranks tell their sample counts before each update */
    bool exhausted;             /* uneven: this rank has no inputs left in the epoch */
    bool told_of_graphs;        /* why steps are not one launch */
    bool may_skip;              /* parameters may have no gradient in a step */
    bool *used;                 /* owned; per view, in the last step */
};

/* Everything up to and including the agreement on initial parameters.  On failure call
 * trainer_close too. */
enum status trainer_open(struct trainer *t, struct error *err);

/* failure NULL: an orderly end. */
void trainer_close(struct trainer *t, const struct error *failure);

#endif
