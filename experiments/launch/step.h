/*
 * step: a child that is a step of the job's engine (experiments/cluster), whose tasks run on other
 * hosts.
 */
#ifndef SPARRING_EXPERIMENTS_LAUNCH_STEP_H
#define SPARRING_EXPERIMENTS_LAUNCH_STEP_H

#include "experiments/launch/child_set.h"
#include "experiments/launch/plan.h"

/* As child_set_start: `tasks` processes of the request's program, from `host` of the plan on,
 * --ranks-per-host on each. */
enum status step_start(struct child_set *c, const struct plan *p, size_t index, unsigned host,
                       unsigned tasks, struct child_request *request, struct error *err);

#endif
