/*
 * Draws one line on a terminal with a carriage return and the escape that clears a line.  Redraws
 * are limited to ten a second.  One thread at a time; no locks.
 */
#include "common/base/progress.h"

#include "common/base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define BAR_WIDTH     20
#define REDRAW_NS     100000000
#define DEFAULT_WIDTH 80

bool progress_can_draw(void)
{
    const char *terminal = getenv("TERM");

    return isatty(STDERR_FILENO) && terminal && strcmp(terminal, "dumb") != 0;
}

void progress_open(struct progress *p, const char *label, uint64_t total)
{
    memset(p, 0, sizeof(*p));
    (void)snprintf(p->label, sizeof(p->label), "%s", label);
    p->total = total;
    p->started_ns = clock_now_ns();
    p->active = progress_can_draw();
}

static int terminal_width(void)
{
    struct winsize size;

    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
        return DEFAULT_WIDTH;
    return size.ws_col;
}

void progress_draw(const char *text)
{
    (void)dprintf(STDERR_FILENO, "\r\033[K%.*s", terminal_width() - 1, text);
}

static void format_left(const struct progress *p, uint64_t done, int64_t now, char *text,
                        size_t size)
{
    double elapsed = (double)(now - p->started_ns) * 1e-9;
    double left;

    text[0] = '\0';
    if (done == 0) /* no rate is known yet */
        return;
    left = elapsed * (double)(p->total - done) / (double)done;
    (void)snprintf(text, size, " %u:%02u left", (unsigned)left / 60, (unsigned)left % 60);
}

void progress_update(struct progress *p, uint64_t done, const char *detail)
{
    char line[512];
    char bar[BAR_WIDTH + 1];
    char left[32] = "";
    int64_t now;
    size_t filled;

    if (!p->active)
        return;
    now = clock_now_ns();
    if (now - p->drawn_ns < REDRAW_NS && done != p->total)
        return;
    p->drawn_ns = now;
    if (done > p->total)
        done = p->total;
    filled = p->total ? (size_t)(done * BAR_WIDTH / p->total) : 0;
    memset(bar, '.', BAR_WIDTH);
    memset(bar, '#', filled);
    bar[BAR_WIDTH] = '\0';
    format_left(p, done, now, left, sizeof(left));
    (void)snprintf(line, sizeof(line), "%s [%s] %ju/%ju%s %s", p->label, bar, (uintmax_t)done,
                   (uintmax_t)p->total, left, detail);
    progress_draw(line);
}

void progress_close(struct progress *p)
{
    if (p->active)
        progress_draw("");
    p->active = false;
}
