/*
 * launch: `sparring launch` starts the ranks of a job on this host, and parameter servers for them,
 * with torchrun's flags and variables.  Promises: it ends only after every process that it started,
 * and none survives it.  Needs: subprocess (mpirun watch), option, shard_map.  Called by main.c.
 */
#ifndef SPARRING_EXPERIMENTS_LAUNCH_LAUNCH_H
#define SPARRING_EXPERIMENTS_LAUNCH_LAUNCH_H

/*
 * argv[0] is "launch".  Blocks until every child has ended, and returns the exit code:
 * that of the rank or server that failed first (128 + n when signal n killed it), after a stop
 * signal that of a rank that obeyed it, 0 when all ranks ended with 0, 2 for a wrong command line,
 * 4 past --timeout-ms.  7: ranks were lost (--on-rank-loss) and the others ended with 0.  8: this
 * machine did not keep to the emulated network.  The process may have no other threads and no other
 * children.
 */

int launch_main(int argc, char **argv);

#endif
