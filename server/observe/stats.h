/*
 * stats: the statistics of a server, read from its jobs.  Source of both the Stats call and the
 * metrics page.
 */
#ifndef SPARRING_SERVER_OBSERVE_STATS_H
#define SPARRING_SERVER_OBSERVE_STATS_H

#include "server/job/job_table.h"

/* The current counters and state, without those of calls and the service's start time, which the
 * caller adds.  Allocates *ret_stats (free).  Takes the table's lock briefly. */
enum status stats_read(struct job_table *t, struct server_stats **ret_stats, struct error *err);

#endif
