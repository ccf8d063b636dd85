/*
 * option_check: do the programs take the options of an experiment?  Asked before the first run, so
 * that a misspelt axis or a value that is none does not cost the runs of its cells.
 */
#ifndef SPARRING_EXPERIMENTS_COMPARE_OPTION_CHECK_H
#define SPARRING_EXPERIMENTS_COMPARE_OPTION_CHECK_H

#include "experiments/compare/sweep.h"

/*
 * Starts the programs of the sweep, for every mode in as many cells as have all values of the axes.
 * STATUS_CONFIG: what a program says against its command line, with file and line.  What it finds
 * out later, such as a file that is missing, is left to the runs; with an engine `launch` is not
 * asked, as it would look at this host.
 */
enum status option_check(struct compare_sweep *s, struct error *err);

#endif
