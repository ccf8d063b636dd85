/*
 * text_list: a growing list of short texts.  Like strbuf it remembers an allocation that failed, so
 * that callers check once at the end.
 */
#ifndef SPARRING_COMMON_BASE_TEXT_LIST_H
#define SPARRING_COMMON_BASE_TEXT_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct text_list {
    char **texts; /* owned, as is each text */
    size_t length, capacity;
    bool failed;
};

void text_list_release(struct text_list *list);
void text_list_addf(struct text_list *list, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The texts with a NULL behind the last, as for exec; NULL when an allocation failed.  Borrowed,
 * until a text is added. */
char *const *text_list_words(struct text_list *list);

/* Index of `text`, or SIZE_MAX. */
size_t text_list_find(const struct text_list *list, const char *text);

#endif
