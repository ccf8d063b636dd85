/*
 * inspect: `sparring inspect RUN` reads the directory of a run (ended, failed, killed or running)
 * and prints what it was, how it ended, which rank caused a failure and the last operations of the
 * ranks.  Promises: reads files and /proc only; damaged files are reported, not fatal.  Needs:
 * report (JSON and text helpers), collective (flight recorder), option.  Called by main.c.
 */
#ifndef SPARRING_EXPERIMENTS_INSPECT_INSPECT_H
#define SPARRING_EXPERIMENTS_INSPECT_INSPECT_H

#include "common/base/strbuf.h"
#include "experiments/inspect/diagnosis.h"

/* The subcommand; argv[0] is its name.  Returns the program's exit code. */
int inspect_main(int argc, char **argv);

/* ---- its outputs ---- */

struct inspect_view {
    const struct evidence *evidence;
    const struct diagnosis *diagnosis;
    size_t operations; /* of each rank, the newest */
    int64_t rank;      /* show the operations of this one; -1: of all */
};

/* For a terminal of 80 columns. */
void inspect_text(const struct inspect_view *view, struct strbuf *out);

/* The same as one JSON object (experiments/METRICS.md). */
void inspect_json(const struct inspect_view *view, struct strbuf *out);

/* Chrome trace events (chrome://tracing, Perfetto): a process per rank with a thread for its newest
 * steps and one per group for every recorded operation, and a process per server with its newest
 * rounds; times in microseconds from the first recorder's opening, or the first step's begin. */
void inspect_trace(const struct evidence *e, struct strbuf *out);

#endif
