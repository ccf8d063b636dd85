/*
 * Text to numbers.  Every parser consumes the whole text or fails; none accepts leading blanks.
 * Pure, no locks; the locale is never set, so strtod reads a decimal point.
 */
#include "common/base/parse.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool parse_int64(const char *text, int64_t *ret)
{
    char *end;
    long long value;

    if (*text == '\0' || strchr(" \t\n\r\v\f", *text))
        return false;
    errno = 0;
    value = strtoll(text, &end, 10);
    if (errno != 0 || *end != '\0')
        return false;
    *ret = value;
    return true;
}

bool parse_uint64(const char *text, uint64_t *ret)
{
    char *end;
    unsigned long long value;

    if (*text < '0' || *text > '9')
        return false;
    errno = 0;
    value = strtoull(text, &end, 10);
    if (errno != 0 || *end != '\0')
        return false;
    *ret = value;
    return true;
}

bool parse_double(const char *text, double *ret)
{
    char *end;
    double value;

    if (*text == '\0' || strchr(" \t\n\r\v\f", *text))
        return false;
    errno = 0;
    value = strtod(text, &end);
    if (*end != '\0' || !isfinite(value))
        return false;
    *ret = value;
    return true;
}

bool parse_bool(const char *text, bool *ret)
{
    static const char *const yes[] = {"true", "yes", "on", "1"};
    static const char *const no[] = {"false", "no", "off", "0"};

    for (size_t i = 0; i < sizeof(yes) / sizeof(yes[0]); i++) {
        if (strcmp(text, yes[i]) == 0 || strcmp(text, no[i]) == 0) {
            *ret = strcmp(text, yes[i]) == 0;
            return true;
        }
    }
    return false;
}

bool parse_bytes(const char *text, uint64_t *ret)
{
    static const char letters[] = "KMGT";
    char digits[24];
    size_t length = strspn(text, "0123456789");
    const char *suffix = text + length;
    uint64_t value;
    uint64_t scale = 1;

    if (length == 0 || length >= sizeof(digits))
        return false;
    memcpy(digits, text, length);
    digits[length] = '\0';
    if (!parse_uint64(digits, &value))
        return false;
    if (*suffix != '\0') {
        const char *hit = strchr(letters, *suffix);

        if (!hit || (suffix[1] != '\0' && strcmp(suffix + 1, "iB") != 0))
            return false;
        scale = (uint64_t)1 << (10 * (hit - letters + 1));
    }
    if (__builtin_mul_overflow(value, scale, &value)) /* stores the wrapped product, too */
        return false;
    *ret = value;
    return true;
}

bool parse_rate(const char *text, double *ret)
{
    static const struct {
        const char *unit;
        double bits;
    } units[] = {{"bit", 1}, {"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}};
    char *end = NULL;
    double value = strtod(text, &end);

    for (size_t i = 0; end != text && i < sizeof(units) / sizeof(units[0]); i++)
        if (strcmp(end, units[i].unit) == 0 && isfinite(value) && value >= 0) {
            *ret = value * units[i].bits;
            return true;
        }
    return false;
}

bool parse_list_has(const char *list, const char *word)
{
    const size_t length = strlen(word);

    for (const char *p = list; *p; p += strcspn(p, ",") + (p[strcspn(p, ",")] == ','))
        if (strncmp(p, word, length) == 0 && (p[length] == ',' || p[length] == '\0'))
            return true;
    return false;
}

unsigned parse_list_length(const char *list)
{
    unsigned length = list[0] != '\0';

    for (; *list; list++)
        length += *list == ',';
    return length;
}

const char *parse_list_next(const char *list, char *entry, size_t size)
{
    const size_t length = strcspn(list, ",");

    (void)snprintf(entry, size, "%.*s", (int)length, list);
    return list + length + (list[length] == ',');
}
