/*
 * notify over real sockets, by path and in the abstract namespace, and its environment variables.
 */
#include "common/base/notify.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct error err;
static struct notify notify;

/* A manager's socket; *ret_name is the value for NOTIFY_SOCKET. */
static int listen_as_manager(bool abstract, char *ret_name, size_t size)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    size_t length;

    ck_assert_int_ge(fd, 0);
    if (abstract)
        (void)snprintf(ret_name, size, "@sparring-test-%d", (int)getpid());
    else
        (void)snprintf(ret_name, size, "%s", support_path("manager"));
    length = strlen(ret_name);
    ck_assert_uint_lt(length, sizeof(address.sun_path));
    memcpy(address.sun_path, ret_name, length);
    if (abstract)
        address.sun_path[0] = '\0';
    ck_assert_int_eq(bind(fd, (const struct sockaddr *)&address,
                          (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length)),
                     0);
    return fd;
}

static void check_received(int fd, const char *wanted)
{
    char text[4096];
    ssize_t length = recv(fd, text, sizeof(text) - 1, MSG_DONTWAIT);

    ck_assert_msg(length >= 0, "nothing came");
    text[length] = '\0';
    ck_assert_str_eq(text, wanted);
}

START_TEST(test_messages)
{
    char name[108];
    int fd = listen_as_manager(_i == 1, name, sizeof(name));

    ck_assert_int_eq(setenv("NOTIFY_SOCKET", name, 1), 0);
    assert_ok(notify_open(&notify, &err));
    ck_assert(notify_is_enabled(&notify));
    ck_assert_int_eq(notify.watchdog_ns, 0);
    notify_send(&notify, "READY=1\nSTATUS=%s %d", "serving", 7);
    check_received(fd, "READY=1\nSTATUS=serving 7");
    notify_send(&notify, "STOPPING=1");
    check_received(fd, "STOPPING=1");
    notify_close(&notify);
    notify_send(&notify, "STATUS=late"); /* not sent after notify_close */
    ck_assert_int_lt(recv(fd, name, sizeof(name), MSG_DONTWAIT), 0);
    (void)close(fd);
}
END_TEST

START_TEST(test_long_messages_are_cut)
{
    char name[108], text[5000], received[5000];
    int fd = listen_as_manager(false, name, sizeof(name));

    memset(text, 'x', sizeof(text));
    text[sizeof(text) - 1] = '\0';
    ck_assert_int_eq(setenv("NOTIFY_SOCKET", name, 1), 0);
    assert_ok(notify_open(&notify, &err));
    notify_send(&notify, "STATUS=%s", text);
    ck_assert_int_eq(recv(fd, received, sizeof(received), MSG_DONTWAIT), 2047);
    notify_close(&notify);
    (void)close(fd);
}
END_TEST

START_TEST(test_without_a_manager)
{
    ck_assert_int_eq(unsetenv("NOTIFY_SOCKET"), 0);
    ck_assert_int_eq(setenv("WATCHDOG_USEC", "5", 1), 0);
    assert_ok(notify_open(&notify, &err));
    ck_assert(!notify_is_enabled(&notify));
    ck_assert_int_eq(notify.watchdog_ns, 0);
    notify_send(&notify, "READY=1");
    notify_close(&notify);
    ck_assert_int_eq(setenv("NOTIFY_SOCKET", support_path("gone"), 1), 0);
    assert_ok(notify_open(&notify, &err));
    notify_send(&notify, "READY=1"); /* a manager that has closed its socket is not an error */
    notify_close(&notify);
}
END_TEST

START_TEST(test_watchdog)
{
    static const struct {
        const char *usec, *pid; /* "own": ours */
        int64_t wanted_ns;
    } cases[] = {{"30000000", NULL, INT64_C(30000000000)},
                 {"30000000", "own", INT64_C(30000000000)},
                 {"30000000", "1", 0},
                 {NULL, "own", 0}};
    char own[16];

    (void)snprintf(own, sizeof(own), "%d", (int)getpid());
    ck_assert_int_eq(setenv("NOTIFY_SOCKET", "@nobody", 1), 0);
    if (cases[_i].usec)
        ck_assert_int_eq(setenv("WATCHDOG_USEC", cases[_i].usec, 1), 0);
    if (cases[_i].pid)
        ck_assert_int_eq(
            setenv("WATCHDOG_PID", strcmp(cases[_i].pid, "own") == 0 ? own : cases[_i].pid, 1), 0);
    assert_ok(notify_open(&notify, &err));
    ck_assert_int_eq(notify.watchdog_ns, cases[_i].wanted_ns);
    notify_close(&notify);
}
END_TEST

START_TEST(test_bad_environment)
{
    static const struct {
        const char *name, *value, *part;
    } cases[] = {
        {"NOTIFY_SOCKET", "relative", "NOTIFY_SOCKET='relative' is neither"},
        {"NOTIFY_SOCKET", "vsock:2:1", "NOTIFY_SOCKET='vsock:2:1' is neither"},
        {"NOTIFY_SOCKET", NULL, "NOTIFY_SOCKET has 200 bytes, at most 107"},
        {"WATCHDOG_USEC", "soon", "WATCHDOG_USEC='soon' is not a positive number"},
        {"WATCHDOG_USEC", "0", "WATCHDOG_USEC='0' is not a positive number"},
        {"WATCHDOG_USEC", "18446744073709551615", "is not a positive number"},
        {"WATCHDOG_PID", "-1", "WATCHDOG_PID='-1' is not a positive number"},
    };
    char path[201];

    memset(path, '/', sizeof(path) - 1);
    path[sizeof(path) - 1] = '\0';
    ck_assert_int_eq(setenv("NOTIFY_SOCKET", "@nobody", 1), 0);
    ck_assert_int_eq(setenv(cases[_i].name, cases[_i].value ? cases[_i].value : path, 1), 0);
    assert_fails(notify_open(&notify, &err), STATUS_CONFIG, cases[_i].part);
    ck_assert(!notify_is_enabled(&notify));
    notify_send(&notify, "READY=1");
    notify_close(&notify);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("notify", 0, LOOP_TEST(test_messages, 0, 2),
                       TEST(test_long_messages_are_cut), TEST(test_without_a_manager),
                       LOOP_TEST(test_watchdog, 0, 4), LOOP_TEST(test_bad_environment, 0, 7));
}
