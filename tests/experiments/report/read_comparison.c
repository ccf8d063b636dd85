/*
 * read_comparison: fills the global report; one at a time is enough, since each test runs in its
 * own process.
 */
#include "tests/experiments/report/read_comparison.h"

#include "tests/support/support.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

struct report report;

struct comparison *read_comparison(const char *path)
{
    struct error err = {0};

    assert_ok(report_read(&report, &path, 1, &err));
    return &report.comparison;
}

static bool mentions(const struct text_list *list, const char *text)
{
    for (size_t i = 0; i < list->length; i++)
        if (strstr(list->texts[i], text))
            return true;
    return false;
}

void assert_mentions(const struct text_list *list, const char *text)
{
    for (size_t i = 0; i < list->length && !mentions(list, text); i++)
        (void)printf("  %s\n", list->texts[i]);
    ck_assert_msg(mentions(list, text), "no text with '%s'", text);
}
