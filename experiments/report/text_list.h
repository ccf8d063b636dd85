/*
 * text_list: a growing list of short texts.  Like strbuf it remembers an allocation that failed, so
 * that callers check once at the end.
 */
#ifndef SPARRING_EXPERIMENTS_REPORT_TEXT_LIST_H
#define SPARRING_EXPERIMENTS_REPORT_TEXT_LIST_H

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

/* Index of `text`, or SIZE_MAX. */
size_t text_list_find(const struct text_list *list, const char *text);

#endif
