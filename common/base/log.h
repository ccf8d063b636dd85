/*
 * log: lines on stderr, for people.  Only main functions, the server's handlers and the training
 * loop log; every other module returns its error.  Measurements are metrics and never go here.  A
 * line reads "sparring-worker[1]: text", or with SPARRING_LOG_FORMAT=json is a JSON object with
 * time, level, program, rank and message; one write(2) per line, so ranks do not mix inside a line.
 */
#ifndef SPARRING_COMMON_BASE_LOG_H
#define SPARRING_COMMON_BASE_LOG_H

#include "common/base/error.h"

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARNING, LOG_ERROR, LOG_QUIET };

/* Set what each line begins with; `rank` < 0: none.  Call before threads start. */
void log_open(const char *program, int rank);

/* Lines below `level` are dropped; the default is LOG_INFO. */
void log_set_level(enum log_level level);

/* "debug", "info", "warning", "error", "quiet" -> level; false for any other text. */
int log_level_parse(const char *text, enum log_level *ret_level);

void log_debug(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_warning(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Log err's text as an error and return the program's exit code for its status. */
int log_failure(const struct error *err);

#endif
