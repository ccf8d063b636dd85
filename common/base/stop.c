/*
 * Signal handlers and the flag that they set.  The handler touches only atomics and an eventfd; all
 * state is process-wide and needs no lock.
 *
 * The handler has a stack of its own on the main thread, which receives a process's signals: code
 * that oneDNN has generated keeps data further below its stack pointer than a handler spares.
 */
#include "common/base/stop.h"

#include "common/base/clock.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define WAIT_GRACE_NS INT64_C(10000000000)
#define STACK_SIZE    65536

static atomic_int signal_seen;
static _Atomic int64_t seen_ns; /* 0: never */
static atomic_int waits_end;    /* an enum stop_waits */
static int event_fd = -1;

static void on_signal(int number)
{
    const int64_t now_ns = clock_now_ns();
    int saved = errno, no_signal = 0;
    int64_t never = 0;
    uint64_t one = 1;

    (void)atomic_compare_exchange_strong(&seen_ns, &never, now_ns);
    if (!atomic_compare_exchange_strong(&signal_seen, &no_signal, number) &&
        now_ns - atomic_load(&seen_ns) > STOP_ONE_REQUEST_NS)
        _exit(128 + number);
    (void)!write(event_fd, &one, sizeof(one));
    errno = saved;
}

/* A sanitizer has set one already. */
static enum status set_stack(struct error *err)
{
    static char memory[STACK_SIZE];
    const stack_t stack = {.ss_sp = memory, .ss_size = sizeof(memory)};
    stack_t present;

    if (sigaltstack(NULL, &present) != 0 ||
        ((present.ss_flags & SS_DISABLE) != 0 && sigaltstack(&stack, NULL) != 0))
        return error_set_errno(err, errno, "cannot set a stack for signals");
    return STATUS_OK;
}

enum status stop_install(struct error *err)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    struct sigaction ignore = {.sa_handler = SIG_IGN};

    event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (event_fd < 0)
        return error_set_errno(err, errno, "cannot make an eventfd");
    (void)sigemptyset(&action.sa_mask);
    (void)sigemptyset(&ignore.sa_mask);
    if (sigaction(SIGTERM, &action, NULL) != 0 || sigaction(SIGINT, &action, NULL) != 0 ||
        sigaction(SIGUSR1, &action, NULL) != 0 || sigaction(SIGPIPE, &ignore, NULL) != 0 ||
        sigaction(SIGXFSZ, &ignore, NULL) != 0)
        return error_set_errno(err, errno, "cannot install signal handlers");
    return set_stack(err);
}

int stop_requested(void)
{
    return atomic_load(&signal_seen);
}

void stop_set_waits(enum stop_waits when)
{
    atomic_store(&waits_end, (int)when);
}

bool stop_ends_waits(void)
{
    int when = atomic_load(&waits_end);

    if (stop_requested() == 0 || when == STOP_WAITS_NEVER)
        return false;
    return when == STOP_WAITS_NOW || clock_now_ns() - atomic_load(&seen_ns) > WAIT_GRACE_NS;
}

int stop_fd(void)
{
    return event_fd;
}
