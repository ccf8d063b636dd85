/*
 * Passing memory to another process over an abstract socket, and the messages that are rejected.
 */
#include "common/base/clock.h"
#include "common/base/handover.h"
#include "common/base/shared_memory.h"
#include "tests/support/support.h"

#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATIENCE_MS 20000

static struct error err;
static char name[HANDOVER_NAME_SIZE];
static unsigned char token[HANDOVER_TOKEN_BYTES];
static int listener;

static void listen_here(void)
{
    assert_ok(handover_generate(name, token, &err));
    assert_ok(handover_listen(name, &listener, &err));
}

static int accept_one(void)
{
    struct pollfd readable = {.fd = listener, .events = POLLIN};
    int fd;

    ck_assert_int_eq(poll(&readable, 1, PATIENCE_MS), 1);
    fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    ck_assert_int_ge(fd, 0);
    ck_assert(handover_is_our_user(fd));
    return fd;
}

/* Body of the other process: send memory that contains "hello". */
static int hand_over(void)
{
    struct handover_message message = {.sender = 3, .has_memory = 1, .session = 77};
    struct shared_memory m = SHARED_MEMORY_NONE;
    int fd = -1;

    if (shared_memory_open(4096, "test", &m, &err) != STATUS_OK ||
        handover_connect(name, clock_deadline_ns(PATIENCE_MS), &fd, &err) != STATUS_OK)
        return 1;
    memcpy(m.base, "hello", 6);
    memcpy(message.token, token, sizeof(token));
    message.size = m.size;
    return handover_send(fd, &message, m.fd, clock_deadline_ns(PATIENCE_MS), &err) != STATUS_OK;
}

START_TEST(memory_of_another_process)
{
    struct handover_message message;
    struct shared_memory m = SHARED_MEMORY_NONE;
    int status, fd, memory_fd;
    pid_t pid;

    listen_here();
    pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0)
        _exit(hand_over());
    fd = accept_one();
    assert_ok(
        handover_receive(fd, token, clock_deadline_ns(PATIENCE_MS), &message, &memory_fd, &err));
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    ck_assert_uint_eq(message.sender, 3);
    ck_assert_uint_eq(message.session, 77);
    assert_ok(shared_memory_map(memory_fd, message.size, &m, &err));
    ck_assert_str_eq(m.base, "hello");
    shared_memory_release(&m);
    (void)close(fd);
    (void)close(listener);
}
END_TEST

START_TEST(wrong_tokens_and_truncated_messages_are_refused)
{
    struct handover_message message = {.sender = 1};
    struct handover_message received;
    int64_t deadline_ns = clock_deadline_ns(PATIENCE_MS);
    int ours, theirs = -1, memory_fd;

    listen_here();
    assert_ok(handover_connect(name, deadline_ns, &theirs, &err));
    ours = accept_one();
    assert_ok(handover_send(theirs, &message, -1, deadline_ns, &err)); /* a token of zeros */
    assert_fails(handover_receive(ours, token, deadline_ns, &received, &memory_fd, &err),
                 STATUS_PROTOCOL, "not one of this group");
    memcpy(message.token, token, sizeof(token));
    ck_assert_int_eq(send(theirs, &message, sizeof(message) - 1, 0), sizeof(message) - 1);
    assert_fails(handover_receive(ours, token, deadline_ns, &received, &memory_fd, &err),
                 STATUS_PROTOCOL, "not one of this group");
    message.has_memory = 1; /* but without a descriptor */
    assert_ok(handover_send(theirs, &message, -1, deadline_ns, &err));
    assert_fails(handover_receive(ours, token, deadline_ns, &received, &memory_fd, &err),
                 STATUS_PROTOCOL, "not one of this group");
    ck_assert_int_eq(memory_fd, -1);
    (void)close(theirs);
    assert_fails(handover_receive(ours, token, deadline_ns, &received, &memory_fd, &err),
                 STATUS_PEER_LOST, "closed");
    (void)close(ours);
    (void)close(listener);
}
END_TEST

/* A message without data looks like the end of the connection, and can still carry a descriptor. */
START_TEST(a_descriptor_without_a_message_is_closed)
{
    union {
        struct cmsghdr head;
        unsigned char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.bytes = {0}};
    struct msghdr message = {.msg_control = &control, .msg_controllen = sizeof(control)};
    struct handover_message received;
    int64_t deadline_ns = clock_deadline_ns(PATIENCE_MS);
    int ours, theirs = -1, memory_fd, ends[2];
    struct pollfd other_end;

    listen_here();
    assert_ok(handover_connect(name, deadline_ns, &theirs, &err));
    ours = accept_one();
    ck_assert_int_eq(pipe(ends), 0);
    control.head.cmsg_level = SOL_SOCKET;
    control.head.cmsg_type = SCM_RIGHTS;
    control.head.cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(&control.head), &ends[1], sizeof(int));
    ck_assert_int_eq(sendmsg(theirs, &message, 0), 0);
    (void)close(ends[1]);
    assert_fails(handover_receive(ours, token, deadline_ns, &received, &memory_fd, &err),
                 STATUS_PEER_LOST, "closed");
    ck_assert_int_eq(memory_fd, -1);
    other_end = (struct pollfd){.fd = ends[0]};
    ck_assert_int_eq(poll(&other_end, 1, 0), 1); /* no process has the writing end open */
    ck_assert_int_ne(other_end.revents & POLLHUP, 0);
    (void)close(ends[0]);
    (void)close(theirs);
    (void)close(ours);
    (void)close(listener);
}
END_TEST

START_TEST(addresses_as_text)
{
    static const char *const none[] = {"",
                                       "/",
                                       "x",
                                       "x/",
                                       "/00112233445566778899aabbccddeeff",
                                       "x/00112233445566778899aabbccddeef",
                                       "x/00112233445566778899aabbccddeeff0",
                                       "x/00112233445566778899aabbccddeefg"};
    char text[HANDOVER_ADDRESS_SIZE], name_again[HANDOVER_NAME_SIZE], too_long[200];
    unsigned char token_again[HANDOVER_TOKEN_BYTES];

    assert_ok(handover_generate(name, token, &err));
    handover_format(name, token, text);
    ck_assert(handover_parse(text, name_again, token_again));
    ck_assert_str_eq(name_again, name);
    ck_assert_mem_eq(token_again, token, sizeof(token));
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
        ck_assert_msg(!handover_parse(none[i], name_again, token_again), "'%s' was taken", none[i]);
    memset(too_long, 'x', sizeof(too_long));
    memcpy(too_long + HANDOVER_NAME_SIZE, text + strcspn(text, "/"), 34);
    ck_assert(!handover_parse(too_long, name_again, token_again));
}
END_TEST

START_TEST(connect_without_a_listener_fails)
{
    int fd = -1;

    assert_ok(handover_generate(name, token, &err));
    assert_fails(handover_connect(name, clock_deadline_ns(PATIENCE_MS), &fd, &err),
                 STATUS_UNREACHABLE, "cannot connect to '@sparring-");
    ck_assert_int_eq(fd, -1);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("handover", 0, TEST(memory_of_another_process),
                       TEST(wrong_tokens_and_truncated_messages_are_refused),
                       TEST(a_descriptor_without_a_message_is_closed), TEST(addresses_as_text),
                       TEST(connect_without_a_listener_fails));
}
