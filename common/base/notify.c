/*
 * The client side of sd_notify(3): one datagram socket, opened once from the environment.  A failed
 * send is ignored, because a server must not depend on its service manager.  No locks: one caller
 * at a time.
 */
#include "common/base/notify.h"

#include "common/base/parse.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#define MESSAGE_MAX    2048
#define SEND_TIMEOUT_S 5

/* "/path", or "@name" in the abstract namespace, whose first byte is 0. */
static enum status read_address(struct notify *n, const char *text, struct error *err)
{
    size_t length = strlen(text);

    if (text[0] != '/' && text[0] != '@')
        return error_set(err, STATUS_CONFIG,
                         "NOTIFY_SOCKET='%s' is neither an absolute path nor '@name'", text);
    if (length >= sizeof(n->address.sun_path))
        return error_set(err, STATUS_CONFIG,
                         "NOTIFY_SOCKET has %zu bytes, at most %zu are possible", length,
                         sizeof(n->address.sun_path) - 1);
    n->address.sun_family = AF_UNIX;
    memcpy(n->address.sun_path, text, length);
    if (text[0] == '@')
        n->address.sun_path[0] = '\0';
    n->length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
    return STATUS_OK;
}

static enum status read_number(const char *name, uint64_t *ret, struct error *err)
{
    const char *text = getenv(name);

    if (text && (!parse_uint64(text, ret) || *ret == 0 || *ret > INT64_MAX / 1000))
        return error_set(err, STATUS_CONFIG, "%s='%s' is not a positive number", name, text);
    return STATUS_OK;
}

/* The environment may be inherited from the process that the watchdog is for: WATCHDOG_PID. */
static enum status read_watchdog(struct notify *n, struct error *err)
{
    uint64_t usec = 0, pid = (uint64_t)getpid();
    enum status status = read_number("WATCHDOG_USEC", &usec, err);

    if (status == STATUS_OK)
        status = read_number("WATCHDOG_PID", &pid, err);
    if (status == STATUS_OK && pid == (uint64_t)getpid())
        n->watchdog_ns = (int64_t)usec * 1000;
    return status;
}

enum status notify_open(struct notify *n, struct error *err)
{
    const struct timeval send_timeout = {.tv_sec = SEND_TIMEOUT_S};
    const char *text = getenv("NOTIFY_SOCKET");
    enum status status;

    *n = (struct notify){.fd = -1};
    if (!text || !*text)
        return STATUS_OK;
    status = read_address(n, text, err);
    if (status == STATUS_OK)
        status = read_watchdog(n, err);
    if (status != STATUS_OK)
        return status;
    n->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (n->fd < 0)
        return error_set_errno(err, errno, "cannot make a socket for NOTIFY_SOCKET");
    (void)setsockopt(n->fd, SOL_SOCKET, SO_SNDTIMEO, &send_timeout, sizeof(send_timeout));
    return STATUS_OK;
}

bool notify_is_enabled(const struct notify *n)
{
    return n->fd >= 0;
}

void notify_send(const struct notify *n, const char *format, ...)
{
    char text[MESSAGE_MAX];
    va_list args;
    int length;

    if (n->fd < 0)
        return;
    va_start(args, format);
    length = vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (length <= 0)
        return;
    if ((size_t)length >= sizeof(text))
        length = (int)sizeof(text) - 1;
    (void)sendto(n->fd, text, (size_t)length, MSG_NOSIGNAL, (const struct sockaddr *)&n->address,
                 n->length);
}

void notify_close(struct notify *n)
{
    if (n->fd >= 0)
        (void)close(n->fd);
    n->fd = -1;
}
