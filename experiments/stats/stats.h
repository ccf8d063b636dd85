/*
 * stats: `sparring stats`, what a running parameter server says of itself, as JSON.
 */
#ifndef SPARRING_EXPERIMENTS_STATS_STATS_H
#define SPARRING_EXPERIMENTS_STATS_STATS_H

/* Returns the exit code. */
int stats_main(int argc, char **argv);

#endif
