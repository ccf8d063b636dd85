/*
 * compare: `sparring compare [EXPERIMENT.yaml]`.  Runs the modes of an experiment in turn and makes
 * the report of what they left behind.
 */
#ifndef SPARRING_EXPERIMENTS_COMPARE_COMPARE_H
#define SPARRING_EXPERIMENTS_COMPARE_COMPARE_H

/* The subcommand; argv[0] is its name.  Returns the program's exit code: 0 when the report was made
 * (also when some runs failed: it says so), 1 when no run succeeded, 5 when --fail-if applies. */
int compare_main(int argc, char **argv);

#endif
