/*
 * report: `sparring report RUN... [--out DIR]` reads run directories and writes report.html,
 * report.md, report.json and report.csv.  Promises: the report depends on the run directories
 * alone, and the same runs give the same figures.  Needs: metrics, subprocess (gnuplot), option.
 * Called by main.c, compare (the report of its own runs), inspect and bench (JSON and text
 * helpers).
 */
#ifndef SPARRING_EXPERIMENTS_REPORT_REPORT_H
#define SPARRING_EXPERIMENTS_REPORT_REPORT_H

#include "common/base/error.h"
#include "common/base/strbuf.h"
#include "experiments/report/comparison.h"
#include "experiments/report/run.h"

#include <stddef.h>

/* The subcommand; argv[0] is its name.  Returns the program's exit code. */
int report_main(int argc, char **argv);

/* ---- for `sparring compare`, which makes the same report of its own runs ---- */

/* Runs and their comparison.  The comparison points into the list: do not copy. */
struct report {
    struct run_list list;
    struct comparison comparison;
};

/* Zero-initialise *r before.  `paths` as run_list_add takes them. */
enum status report_read(struct report *r, const char *const *paths, size_t count,
                        struct error *err);
void report_release(struct report *r);

/* Write the four files into `folder` (made when missing); `command` is the command line that makes
 * them again.  ret_problem gets a line about missing pictures, or "". */
enum status report_write(const struct report *r, const char *folder, const char *command,
                         char *ret_problem, size_t problem_size, struct error *err);

/* Verdict, reasons and failures for a terminal of 80 columns. */
void report_summarise(const struct report *r, struct strbuf *out);

/* Append `text`, broken at spaces before column 80, each line after `indent` spaces. */
void report_add_wrapped(struct strbuf *out, const char *text, unsigned indent);

#endif
