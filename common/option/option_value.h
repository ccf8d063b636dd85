/*
 * option_value: converts one value of the table between text and the program's struct.  Internal to
 * option.
 */
#ifndef SPARRING_COMMON_OPTION_OPTION_VALUE_H
#define SPARRING_COMMON_OPTION_OPTION_VALUE_H

#include "common/option/option.h"

/* --config, --print-config, --help and --version: options of every program. */
extern const struct option_set option_common_set;

/* a[0..a_length) and b are the same name; '-' and '_' are the same. */
bool option_name_equal(const char *a, size_t a_length, const char *b);

/*
 * Parse and check `text`, then store it in target.
 *   where   starts the error text: "--seed", "SPARRING_SEED", "run.yaml:3: seed"
 *   bad     the status for an invalid value
 */
enum status option_value_set(const struct option_spec *spec, const char *text, const char *where,
                             enum status bad, void *target, struct error *err);

/* Append the value as text that option_value_set reads back to the same value. */
void option_value_format(const struct option_spec *spec, const void *target, struct strbuf *out);

/* Append the value as JSON. */
void option_value_json(const struct option_spec *spec, const void *target, struct strbuf *out);

/* Append "a, b or c" from "a|b|c". */
void option_choices_format(const char *choices, struct strbuf *out);

#endif
