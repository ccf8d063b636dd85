/*
 * launch: `sparring launch`, which starts the ranks of a job on this host, and parameter servers
 * for them; with torchrun's flags and variables.
 */
#ifndef SPARRING_EXPERIMENTS_LAUNCH_LAUNCH_H
#define SPARRING_EXPERIMENTS_LAUNCH_LAUNCH_H

/*
 * argv[0] is "launch".  Blocks until everything it started has ended, and returns the exit code:
 * that of the rank or server that failed first (128 + n when signal n killed it), 0 when all ranks
 * ended with 0, 2 for a wrong command line, 4 past --timeout-ms.
 * The process may have no other threads and no other children.
 */
int launch_main(int argc, char **argv);

#endif
