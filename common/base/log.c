/*
 * Formats each line into one buffer and writes it with one write(2), so lines of several processes
 * do not mix.  A line is cut at 4 kB.  The prefix and the level are the only state; they are set
 * before threads start and need no lock.
 */
#include "common/base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct {
    char prefix[96];
    enum log_level level;
} state = {.prefix = "sparring: ", .level = LOG_INFO};

void log_open(const char *program, int rank)
{
    if (rank < 0)
        (void)snprintf(state.prefix, sizeof(state.prefix), "%s: ", program);
    else
        (void)snprintf(state.prefix, sizeof(state.prefix), "%s[%d]: ", program, rank);
}

void log_set_level(enum log_level level)
{
    state.level = level;
}

int log_level_parse(const char *text, enum log_level *ret_level)
{
    static const char *const names[] = {"debug", "info", "warning", "error", "quiet"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(text, names[i]) == 0) {
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

__attribute__((format(printf, 3, 0))) static void
write_line(enum log_level level, const char *label, const char *format, va_list args)
{
    char line[4096];
    int used;
    int more;

    if (level < state.level)
        return;
    used = snprintf(line, sizeof(line), "%s%s", state.prefix, label);
    more = vsnprintf(line + used, sizeof(line) - (size_t)used - 1, format, args);
    if (more < 0)
        return;
    used += more;
    if (used > (int)sizeof(line) - 2)
        used = (int)sizeof(line) - 2;
    replace_control_characters(line, (size_t)used);
    line[used] = '\n';
    (void)!write(STDERR_FILENO, line, (size_t)used + 1);
}

#define DEFINE_LEVEL(name, level, label)                                                           \
    void name(const char *format, ...)                                                             \
    {                                                                                              \
        va_list args;                                                                              \
                                                                                                   \
        va_start(args, format);                                                                    \
        write_line(level, label, format, args);                                                    \
        va_end(args);                                                                              \
    }

DEFINE_LEVEL(log_debug, LOG_DEBUG, "debug: ")
DEFINE_LEVEL(log_info, LOG_INFO, "")
DEFINE_LEVEL(log_warning, LOG_WARNING, "warning: ")
DEFINE_LEVEL(log_error, LOG_ERROR, "error: ")

int log_failure(const struct error *err)
{
    log_error("%s", err->text[0] ? err->text : status_text(err->status));
    return status_exit_code(err->status);
}
