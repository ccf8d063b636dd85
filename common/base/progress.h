/*
 * progress: a progress bar on stderr, redrawn at most ten times a second, only when stderr is a
 * terminal.
 */
#ifndef SPARRING_COMMON_BASE_PROGRESS_H
#define SPARRING_COMMON_BASE_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress {
    char label[64];
    uint64_t total; /* 0: unknown */
    int64_t started_ns;
    int64_t drawn_ns;
    bool active; /* progress_can_draw */
};

void progress_open(struct progress *p, const char *label, uint64_t total);

/* `detail` is shown after the bar, cut to the terminal's width. */
void progress_update(struct progress *p, uint64_t done, const char *detail);

/* Is stderr a terminal that can redraw a line? */
bool progress_can_draw(void);

/* Rewrite the line with a text cut to the terminal's width; "" clears it. */
void progress_draw(const char *text);

/* Clear the line. */
void progress_close(struct progress *p);

#endif
