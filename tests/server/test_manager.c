/*
 * The real sparring-server under a simulated service manager: which notifications it sends and
 * when, over a socket with a path and one in the abstract namespace.
 */
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/net.h"
#include "common/base/parse.h"
#include "common/rpc/rpc.h"
#include "server/service/service.h"
#include "tests/server/service/raw_job.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define WAIT_MS 20000

static struct error err;
static char message[4096];

static int listen_as_manager(bool abstract, char *ret_variable, size_t size)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    char name[sizeof(address.sun_path)];

    ck_assert_int_ge(fd, 0);
    if (abstract)
        (void)snprintf(name, sizeof(name), "@sparring-manager-%d", (int)getpid());
    else
        (void)snprintf(name, sizeof(name), "%s", support_path("manager"));
    memcpy(address.sun_path, name, strlen(name));
    if (abstract)
        address.sun_path[0] = '\0';
    ck_assert_int_eq(bind(fd, (const struct sockaddr *)&address,
                          (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name))),
                     0);
    (void)snprintf(ret_variable, size, "NOTIFY_SOCKET=%s", name);
    return fd;
}

static void receive_message(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    ssize_t length;

    ck_assert_msg(poll(&p, 1, WAIT_MS) == 1, "no notification came");
    length = recv(fd, message, sizeof(message) - 1, 0);
    ck_assert_int_ge(length, 0);
    message[length] = '\0';
}

/* Wait for the next message that contains `part`. */
static void wait_for_message(int fd, const char *part)
{
    int64_t deadline_ns = clock_deadline_ns(WAIT_MS);

    do {
        ck_assert_msg(clock_now_ns() < deadline_ns, "'%s' never came, the last is '%s'", part,
                      message);
        receive_message(fd);
    } while (!strstr(message, part));
}

static void start_server(struct process *p, const char *const *variables)
{
    process_start(p, variables,
                  ARGS(support_program("sparring-server"), "--listen", "127.0.0.1:0", "--port-file",
                       support_path("port"), "--timeout-ms", "7000"));
}

static uint16_t read_port(void)
{
    char *text;
    size_t size;
    uint64_t port;

    assert_ok(file_read(support_path("port"), 64, &text, &size, &err));
    text[strcspn(text, "\n")] = '\0';
    ck_assert(parse_uint64(text, &port));
    free(text);
    return (uint16_t)port;
}

START_TEST(test_notifications_of_a_whole_run)
{
    char variable[256];
    int fd = listen_as_manager(_i == 1, variable, sizeof(variable));
    struct process p;
    int64_t before_ns;

    start_server(&p, ARGS(variable, "WATCHDOG_USEC=400000"));
    receive_message(fd);
    ck_assert_msg(strncmp(message, "READY=1\nSTATUS=serving on 127.0.0.1:", 36) == 0, "'%s'",
                  message);
    for (unsigned i = 0; i < 3; i++) /* it is ready: calls need not wait */
        raw_open(&workers[i], read_port(), i);
    receive_message(fd);
    ck_assert_str_eq(message, "WATCHDOG=1\nSTATUS=no job; 0 done, 0 failed");
    before_ns = clock_now_ns();
    for (unsigned i = 0; i < 3; i++)
        wait_for_message(fd, "WATCHDOG=1");
    /* three intervals are 0.6 s */
    ck_assert_int_lt(clock_now_ns() - before_ns, INT64_C(15000000000));
    start_job();
    wait_for_message(fd, "STATUS=job 'raw': round 1, 2 of 2 ranks");
    play_round(1);
    wait_for_message(fd, "STATUS=job 'raw': round 2, 2 of 2 ranks");
    end_job();
    wait_for_message(fd, "STATUS=no job; 1 done, 0 failed");
    process_signal(&p, SIGTERM);
    wait_for_message(fd, "STOPPING=1");
    ck_assert_str_eq(message, "STOPPING=1\nSTATUS=finishing the round under way\n"
                              "EXTEND_TIMEOUT_USEC=19000000");
    receive_message(fd);
    ck_assert_str_eq(message, "WATCHDOG_USEC=19000000");
    ck_assert_int_eq(process_wait(&p, WAIT_MS), 0);
    close_workers();
    (void)close(fd);
}
END_TEST

START_TEST(test_no_watchdog)
{
    char variable[256];
    int fd = listen_as_manager(false, variable, sizeof(variable));
    struct process p;

    start_server(&p, ARGS(variable));
    wait_for_message(fd, "READY=1");
    receive_message(fd);
    ck_assert_str_eq(message, "STATUS=no job; 0 done, 0 failed");
    process_signal(&p, SIGTERM);
    wait_for_message(fd, "STOPPING=1");
    ck_assert_int_eq(process_wait(&p, WAIT_MS), 0);
    ck_assert_int_lt(recv(fd, message, sizeof(message), MSG_DONTWAIT), 0); /* nothing else */
    (void)close(fd);
}
END_TEST

START_TEST(test_a_bad_notify_socket)
{
    struct process p;

    start_server(&p, ARGS("NOTIFY_SOCKET=nonsense"));
    process_wait_output(&p, "serving on", WAIT_MS);
    ck_assert_ptr_nonnull(strstr(process_output(&p), "NOTIFY_SOCKET='nonsense' is neither"));
    process_signal(&p, SIGTERM);
    ck_assert_int_eq(process_wait(&p, WAIT_MS), 0);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("manager", 120, LOOP_TEST(test_notifications_of_a_whole_run, 0, 2),
                       TEST(test_no_watchdog), TEST(test_a_bad_notify_socket));
}
