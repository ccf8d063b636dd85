/* stop: each case runs in a process of its own, which it may stop. */
#include "common/base/stop.h"
#include "tests/common/base/test_base.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

/* Generated code keeps data below its stack pointer, where a handler on the same stack would write.
 */
START_TEST(test_handler_has_its_own_stack)
{
    const int signals[] = {SIGTERM, SIGINT, SIGUSR1};
    struct error err = {0};
    struct sigaction action;
    stack_t stack;

    assert_ok(stop_install(&err));
    ck_assert_int_eq(sigaltstack(NULL, &stack), 0);
    ck_assert_int_eq(stack.ss_flags & SS_DISABLE, 0);
    ck_assert_uint_ge(stack.ss_size, 8192);
    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++) {
        ck_assert_int_eq(sigaction(signals[i], NULL, &action), 0);
        ck_assert_int_ne(action.sa_flags & SA_ONSTACK, 0);
    }
}
END_TEST

START_TEST(test_first_signal_is_noted)
{
    struct error err = {0};
    struct pollfd event = {.events = POLLIN};

    assert_ok(stop_install(&err));
    event.fd = stop_fd();
    ck_assert_int_eq(poll(&event, 1, 0), 0);
    ck_assert_int_eq(stop_requested(), 0);
    ck_assert_int_eq(raise(SIGINT), 0);
    ck_assert_int_eq(stop_requested(), SIGINT);
    ck_assert_int_eq(poll(&event, 1, 0), 1);
}
END_TEST

START_TEST(test_second_signal_ends_the_process)
{
    struct error err = {0};

    assert_ok(stop_install(&err));
    ck_assert_int_eq(raise(SIGINT), 0);
    ck_assert_int_eq(raise(SIGTERM), 0); /* within a second: the same request */
    ck_assert_int_eq(stop_requested(), SIGINT);
    (void)usleep(STOP_ONE_REQUEST_NS / 1000 + 200000); /* no event: the time is what counts */
    (void)raise(SIGTERM);
    ck_abort_msg("the process goes on after a second signal");
}
END_TEST

TCase *stop_cases(void)
{
    TCase *cases = tcase_create("stop");

    tcase_add_test(cases, test_handler_has_its_own_stack);
    tcase_add_test(cases, test_first_signal_is_noted);
    tcase_add_exit_test(cases, test_second_signal_ends_the_process, 128 + SIGTERM);
    return cases;
}
