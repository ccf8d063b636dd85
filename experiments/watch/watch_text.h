/*
 * watch_text: the same for a terminal.
 */
#ifndef SPARRING_EXPERIMENTS_WATCH_WATCH_TEXT_H
#define SPARRING_EXPERIMENTS_WATCH_WATCH_TEXT_H

#include "common/base/strbuf.h"
#include "experiments/watch/watched.h"

/* Lines of at most `width` columns, each with its end.  No more than `rows` of them; 0: as many as
 * it takes.  Left out first are cells that have not begun or have ended well. */
void watch_text(const struct watched *w, size_t width, size_t rows, struct strbuf *out);

#endif
