/*
 * run_plan: OUT/plan.json, with everything that decides what the runs of a sweep are: programs,
 * command lines, the files that they name, and the design.  A sweep that is started again in the
 * same folder goes on where it was if none of it has changed; values may be added to its axes.
 */
#ifndef SPARRING_EXPERIMENTS_COMPARE_RUN_PLAN_H
#define SPARRING_EXPERIMENTS_COMPARE_RUN_PLAN_H

#include "experiments/compare/sweep.h"

/*
 * Compare the plan of the sweep with that of its folder, if there is one, and write it.  Set the
 * blocks of every cell that are there already; what has run of a later block is moved to lost/
 * beside runs/, because the runs of a block belong together in time.
 * STATUS_CONFIG lists what has changed.  STATUS_EXISTS: the folder holds runs without a plan.
 */
enum status run_plan_resume(struct compare_sweep *s, struct error *err);

#endif
