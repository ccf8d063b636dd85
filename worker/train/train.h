/*
 * train: one rank's run from rendezvous to summary.
 */
#ifndef SPARRING_WORKER_TRAIN_TRAIN_H
#define SPARRING_WORKER_TRAIN_TRAIN_H

#include "common/launch_env/launch_env.h"
#include "worker/options/options.h"

/*
 * Run the job that the options describe as the rank that `launch` says.  Blocks until it is done.
 * A failure is told to the other ranks before this returns; when another rank failed first, that
 * one is named.
 */
enum status train_run(const struct worker_options *options, const struct option_result *origins,
                      const struct launch_env *launch, struct error *err);

#endif
