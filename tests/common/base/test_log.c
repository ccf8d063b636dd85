/*
 * The two forms of a log line, as another process reads them.
 */
#include "common/base/log.h"
#include "tests/support/support.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TEXT "a \"b\"\n\x1b[31m"

/* What a warning of this program writes on stderr. */
static const char *warn(const char *format, int rank, const char *text)
{
    static char line[8192];
    int before = dup(STDERR_FILENO), ends[2];
    ssize_t length;

    ck_assert_int_eq(
        format ? setenv("SPARRING_LOG_FORMAT", format, 1) : unsetenv("SPARRING_LOG_FORMAT"), 0);
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_ge(dup2(ends[1], STDERR_FILENO), 0);
    log_open("program", rank);
    log_debug("not shown");
    log_warning("%s", text);
    ck_assert_int_ge(dup2(before, STDERR_FILENO), 0);
    (void)close(ends[1]);
    length = read(ends[0], line, sizeof(line) - 1);
    ck_assert_int_ge(length, 0);
    line[length] = '\0';
    (void)close(ends[0]);
    (void)close(before);
    return line;
}

START_TEST(test_text)
{
    ck_assert_str_eq(warn(NULL, -1, TEXT), "program: warning: a \"b\"\n?[31m\n");
    ck_assert_str_eq(warn("text", 3, "a"), "program[3]: warning: a\n");
    assert_contains(warn("yaml", 3, "a"), "SPARRING_LOG_FORMAT is 'yaml', neither text nor json");
}
END_TEST

static void check_json(int rank, const char *text, size_t length)
{
    const char *line = warn("json", rank, text);
    json_error_t problem;
    json_t *object = json_loads(line, 0, &problem);

    ck_assert_msg(object != NULL, "%s: %s", problem.text, line);
    ck_assert_uint_eq(strcspn(line, "\n"), strlen(line) - 1);
    ck_assert_uint_eq(strlen(json_string_value(json_object_get(object, "time"))),
                      strlen("2026-01-01T00:00:00Z"));
    ck_assert_str_eq(json_string_value(json_object_get(object, "level")), "warning");
    ck_assert_str_eq(json_string_value(json_object_get(object, "program")), "program");
    ck_assert_uint_eq(json_string_length(json_object_get(object, "message")), length);
    ck_assert_int_eq(strncmp(json_string_value(json_object_get(object, "message")), text, length),
                     0);
    ck_assert(rank < 0 ? json_object_get(object, "rank") == NULL
                       : json_integer_value(json_object_get(object, "rank")) == rank);
    json_decref(object);
}

START_TEST(test_json)
{
    char longest[6000];

    memset(longest, 'x', sizeof(longest));
    longest[sizeof(longest) - 1] = '\0';
    check_json(-1, TEXT, strlen(TEXT));
    check_json(2, TEXT, strlen(TEXT));
    check_json(2, longest, 4096 - strlen("program[2]: warning: ") - 2); /* cut, and still JSON */
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("log", 0, TEST(test_text), TEST(test_json));
}
