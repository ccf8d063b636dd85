/*
 * watch_text: the totals, what runs, a line for each cell.
 */
#include "experiments/watch/watch_text.h"

#include "common/base/file.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define BAR_WIDTH  24
#define NAME_WIDTH 40
#define QUIET_S    10

/* Append a line, cut to the width. */
static void add_line(struct strbuf *out, size_t width, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void add_line(struct strbuf *out, size_t width, const char *format, ...)
{
    char line[1024];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    strbuf_addf(out, "%.*s\n", (int)width, line);
}

static void bar_text(double done, double all, char text[BAR_WIDTH + 3])
{
    const size_t filled = all > 0 ? (size_t)(fmin(1, done / all) * BAR_WIDTH) : 0;

    text[0] = '[';
    for (size_t i = 0; i < BAR_WIDTH; i++)
        text[1 + i] = i < filled ? '=' : ' ';
    text[BAR_WIDTH + 1] = ']';
    text[BAR_WIDTH + 2] = '\0';
}

static void duration_text(double seconds, char *text, size_t size)
{
    if (!isfinite(seconds))
        (void)snprintf(text, size, "?");
    else if (seconds < 90)
        (void)snprintf(text, size, "%.0f s", ceil(seconds));
    else if (seconds < 5400)
        (void)snprintf(text, size, "%.0f min", seconds / 60);
    else
        (void)snprintf(text, size, "%.1f h", seconds / 3600);
}

static void add_totals(const struct watched *w, size_t width, struct strbuf *out)
{
    const struct watched_totals t = watched_totals(w);
    char bar[BAR_WIDTH + 3], left[32], more[96] = "";

    bar_text((double)(t.ok + t.failed), (double)t.planned, bar);
    duration_text(t.seconds_left, left, sizeof(left));
    if (t.ok + t.failed < t.planned && isfinite(t.seconds_left))
        (void)snprintf(more, sizeof(more), ", about %s left", left);
    add_line(out, width, "%s", w->title[0] != '\0' ? w->title : w->path);
    add_line(out, width, "%s %zu of %zu runs, %zu failed%s", bar, t.ok + t.failed, t.planned,
             t.failed, more);
}

static void add_run(const struct watched_cell *cell, const struct watched_run *run, size_t width,
                    struct strbuf *out)
{
    const struct watched_point *last =
        run->point_count > 0 ? &run->points[run->point_count - 1] : NULL;
    const double quiet_s = difftime(time(NULL), run->last_change);
    char bar[BAR_WIDTH + 3], planned[32] = "", loss[32] = "", quiet[64] = "";

    bar_text((double)run->steps, (double)run->planned_steps, bar);
    if (run->planned_steps > 0)
        (void)snprintf(planned, sizeof(planned), " of %ju", (uintmax_t)run->planned_steps);
    if (run->last_change > 0 && quiet_s > QUIET_S)
        (void)snprintf(quiet, sizeof(quiet), ", nothing new for %.0f s", quiet_s);
    add_line(out, width, "runs: %s%s%s, %u rank%s%s", run->name, cell->name[0] ? " of " : "",
             cell->name, run->ranks, run->ranks == 1 ? "" : "s", quiet);
    if (last && isfinite(last->loss))
        (void)snprintf(loss, sizeof(loss), ", loss %.4g", last->loss);
    if (last)
        add_line(out, width, "%s step %ju%s%s, %.4g samples/s", bar, (uintmax_t)run->steps, planned,
                 loss, last->samples_per_second);
}

/* "ring 3/10, server 2/10 (1 failed)" */
static void add_cell(const struct watched_cell *cell, size_t width, struct strbuf *out)
{
    struct strbuf modes = STRBUF_INIT;
    const bool is_long = strlen(cell->name) > NAME_WIDTH;

    for (size_t m = 0; m < cell->mode_count; m++) {
        const struct watched_mode *mode = &cell->modes[m];

        strbuf_addf(&modes, "%s%s %zu", m > 0 ? ", " : "", mode->name[0] ? mode->name : "runs",
                    mode->ok + mode->failed);
        if (mode->planned > 0)
            strbuf_addf(&modes, "/%zu", mode->planned);
        if (mode->failed > 0)
            strbuf_addf(&modes, " (%zu failed)", mode->failed);
    }
    add_line(out, width, "  %.*s%s%s%s", NAME_WIDTH, cell->name[0] ? cell->name : "all",
             is_long ? "..." : "", cell->mode_count > 0 ? ": " : "", modes.text);
    strbuf_release(&modes);
}

/* Cells by how much there is to say of them. */
enum interest { INTEREST_RUNNING, INTEREST_FAILED, INTEREST_BEGUN, INTEREST_OTHER, INTERESTS };

static enum interest interest_of(const struct watched_cell *cell)
{
    size_t running = 0, failed = 0, ended = 0, planned = 0;

    for (size_t m = 0; m < cell->mode_count; m++) {
        running += cell->modes[m].running;
        failed += cell->modes[m].failed;
        ended += cell->modes[m].ok + cell->modes[m].failed;
        planned += cell->modes[m].planned;
    }
    return running > 0                    ? INTEREST_RUNNING
           : failed > 0                   ? INTEREST_FAILED
           : ended > 0 && ended < planned ? INTEREST_BEGUN
                                          : INTEREST_OTHER;
}

/* How many cells of each interest there is room for. */
static size_t share_rows(const struct watched *w, size_t rows, size_t ret[INTERESTS])
{
    size_t left = w->cell_count, room = rows;

    for (enum interest k = 0; k < INTERESTS; k++)
        ret[k] = 0;
    for (size_t i = 0; i < w->cell_count; i++)
        ret[interest_of(&w->cells[i])]++;
    if (rows >= w->cell_count)
        return 0;
    room = rows > 0 ? rows - 1 : 0; /* one line says how many are left out */
    for (enum interest k = 0; k < INTERESTS; k++) {
        ret[k] = ret[k] < room ? ret[k] : room;
        room -= ret[k];
        left -= ret[k];
    }
    return left;
}

static size_t count_lines(const struct strbuf *out)
{
    size_t count = 0;

    for (size_t i = 0; i < out->length; i++)
        count += out->text[i] == '\n';
    return count;
}

static void cut_lines(struct strbuf *out, size_t rows)
{
    for (size_t i = 0; i < out->length; i++) {
        rows -= out->text[i] == '\n';
        if (rows > 0)
            continue;
        out->length = i + 1;
        out->text[out->length] = '\0';
    }
}

void watch_text(const struct watched *w, size_t width, size_t rows, struct strbuf *out)
{
    size_t room[INTERESTS], left_out, used;

    add_totals(w, width, out);
    for (size_t i = 0; i < w->cell_count; i++)
        for (size_t r = 0; r < w->cells[i].run_count; r++)
            if (w->cells[i].runs[r].state == WATCHED_RUNNING)
                add_run(&w->cells[i], &w->cells[i].runs[r], width, out);
    used = count_lines(out);
    left_out = share_rows(w, rows == 0 ? SIZE_MAX : rows > used ? rows - used : 0, room);
    for (size_t i = 0; i < w->cell_count; i++) {
        size_t *of_kind = &room[interest_of(&w->cells[i])];

        if (*of_kind > 0)
            add_cell(&w->cells[i], width, out);
        *of_kind -= *of_kind > 0;
    }
    if (left_out > 0)
        add_line(out, width, "  and %zu more cells", left_out);
    if (rows > 0)
        cut_lines(out, rows);
}
