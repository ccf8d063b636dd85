/*
 * engine_hosts: the part of the plan that is for the hosts of an engine (--on).
 */
#ifndef SPARRING_EXPERIMENTS_LAUNCH_ENGINE_HOSTS_H
#define SPARRING_EXPERIMENTS_LAUNCH_ENGINE_HOSTS_H

#include "experiments/launch/plan.h"

/* Before placement_read: the engine, and the hosts that it has or --hosts names. */
enum status engine_hosts_read(struct plan *p, struct error *err);

/* After all else: STATUS_UNSUPPORTED for options that exclude an engine, STATUS_CONFIG where the
 * job takes more hosts than there are. */
enum status engine_hosts_check(struct plan *p, struct error *err);

#endif
