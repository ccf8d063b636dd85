/*
 * Formats each line into one buffer and writes it with one write(2), so lines of several processes
 * do not mix.  A text is cut at 4 kB.  The program's name, its rank, the form and the level are the
 * only state; they are set before threads start and need no lock.
 */
#include "common/base/log.h"

#include "common/base/clock.h"
#include "common/base/strbuf.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct {
    char program[64];
    int rank; /* < 0: none */
    enum log_level level;
    bool is_json;
} state = {.program = "sparring", .rank = -1, .level = LOG_INFO};

static const char *const level_names[] = {"debug", "info", "warning", "error", "quiet"};

void log_open(const char *program, int rank)
{
    const char *format = getenv("SPARRING_LOG_FORMAT");

    state.is_json = format && strcmp(format, "json") == 0;
    state.rank = rank;
    (void)snprintf(state.program, sizeof(state.program), "%s", program);
    if (format && format[0] != '\0' && strcmp(format, "text") != 0 && !state.is_json)
        log_warning("SPARRING_LOG_FORMAT is '%.100s', neither text nor json", format);
}

void log_set_level(enum log_level level)
{
    state.level = level;
}

int log_level_parse(const char *text, enum log_level *ret_level)
{
    for (size_t i = 0; i < sizeof(level_names) / sizeof(level_names[0]); i++) {
        if (strcmp(text, level_names[i]) == 0) {
            *ret_level = (enum log_level)i;
            return 1;
        }
    }
    return 0;
}

/* Texts may come from other processes: their escape sequences must not reach the terminal. */
static void replace_control_characters(char *line, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (((unsigned char)line[i] < ' ' && line[i] != '\n' && line[i] != '\t') || line[i] == 0x7f)
            line[i] = '?';
}

/* {"time":"...","level":"info","program":"sparring-worker","rank":1,"message":"..."}; false without
 * memory. */
static bool write_json(enum log_level level, const char *message)
{
    struct strbuf line = STRBUF_INIT;
    char now[64];
    bool is_written;

    clock_wall_text(now, sizeof(now));
    strbuf_addf(&line, "{\"time\":\"%s\",\"level\":\"%s\",\"program\":", now, level_names[level]);
    strbuf_add_json(&line, state.program);
    if (state.rank >= 0)
        strbuf_addf(&line, ",\"rank\":%d", state.rank);
    strbuf_add(&line, ",\"message\":");
    strbuf_add_json(&line, message);
    strbuf_add(&line, "}\n");
    is_written = strbuf_ok(&line);
    if (is_written)
        (void)!write(STDERR_FILENO, line.text, line.length);
    strbuf_release(&line);
    return is_written;
}

__attribute__((format(printf, 2, 0))) static void write_line(enum log_level level,
                                                             const char *format, va_list args)
{
    const bool is_labelled = level != LOG_INFO;
    char line[4096];
    int start;
    int used;

    if (level < state.level)
        return;
    start = snprintf(line, sizeof(line), "%s", state.program);
    if (state.rank >= 0)
        start += snprintf(line + start, sizeof(line) - (size_t)start, "[%d]", state.rank);
    start += snprintf(line + start, sizeof(line) - (size_t)start, ": %s%s",
                      is_labelled ? level_names[level] : "", is_labelled ? ": " : "");
    used = vsnprintf(line + start, sizeof(line) - (size_t)start - 1, format, args);
    if (used < 0)
        return;
    if (state.is_json && write_json(level, line + start))
        return;
    used += start;
    if (used > (int)sizeof(line) - 2)
        used = (int)sizeof(line) - 2;
    replace_control_characters(line, (size_t)used);
    line[used] = '\n';
    (void)!write(STDERR_FILENO, line, (size_t)used + 1);
}

#define DEFINE_LEVEL(name, level)                                                                  \
    void name(const char *format, ...)                                                             \
    {                                                                                              \
        va_list args;                                                                              \
                                                                                                   \
        va_start(args, format);                                                                    \
        write_line(level, format, args);                                                           \
        va_end(args);                                                                              \
    }

DEFINE_LEVEL(log_debug, LOG_DEBUG)
DEFINE_LEVEL(log_info, LOG_INFO)
DEFINE_LEVEL(log_warning, LOG_WARNING)
DEFINE_LEVEL(log_error, LOG_ERROR)

int log_failure(const struct error *err)
{
    log_error("%s", err->text[0] ? err->text : status_text(err->status));
    return status_exit_code(err->status);
}
