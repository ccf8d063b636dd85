/*
 * program: the main function that every program and subcommand shares: parse, print what was asked
 * for, run, log a failure, return the exit code.
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
    /* Or, where words may stand before, between and behind the options (`report RUN --out DIR`),
     * with them, too; *ret_exit_code is 0 before. */
    enum status (*run_words)(const void *options, const char *const *words, size_t count,
                             int *ret_exit_code, struct error *err);
};

/* Handles --help, --version and --print-config; without run_words refuses words that are not
 * options.  Returns the exit code. */
int program_main(const struct program *program, int argc, char *const *argv);

#endif
