/*
 * sendmsg and recvmsg with SCM_RIGHTS, under a deadline.
 */
#include "common/collective/shm/shm_ticket.h"

#include "common/base/clock.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int shm_ticket_socket(void)
{
    return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

enum status shm_ticket_poll(int fd, short events, int64_t deadline_ns, struct error *err)
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

enum status shm_ticket_send(int fd, const struct shm_ticket *ticket, int memory_fd,
                            int64_t deadline_ns, struct error *err)
{
    union {
        struct cmsghdr head;
        unsigned char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.bytes = {0}};
    struct shm_ticket copy = *ticket;
    struct iovec part = {.iov_base = &copy, .iov_len = sizeof(copy)};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

    if (memory_fd >= 0) {
        message.msg_control = &control;
        message.msg_controllen = sizeof(control);
        control.head.cmsg_level = SOL_SOCKET;
        control.head.cmsg_type = SCM_RIGHTS;
        control.head.cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(&control.head), &memory_fd, sizeof(int));
    }
    while (sendmsg(fd, &message, MSG_NOSIGNAL) < 0) {
        enum status status;

        if (errno == EINTR)
            continue;
        if (errno != EAGAIN)
            return error_set(err, STATUS_PEER_LOST, "the connection broke: %s", strerror(errno));
        status = shm_ticket_poll(fd, POLLOUT, deadline_ns, err);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

/* The descriptor of a message, or -1; further ones are closed. */
static int descriptor_of(struct msghdr *message)
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

enum status shm_ticket_receive(int fd, const unsigned char *token, int64_t deadline_ns,
                               struct shm_ticket *ret, int *ret_fd, struct error *err)
{
    union {
        struct cmsghdr head;
        unsigned char bytes[CMSG_SPACE(4 * sizeof(int))];
    } control;
    struct iovec part = {.iov_base = ret, .iov_len = sizeof(*ret)};
    struct msghdr message;
    ssize_t length;

    do {
        enum status status = shm_ticket_poll(fd, POLLIN, deadline_ns, err);

        if (status != STATUS_OK)
            return status;
        message = (struct msghdr){.msg_iov = &part,
                                  .msg_iovlen = 1,
                                  .msg_control = &control,
                                  .msg_controllen = sizeof(control)};
        length = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
    } while (length < 0 && (errno == EINTR || errno == EAGAIN));
    if (length <= 0)
        return error_set(err, STATUS_PEER_LOST, "the connection broke: %s",
                         length < 0 ? strerror(errno) : "closed by the other side");
    *ret_fd = descriptor_of(&message);
    if (length != sizeof(*ret) || memcmp(ret->token, token, SHM_TOKEN_BYTES) != 0 ||
        (ret->has_memory != 0) != (*ret_fd >= 0)) {
        if (*ret_fd >= 0)
            (void)close(*ret_fd);
        *ret_fd = -1;
        return error_set(err, STATUS_PROTOCOL, "what came is no ticket of this group");
    }
    return STATUS_OK;
}
