/*
 * pods: a job as pods of Kubernetes: `workers`, which each run this launcher with the ranks of one
 * host and a colocated server, and `servers` that stand alone.
 */
#ifndef SPARRING_EXPERIMENTS_LAUNCH_PODS_H
#define SPARRING_EXPERIMENTS_LAUNCH_PODS_H

#include "experiments/launch/plan.h"

/* The manifests, on standard output.  STATUS_UNSUPPORTED: pods cannot have such a plan. */
enum status pods_print(const struct plan *plan, struct error *err);

#endif
