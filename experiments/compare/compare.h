/*
 * compare: `sparring compare [EXPERIMENT.yaml]...` runs the modes of an experiment in turn and
 * makes the report of their run directories.  Promises: the design is written before the first run,
 * and each run is a separate job.  Needs: report, subprocess, option.  Called by main.c; bench uses
 * find_experiment.h.
 */
#ifndef SPARRING_EXPERIMENTS_COMPARE_COMPARE_H
#define SPARRING_EXPERIMENTS_COMPARE_COMPARE_H

/* The subcommand; argv[0] is its name.  Returns the program's exit code: 0 when the report was made
 * (also when some runs failed: the report lists them), 1 when no run succeeded, 5 when --fail-if
 * applies. */
int compare_main(int argc, char **argv);

#endif
