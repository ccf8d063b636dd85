/*
 * notify: what a service manager is told through the socket that it names in $NOTIFY_SOCKET:
 * readiness, status, the end, and a sign of life as often as $WATCHDOG_USEC demands.  The protocol
 * of systemd's sd_notify(3), which is stable and needs no library: libsystemd would be the one
 * dependency that a container without systemd has no use for.
 *
 * Threads: one caller at a time.  A send waits up to 5 s for a manager that does not read; what
 * goes wrong with it is of no consequence to a server and is not told.
 */
#ifndef SPARRING_COMMON_BASE_NOTIFY_H
#define SPARRING_COMMON_BASE_NOTIFY_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

struct notify {
    int fd; /* -1: nobody listens, and nothing is sent */
    struct sockaddr_un address;
    socklen_t length;
    int64_t watchdog_ns; /* a sign of life is due within each; 0: none is wanted */
};

/* Read the environment.  Without NOTIFY_SOCKET nobody listens.  STATUS_CONFIG when a variable is
 * not what sd_notify(3) says; then, too, nobody listens. */
enum status notify_open(struct notify *n, struct error *err);

/* Somebody listens. */
bool notify_is_wanted(const struct notify *n);

/* One datagram of lines "NAME=value", separated by "\n": "READY=1\nSTATUS=...". */
void notify_send(const struct notify *n, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

void notify_close(struct notify *n);

#endif
