/*
 * stats: `sparring stats` prints the statistics of a running parameter server as JSON.  Promises:
 * one request, no effect on the job.  Needs: wire, rpc, option.  Called by main.c.
 */
#ifndef SPARRING_EXPERIMENTS_STATS_STATS_H
#define SPARRING_EXPERIMENTS_STATS_STATS_H

/* Returns the exit code. */
int stats_main(int argc, char **argv);

#endif
