/*
 * arguments: lets options follow positional words, as in `sparring report RUN --out DIR`.
 */
#ifndef SPARRING_EXPERIMENTS_REPORT_ARGUMENTS_H
#define SPARRING_EXPERIMENTS_REPORT_ARGUMENTS_H

#include "common/base/error.h"
#include "common/option/option.h"

/* *ret_argv: argv with the options (and the values that follow them) first and "--" before the
 * rest; owned by the caller (free), its words borrowed.  It has argc + 1 words and a NULL. */
enum status arguments_permute(const struct option_set *set, int argc, char **argv, char ***ret_argv,
                              struct error *err);

#endif
