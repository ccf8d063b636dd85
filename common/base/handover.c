/*
 * sendmsg and recvmsg with SCM_RIGHTS, under a deadline.  Sockets are non-blocking; every wait is a
 * poll.  No state and no locks: a socket belongs to its caller.
 */
#include "common/base/handover.h"

#include "common/base/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* ---- names and sockets ---- */

static int open_seqpacket_socket(void)
{
    return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

/* An abstract address: the path begins with a zero, and no file is made. */
static socklen_t abstract_address(const char *name, struct sockaddr_un *ret)
{
    size_t length = strnlen(name, HANDOVER_NAME_SIZE);

    *ret = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(ret->sun_path + 1, name, length);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

enum status handover_generate(char name[HANDOVER_NAME_SIZE],
                              unsigned char token[HANDOVER_TOKEN_BYTES], struct error *err)
{
    unsigned char random[HANDOVER_TOKEN_BYTES + 16];
    int length;

    if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random))
        return error_set_errno(err, errno, "cannot draw random bytes");
    memset(name, 0, HANDOVER_NAME_SIZE);
    memcpy(token, random, HANDOVER_TOKEN_BYTES);
    length = snprintf(name, HANDOVER_NAME_SIZE, "sparring-");
    for (size_t i = HANDOVER_TOKEN_BYTES; i < sizeof(random); i++)
        length += snprintf(name + length, HANDOVER_NAME_SIZE - (size_t)length, "%02x", random[i]);
    return STATUS_OK;
}

void handover_format(const char *name, const unsigned char token[HANDOVER_TOKEN_BYTES],
                     char text[HANDOVER_ADDRESS_SIZE])
{
    int length = snprintf(text, HANDOVER_ADDRESS_SIZE, "%s/", name);

    for (size_t i = 0; i < HANDOVER_TOKEN_BYTES; i++)
        length += snprintf(text + length, HANDOVER_ADDRESS_SIZE - (size_t)length, "%02x", token[i]);
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool handover_parse(const char *text, char name[HANDOVER_NAME_SIZE],
                    unsigned char token[HANDOVER_TOKEN_BYTES])
{
    size_t length = strcspn(text, "/");
    const char *digits = text + length + 1;

    if (length == 0 || length >= HANDOVER_NAME_SIZE || text[length] != '/' ||
        strnlen(digits, 2 * HANDOVER_TOKEN_BYTES + 1) != 2 * HANDOVER_TOKEN_BYTES)
        return false;
    memset(name, 0, HANDOVER_NAME_SIZE);
    memcpy(name, text, length);
    for (size_t i = 0; i < HANDOVER_TOKEN_BYTES; i++) {
        int high = hex_digit(digits[2 * i]), low = hex_digit(digits[2 * i + 1]);

        if (high < 0 || low < 0)
            return false;
        token[i] = (unsigned char)(high << 4 | low);
    }
    return true;
}

bool handover_is_our_user(int fd)
{
    struct ucred peer;
    socklen_t size = sizeof(peer);

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

enum status handover_listen(const char *name, int *ret_fd, struct error *err)
{
    struct sockaddr_un address;
    socklen_t size = abstract_address(name, &address);
    int fd = open_seqpacket_socket();

    if (fd < 0)
        return error_set_errno(err, errno, "cannot open a Unix socket");
    if (bind(fd, (struct sockaddr *)&address, size) != 0 || listen(fd, SOMAXCONN) != 0) {
        enum status status = error_set_errno(err, errno, "cannot listen on '@%s'", name);

        (void)close(fd);
        return status;
    }
    *ret_fd = fd;
    return STATUS_OK;
}

enum status handover_connect(const char *name, int64_t deadline_ns, int *ret_fd, struct error *err)
{
    struct sockaddr_un address;
    socklen_t size = abstract_address(name, &address);
    int fd = open_seqpacket_socket();
    enum status status = STATUS_OK;

    if (fd < 0)
        return error_set_errno(err, errno, "cannot open a Unix socket");
    while (status == STATUS_OK && connect(fd, (struct sockaddr *)&address, size) != 0) {
        if (errno == EAGAIN && clock_now_ns() < deadline_ns) /* its backlog is full */
            (void)poll(NULL, 0, 1);
        else if (errno != EINTR)
            status = error_set_errno(err, errno, "cannot connect to '@%s'", name);
    }
    if (status == STATUS_OK && !handover_is_our_user(fd))
        status = error_set(err, STATUS_PROTOCOL, "'@%s' belongs to another user", name);
    if (status != STATUS_OK)
        (void)close(fd);
    else
        *ret_fd = fd;
    return status;
}

/* ---- messages ---- */

/* Wait for poll's `events` until deadline_ns (STATUS_TIMEOUT). */
static enum status wait_for_events(int fd, short events, int64_t deadline_ns, struct error *err)
{
    for (;;) {
        struct pollfd p = {.fd = fd, .events = events};
        int left_ms = clock_left_ms(deadline_ns);
        int ready = poll(&p, 1, left_ms);

        if (ready > 0)
            return STATUS_OK;
        if (ready < 0 && errno != EINTR)
            return error_set_errno(err, errno, "poll");
        if (ready == 0 && left_ms == 0)
            return error_set(err, STATUS_TIMEOUT, "no answer in time");
    }
}

enum status handover_send(int fd, const struct handover_message *message, int memory_fd,
                          int64_t deadline_ns, struct error *err)
{
    union {
        struct cmsghdr head;
        unsigned char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.bytes = {0}};
    struct handover_message copy = *message;
    struct iovec part = {.iov_base = &copy, .iov_len = sizeof(copy)};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};

    if (memory_fd >= 0) {
        header.msg_control = &control;
        header.msg_controllen = sizeof(control);
        control.head.cmsg_level = SOL_SOCKET;
        control.head.cmsg_type = SCM_RIGHTS;
        control.head.cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(&control.head), &memory_fd, sizeof(int));
    }
    while (sendmsg(fd, &header, MSG_NOSIGNAL) < 0) {
        enum status status;

        if (errno == EINTR)
            continue;
        if (errno != EAGAIN)
            return error_set(err, STATUS_PEER_LOST, "the connection broke: %s", strerror(errno));
        status = wait_for_events(fd, POLLOUT, deadline_ns, err);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

/* The message's first descriptor, or -1; any others are closed. */
static int take_descriptor(struct msghdr *message)
{
    int found = -1;

    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
            int fd;

            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
            if (found < 0)
                found = fd;
            else
                (void)close(fd);
        }
    }
    return found;
}

