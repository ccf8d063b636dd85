/*
 * strbuf: a growing NUL-terminated string.  STRBUF_INIT needs no allocation; release frees and
 * resets.  A failed allocation sets `failed`, and later calls do nothing: check strbuf_ok once at
 * the end.
 */
#ifndef SPARRING_COMMON_BASE_STRBUF_H
#define SPARRING_COMMON_BASE_STRBUF_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

struct strbuf {
    char *text; /* NUL-terminated; "" before the first append; owned */
    size_t length;
    size_t capacity; /* bytes allocated, 0 while text points at the shared empty string */
    bool failed;
};

extern char strbuf_empty[1];
#define STRBUF_INIT                                                                                \
    {                                                                                              \
        .text = strbuf_empty                                                                       \
    }

void strbuf_release(struct strbuf *s);
void strbuf_reset(struct strbuf *s); /* length 0, memory kept */
bool strbuf_ok(const struct strbuf *s);
void strbuf_add(struct strbuf *s, const char *text);
void strbuf_add_bytes(struct strbuf *s, const void *bytes, size_t count);
void strbuf_addf(struct strbuf *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
void strbuf_vaddf(struct strbuf *s, const char *format, va_list args)
    __attribute__((format(printf, 2, 0)));

/* Append a finite value with the fewest digits (15 to 17) that read back as the same double. */
void strbuf_add_double(struct strbuf *s, double value);

/* Append a word quoted for a shell: bare when that is safe, else in single quotes. */
void strbuf_add_shell_word(struct strbuf *s, const char *word);

/* Append `text` as a JSON string with its quotes; invalid UTF-8 bytes become U+FFFD. */
void strbuf_add_json(struct strbuf *s, const char *text);

/* Append `text` with & < > " ' as HTML entities; control characters but tab and line ends, and
 * invalid UTF-8 bytes, become U+FFFD. */
void strbuf_add_html(struct strbuf *s, const char *text);

#endif
