/*
 * parse: converts whole texts to numbers, and splits lists.  A function with *ret returns
 * false on empty text, trailing characters, overflow or a value outside the type, and leaves *ret
 * untouched.
 */
#ifndef SPARRING_COMMON_BASE_PARSE_H
#define SPARRING_COMMON_BASE_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool parse_int64(const char *text, int64_t *ret);
bool parse_uint64(const char *text, uint64_t *ret); /* no sign */
bool parse_double(const char *text, double *ret);   /* finite */
bool parse_bool(const char *text, bool *ret);       /* true false yes no on off 1 0 */

/* Bytes with an optional binary suffix: 4096, 64K, 64KiB, 256M, 1GiB (K = 1024). */
bool parse_bytes(const char *text, uint64_t *ret);

/* Bits per second as tc writes them, "1gbit", "2.5mbit": bit, kbit, mbit or gbit (k = 1000); not
 * negative. */
bool parse_rate(const char *text, double *ret);

/* Is `word` one of the entries of a list, "cpu,memory"? */
bool parse_list_has(const char *list, const char *word);

/* The number of entries; 0 of "". */
unsigned parse_list_length(const char *list);

/* Copy the first entry, cut to `size` bytes with its end; returns the others, "" behind the last.
 */
const char *parse_list_next(const char *list, char *entry, size_t size);

#endif
