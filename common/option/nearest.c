/*
 * nearest: the most similar name for a mistyped word.  Levenshtein distance, one row of the table
 * at a time; "-" and "_" count as the same letter, as in option names.  Pure, no locks.
 */
#include "common/option/option.h"

#include "common/option/option_value.h"

#include <string.h>

#define WORD_MAX     64 /* longer words match no name */
#define DISTANCE_MAX 3

/* '_' becomes '-', other characters are unchanged. */
static char option_fold(char c)
{
    return c == '_' ? '-' : c;
}

bool option_name_equal(const char *a, size_t a_length, const char *b)
{
    for (size_t i = 0; i < a_length; i++)
        if (b[i] == '\0' || option_fold(a[i]) != option_fold(b[i]))
            return false;
    return b[a_length] == '\0';
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Insertions, deletions and replacements that turn a into b; both shorter than WORD_MAX. */
static size_t edit_distance(const char *a, const char *b)
{
    size_t row[WORD_MAX + 1];
    size_t b_length = strlen(b);

    for (size_t j = 0; j <= b_length; j++)
        row[j] = j;
    for (size_t i = 0; a[i] != '\0'; i++) {
        size_t diagonal = row[0];

        row[0] = i + 1;
        for (size_t j = 0; j < b_length; j++) {
            size_t replaced = diagonal + (option_fold(a[i]) != option_fold(b[j]));

            diagonal = row[j + 1];
            row[j + 1] = smaller(replaced, smaller(row[j], row[j + 1]) + 1);
        }
    }
    return row[b_length];
}

const char *option_nearest(const char *word, const char *const *names, size_t count)
{
    const char *best = NULL;
    size_t length = strlen(word);
    size_t limit;

    if (length == 0 || length > WORD_MAX)
        return NULL;
    /* For short words three edits match almost any name: "ring" must not suggest "rank". */
    limit = smaller(DISTANCE_MAX, (length + 1) / 3);
    for (size_t i = 0; i < count; i++) {
        size_t distance;

        if (strlen(names[i]) > WORD_MAX)
            continue;
        distance = edit_distance(word, names[i]);
        if (distance > limit || (best && distance == limit))
            continue;
        best = names[i];
        limit = distance;
    }
    return best;
}
