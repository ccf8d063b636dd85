/*
 * A timer of the kernel sends the thread a signal, whose handler sleeps and sets the timer anew.
 * No other thread need come in time for it: on a busy host this one gets to run less, never more.
 */
#include "tests/common/collective/chaos/slow_thread.h"

#include "common/base/clock.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <time.h>
#include <unistd.h>

#define AWAKE_NS 500000
#define NAP_MS   400 /* longer than a backend keeps the control: a wait that it falls into ends */

static timer_t timer;
static int64_t until;

static int set_timer(void)
{
    const struct itimerspec awake = {.it_value.tv_nsec = AWAKE_NS};

    return timer_settime(timer, 0, &awake, NULL);
}

/* Calls nothing that is not safe in a signal's handler. */
static void nap(int number)
{
    int saved = errno;

    (void)number;
    (void)poll(NULL, 0, NAP_MS);
    if (clock_now_ns() < until)
        (void)set_timer();
    errno = saved;
}

enum status slow_thread_begin(int64_t until_ns, struct error *err)
{
    const struct sigaction action = {.sa_handler = nap}; /* without SA_RESTART */
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGUSR1};

    event._sigev_un._tid = gettid(); /* glibc has no name of its own for it */
    until = until_ns;
    if (sigaction(SIGUSR1, &action, NULL) != 0 ||
        timer_create(CLOCK_MONOTONIC, &event, &timer) != 0 || set_timer() != 0)
        return error_set_errno(err, errno, "a timer for this thread");
    return STATUS_OK;
}
