/*
 * runs: `sparring runs` lists the run directories below a folder, and says of each what it was and
 * how it ended, by its manifest and summary alone.  Needs: report (run.h), option.  Called by
 * main.c.
 */
#ifndef SPARRING_EXPERIMENTS_RUNS_RUNS_H
#define SPARRING_EXPERIMENTS_RUNS_RUNS_H

/* The subcommand; argv[0] is its name.  Returns the program's exit code. */
int runs_main(int argc, char **argv);

#endif
