/*
 * program: the main function that every program and subcommand shares: parses options, prints help
 * or the configuration on request, runs, logs a failure, returns the exit code.
 */
#ifndef SPARRING_COMMON_OPTION_PROGRAM_H
#define SPARRING_COMMON_OPTION_PROGRAM_H

#include "common/option/option.h"

#include <stddef.h>

struct program {
    const struct option_set *set;
    size_t options_size; /* of the struct that the table fills; zeroed before */
    /* The work itself, with the parsed options. */
    enum status (*run)(const void *options, const struct option_result *origins, struct error *err);
    /* The alternative for programs with positional words, which may come before, between and after
     * the options (`report RUN --out DIR`); *ret_exit_code is 0 on entry. */
    enum status (*run_words)(const void *options, const char *const *words, size_t count,
                             int *ret_exit_code, struct error *err);
};

/* Handles --help, --version and --print-config; without run_words positional words are errors.
 * Returns the exit code. */
int program_main(const struct program *program, int argc, char *const *argv);

#endif
