/*
 * The experiments that come with Sparring run: `sparring compare NAME --quick`, each mode in the
 * first and last value of every axis.
 */
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <string.h>

#define TIMEOUT_MS 240000

static const char *const names[] = {
    "quickstart", "communication-bound", "article",     "lenet",
    "hiccups",    "stragglers",          "scaling",     "servers",
    "staleness",  "bandwidth-delay",     "compression", "interruptions"};

START_TEST(test_quick)
{
    struct process p;
    const char *printed;
    int code;

    process_start(&p, NULL,
                  ARGS(support_program("sparring"), "compare", names[_i], "--quick", "--out",
                       support_path("out")));
    code = process_wait(&p, TIMEOUT_MS);
    printed = process_output(&p);
    if (strstr(printed, "emulated hosts take root")) {
        (void)printf("skipped: emulated hosts take root\n");
        return;
    }
    ck_assert_msg(code == 0 && !strstr(printed, "exit code ") && !strstr(printed, "failed runs") &&
                      strstr(printed, "report: "),
                  "exit code %d, ends with:\n%.2000s", code,
                  printed + (strlen(printed) > 2000 ? strlen(printed) - 2000 : 0));
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("shipped experiments", 300,
                       LOOP_TEST(test_quick, 0, sizeof(names) / sizeof(names[0])));
}
