/*
 * watch_json: what the page shows, as JSON.  The page's script, watch.js, is its only reader.
 */
#ifndef SPARRING_EXPERIMENTS_WATCH_WATCH_JSON_H
#define SPARRING_EXPERIMENTS_WATCH_WATCH_JSON_H

#include "common/base/strbuf.h"
#include "experiments/watch/watched.h"

/* Cells that changed after version `since`, the totals, and the runs that have points: on one line,
 * without its end. */
void watch_json(const struct watched *w, uint64_t since, struct strbuf *out);

#endif
