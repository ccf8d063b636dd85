/*
 * notify: sends readiness, status, shutdown and watchdog messages to the service manager's socket
 * ($NOTIFY_SOCKET; the watchdog interval is $WATCHDOG_USEC).  The protocol is systemd's
 * sd_notify(3), which is stable and needs no library; libsystemd would be useless in a container
 * without systemd.
 *
 * Threads: one caller at a time.  A send blocks up to 5 s when the manager does not read; its
 * errors are ignored, because they do not matter to a server.
 */
#ifndef SPARRING_COMMON_BASE_NOTIFY_H
#define SPARRING_COMMON_BASE_NOTIFY_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

struct notify {
    int fd; /* -1: there is no service manager, and nothing is sent */
    struct sockaddr_un address;
    socklen_t length;
    int64_t watchdog_ns; /* longest time between two watchdog messages; 0: no watchdog */
};

/* Read the environment.  Without NOTIFY_SOCKET notify is disabled.  STATUS_CONFIG when a variable
 * violates sd_notify(3); notify is then disabled too. */
enum status notify_open(struct notify *n, struct error *err);

/* Is there a service manager to send to? */
bool notify_is_enabled(const struct notify *n);

/* One datagram of lines "NAME=value", separated by "\n": "READY=1\nSTATUS=...". */
void notify_send(const struct notify *n, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

void notify_close(struct notify *n);

#endif
