/*
 * arguments: lets options follow positional words, as in `sparring report RUN --out DIR`.
 */
#ifndef SPARRING_COMMON_OPTION_ARGUMENTS_H
#define SPARRING_COMMON_OPTION_ARGUMENTS_H

#include "common/base/error.h"
#include "common/option/option.h"

/* *ret_argv: argv with the options (and the values that follow them) first and "--" before the
 * rest, and NULL at the end; owned by the caller (free), its words borrowed. */
enum status arguments_permute(const struct option_set *set, int argc, char *const *argv,
                              char ***ret_argv, struct error *err);

#endif
