/*
 * A growing string.  Capacity doubles; a failed allocation makes every later call a no-op, so
 * callers check once at the end.  No locks: a strbuf belongs to one thread.
 */
#include "common/base/strbuf.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char strbuf_empty[1];

void strbuf_release(struct strbuf *s)
{
    if (!s)
        return;
    if (s->capacity > 0)
        free(s->text);
    *s = (struct strbuf)STRBUF_INIT;
}

void strbuf_reset(struct strbuf *s)
{
    s->length = 0;
    if (s->capacity > 0)
        s->text[0] = '\0';
}

bool strbuf_ok(const struct strbuf *s)
{
    return !s->failed;
}

/* Room for `more` bytes and the NUL. */
static bool reserve_bytes(struct strbuf *s, size_t more)
{
    size_t capacity = s->capacity ? s->capacity : 64;
    char *text;

    if (s->failed || more > SIZE_MAX / 4 - s->length) {
        s->failed = true;
        return false;
    }
    while (capacity <= s->length + more)
        capacity *= 2;
    if (capacity == s->capacity)
        return true;
    text = s->capacity > 0 ? realloc(s->text, capacity) : calloc(1, capacity);
    if (!text) {
        s->failed = true;
        return false;
    }
    s->text = text;
    s->capacity = capacity;
    return true;
}

void strbuf_add_bytes(struct strbuf *s, const void *bytes, size_t count)
{
    if (!reserve_bytes(s, count))
        return;
    memcpy(s->text + s->length, bytes, count);
    s->length += count;
    s->text[s->length] = '\0';
}

void strbuf_add(struct strbuf *s, const char *text)
{
    strbuf_add_bytes(s, text, strlen(text));
}

void strbuf_vaddf(struct strbuf *s, const char *format, va_list args)
{
    va_list again;
    int length;

    va_copy(again, args);
    length = vsnprintf(NULL, 0, format, again);
    va_end(again);
    if (length < 0 || !reserve_bytes(s, (size_t)length))
        return;
    (void)vsnprintf(s->text + s->length, (size_t)length + 1, format, args);
    s->length += (size_t)length;
}

void strbuf_addf(struct strbuf *s, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    strbuf_vaddf(s, format, args);
    va_end(args);
}

void strbuf_add_double(struct strbuf *s, double value)
{
    char text[40];

    for (int digits = 15; digits <= 17; digits++) {
        (void)snprintf(text, sizeof(text), "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    strbuf_add(s, text);
}

void strbuf_add_shell_word(struct strbuf *s, const char *word)
{
    static const char safe[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                               "_-./:=,+@%";

    if (word[0] != '\0' && word[strspn(word, safe)] == '\0') {
        strbuf_add(s, word);
        return;
    }
    strbuf_add(s, "'");
    for (; *word; word++) {
        if (*word == '\'')
            strbuf_add(s, "'\\''");
        else
            strbuf_add_bytes(s, word, 1);
    }
    strbuf_add(s, "'");
}

/* Length of the valid UTF-8 sequence at p, 0 when it is not one (RFC 3629). */
static size_t utf8_length(const unsigned char *p)
{
    if (p[0] < 0x80)
        return 1;
    if (p[0] >= 0xc2 && p[0] <= 0xdf)
        return (p[1] & 0xc0) == 0x80 ? 2 : 0;
    if (p[0] >= 0xe0 && p[0] <= 0xef) {
        if ((p[1] & 0xc0) != 0x80 || (p[2] & 0xc0) != 0x80 || (p[0] == 0xe0 && p[1] < 0xa0) ||
            (p[0] == 0xed && p[1] > 0x9f))
            return 0;
        return 3;
    }
    if (p[0] >= 0xf0 && p[0] <= 0xf4) {
        if ((p[1] & 0xc0) != 0x80 || (p[2] & 0xc0) != 0x80 || (p[3] & 0xc0) != 0x80 ||
            (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f))
            return 0;
        return 4;
    }
    return 0;
}

void strbuf_add_json(struct strbuf *s, const char *text)
{
    const unsigned char *p = (const unsigned char *)text;

    strbuf_add(s, "\"");
    while (*p) {
        size_t length = utf8_length(p);

        if (length == 0) {
            strbuf_add(s, "\\ufffd");
            p++;
        } else if (*p == '"' || *p == '\\') {
            strbuf_addf(s, "\\%c", *p++);
        } else if (*p < 0x20) {
            strbuf_addf(s, "\\u%04x", *p++);
        } else {
            strbuf_add_bytes(s, p, length);
            p += length;
        }
    }
    strbuf_add(s, "\"");
}

void strbuf_add_html(struct strbuf *s, const char *text)
{
    static const char special[] = "&<>\"'";
    static const char *const entities[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
    const unsigned char *p = (const unsigned char *)text;

    while (*p) {
        const char *hit = strchr(special, (char)*p);
        size_t length = utf8_length(p);
        bool is_control = *p < 0x20 && *p != '\t' && *p != '\n' && *p != '\r';

        if (hit)
            strbuf_add(s, entities[hit - special]);
        else if (length == 0 || is_control)
            strbuf_add(s, "\xef\xbf\xbd");
        else
            strbuf_add_bytes(s, p, length);
        p += length > 0 ? length : 1;
    }
}
