/*
 * bench_options: entries of option tables (common/option) that several benchmarks share; `at` is
 * the offset of a char[OPTION_TEXT_MAX].
 */
#ifndef SPARRING_EXPERIMENTS_BENCH_BENCH_OPTIONS_H
#define SPARRING_EXPERIMENTS_BENCH_BENCH_OPTIONS_H

#include "common/option/option.h"

#define BENCH_OPTION_DEVICE(at)                                                                    \
    {                                                                                              \
        .name = "device", .kind = OPTION_TEXT, .offset = (at), .default_text = "cpu",              \
        .metavar = "DEVICE", .help = "As sparring-worker takes it."                                \
    }

/* Follows the device option; `more` completes the help text that begins with "Likewise". */
#define BENCH_OPTION_PRECISION(at, more)                                                           \
    {                                                                                              \
        .name = "precision", .kind = OPTION_CHOICE, .offset = (at), .default_text = "float32",     \
        .choices = "float32|tf32|bf16|fp16", .help = "Likewise" more                               \
    }

#define BENCH_OPTION_JSON(at)                                                                      \
    {                                                                                              \
        .name = "json", .kind = OPTION_TEXT, .offset = (at), .metavar = "FILE",                    \
        .help = "Write the rows there."                                                            \
    }

#endif
