/*
 * text_list: an array of owned strings whose capacity doubles; the first failed allocation sets
 * `failed`, and later additions do nothing.
 */
#include "common/base/text_list.h"

#include "common/base/memory.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void text_list_release(struct text_list *list)
{
    for (size_t i = 0; i < list->length; i++)
        free(list->texts[i]);
    free(list->texts);
    *list = (struct text_list){0};
}

void text_list_addf(struct text_list *list, const char *format, ...)
{
    char *text = NULL;
    va_list args;

    va_start(args, format);
    if (list->failed || vasprintf(&text, format, args) < 0 ||
        mem_grow(list->length, &list->capacity, sizeof(text), "texts", &list->texts, NULL) !=
            STATUS_OK) {
        free(text);
        list->failed = true;
    } else {
        list->texts[list->length++] = text;
    }
    va_end(args);
}

char *const *text_list_words(struct text_list *list)
{
    if (list->failed || mem_grow(list->length, &list->capacity, sizeof(*list->texts), "texts",
                                 &list->texts, NULL) != STATUS_OK)
        return NULL;
    list->texts[list->length] = NULL;
    return list->texts;
}

size_t text_list_find(const struct text_list *list, const char *text)
{
    for (size_t i = 0; i < list->length; i++)
        if (strcmp(list->texts[i], text) == 0)
            return i;
    return SIZE_MAX;
}
