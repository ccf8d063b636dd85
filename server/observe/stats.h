/*
 * stats: what the service says of itself, read from its jobs and its calls.  The Stats call and the
 * metrics page both come from here.
 */
#ifndef SPARRING_SERVER_OBSERVE_STATS_H
#define SPARRING_SERVER_OBSERVE_STATS_H

#include "common/wire/wire_stats.h"
#include "server/job/job.h"

#include <stdint.h>

/* Add what a job has counted, its round under way included, to *sum.  The service's lock is held.
 */
void stats_add_job(const struct job *j, struct stats_counters *sum);

/* Fill ret->job and ret->workers from a job that is not over.  The service's lock is held. */
void stats_read_job(const struct job *j, int64_t now_ns, struct server_stats *ret);

#endif
