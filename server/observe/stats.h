/*
 * stats: what a server says of itself, read from its jobs.  The Stats call and the metrics page
 * both come from here.
 */
#ifndef SPARRING_SERVER_OBSERVE_STATS_H
#define SPARRING_SERVER_OBSERVE_STATS_H

#include "server/job/job_table.h"

/* What the server counts and does now, but for its calls and its own start, in memory of the
 * caller's (free).  Takes the table's lock for a moment. */
enum status stats_read(struct job_table *t, struct server_stats **ret_stats, struct error *err);

#endif