enum status handover_receive(int fd, const unsigned char *token, int64_t deadline_ns,
                             struct handover_message *ret, int *ret_fd, struct error *err)
{
    union {
        struct cmsghdr head;
        unsigned char bytes[CMSG_SPACE(4 * sizeof(int))];
    } control;
    struct iovec part = {.iov_base = ret, .iov_len = sizeof(*ret)};
    struct msghdr message;
    ssize_t length;

    do {
        enum status status = wait_for_events(fd, POLLIN, deadline_ns, err);

        if (status != STATUS_OK)
            return status;
        message = (struct msghdr){.msg_iov = &part,
                                  .msg_iovlen = 1,
                                  .msg_control = &control,
                                  .msg_controllen = sizeof(control)};
        length = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
    } while (length < 0 && (errno == EINTR || errno == EAGAIN));
    if (length < 0)
        return error_set(err, STATUS_PEER_LOST, "the connection broke: %s", strerror(errno));
    *ret_fd = take_descriptor(&message); /* an empty message can carry descriptors */
    if (*ret_fd < 0 && (message.msg_flags & MSG_CTRUNC) != 0)
        return error_set(err, STATUS_IO, "no descriptor is left for shared memory (ulimit -n)");
    if (length == 0) {
        if (*ret_fd >= 0)
            (void)close(*ret_fd);
        *ret_fd = -1;
        return error_set(err, STATUS_PEER_LOST, "the connection broke: closed by the other side");
    }
    if (length != sizeof(*ret) || memcmp(ret->token, token, HANDOVER_TOKEN_BYTES) != 0 ||
        (ret->has_memory != 0) != (*ret_fd >= 0)) {
        if (*ret_fd >= 0)
            (void)close(*ret_fd);
        *ret_fd = -1;
        return error_set(err, STATUS_PROTOCOL, "the message received is not one of this group");
    }
    return STATUS_OK;
}
