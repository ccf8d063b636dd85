/*
 * train: one rank's run from rendezvous to summary.  Called by main.
 */
#ifndef SPARRING_WORKER_TRAIN_TRAIN_H
#define SPARRING_WORKER_TRAIN_TRAIN_H

#include "common/launch_env/launch_env.h"
#include "worker/options/options.h"

/*
 * Run the job of `options` as rank launch->rank.  Blocks until the run has ended.  A failure is
 * published to the other ranks before this returns; if another rank failed first, *err names it.
 */
enum status train_run(const struct worker_options *options, const struct option_result *origins,
                      const struct launch_env *launch, struct error *err);

#endif
