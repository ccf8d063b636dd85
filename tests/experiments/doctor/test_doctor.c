/*
 * `sparring doctor`: that it notices what the tests take away: tools, limits, a port, programs.
 */
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <string.h>

#define TIMEOUT_MS 60000

/* Its output after some lines of shell; $0 is the program. */
static const char *doctor_after(int wanted, const char *shell)
{
    return process_run(wanted, TIMEOUT_MS, NULL,
                       ARGS("sh", "-c", shell, support_program("sparring")));
}

START_TEST(test_this_host)
{
    static const char *const topics[] = {"programs ",         "processors ", "neighbours ",
                                         "memory ",           "clock ",      "ports ",
                                         "emulated network ", "GPU ",        "figures "};
    const char *output = doctor_after(0, "exec \"$0\" doctor");

    for (size_t i = 0; i < sizeof(topics) / sizeof(topics[0]); i++)
        assert_contains(output, topics[i]);
    assert_contains(output, ", 0 broken\n");
    output = doctor_after(0, "exec \"$0\" doctor --quiet");
    ck_assert_msg(strstr(output, " ok ") == NULL, "%s", output);
    assert_contains(output, " as it should be, ");
}
END_TEST

START_TEST(test_limits_and_tools)
{
    const char *output =
        doctor_after(0, "ulimit -n 256; ulimit -l 64; PATH=/nonexistent exec \"$0\" doctor");

    assert_contains(output, "open files        note    256 at most");
    assert_contains(output, "locked memory     note    0 MiB at most");
    assert_contains(output, "figures           missing gnuplot is not there (Debian: gnuplot-nox)");
}
END_TEST

/* In a network namespace, whose ports nobody else uses. */
START_TEST(test_port_in_use)
{
    char shell[1200];
    const char *output;

    if (!process_shell("unshare --map-root-user --net true 2>/dev/null")) {
        (void)printf("skipped: no network namespaces for this user\n");
        return;
    }
    (void)snprintf(shell, sizeof(shell),
                   "mkfifo %s; exec unshare --map-root-user --net sh -c 'ip link set lo up; "
                   "%s --listen 127.0.0.1:5757 2>%s & "
                   "while read -r line && [ \"${line#*serving on}\" = \"$line\" ]; do :; done <%s; "
                   "\"$0\" doctor; kill $!; wait' \"$0\"",
                   support_path("log"), support_program("sparring-server"), support_path("log"),
                   support_path("log"));
    output = doctor_after(0, shell);
    assert_contains(output, "ports             ok      29500 is free");
    assert_contains(output, "ports             note    ");
    assert_contains(output, "5757");
    assert_contains(output, "sparring-server");
}
END_TEST

START_TEST(test_missing_programs)
{
    char shell[600];
    const char *output;

    (void)snprintf(shell, sizeof(shell), "cp \"$0\" %s && exec %s doctor", support_path("sparring"),
                   support_path("sparring"));
    output = doctor_after(1, shell);
    assert_contains(output, "programs          BROKEN  sparring-worker beside it: ");
    assert_contains(output, "programs          BROKEN  sparring-server beside it: ");
    assert_contains(output, ", 2 broken\n");
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("doctor", 120, TEST(test_this_host), TEST(test_limits_and_tools),
                       TEST(test_port_in_use), TEST(test_missing_programs));
}
