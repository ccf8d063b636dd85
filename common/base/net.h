/*
 * net: TCP and Unix end points with deadlines.  Sockets are non-blocking, close-on-exec and, over
 * TCP, without delay.
 */
#ifndef SPARRING_COMMON_BASE_NET_H
#define SPARRING_COMMON_BASE_NET_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct endpoint {
    char host[256]; /* name or literal, an IPv6 literal without its brackets; or "unix:/path" */
    uint16_t port;  /* 0 for a Unix socket */
};

/* "host:port", "[v6]:port", the port is required, 0 allowed; or "unix:/path", absolute, of at most
 * 107 letters, digits and the characters / . _ - + = @ ~ (others mean something to gRPC or in a
 * list of servers).  The error names `what` and the text. */
enum status endpoint_parse(const char *text, const char *what, struct endpoint *ret,
                           struct error *err);

/* The path of a Unix socket, inside e; NULL for host and port. */
const char *endpoint_unix_path(const struct endpoint *e);

/* "host:port" with brackets where the host has a colon, or "unix:/path". */
void endpoint_format(const struct endpoint *e, char *text, size_t size);

/* True for 127.0.0.0/8, ::1, "localhost" and unix sockets. */
int endpoint_is_loopback(const struct endpoint *e);

/* Listen on e (port 0: any free one); *ret_port is the bound port.  When the port is taken the
 * error says which process holds it (pid and command, where /proc tells) and `origin`, where the
 * number came from ("--listen", "MASTER_PORT", ...).  A Unix socket's path must be free and is the
 * caller's to remove; its *ret_port is 0. */
enum status net_listen(const struct endpoint *e, const char *origin, int *ret_fd,
                       uint16_t *ret_port, struct error *err);

/* Accept one connection, waiting until deadline_ns (STATUS_TIMEOUT). */
enum status net_accept(int listen_fd, int64_t deadline_ns, int *ret_fd, struct error *err);

/* Does somebody listen there?  One try; else `reason` says why not ("Connection refused"). */
bool net_probe(const struct endpoint *e, int64_t deadline_ns, char *reason, size_t size);

/* Connect, trying again until deadline_ns whatever the reason (the peer may not listen yet, or its
 * name may not be known yet).  STATUS_UNREACHABLE names the end point, the time and the last
 * reason. */
enum status net_connect(const struct endpoint *e, int64_t deadline_ns, int *ret_fd,
                        struct error *err);

/* Send or receive exactly `size` bytes until deadline_ns; STATUS_PEER_LOST on EOF or reset. */
enum status net_send_all(int fd, const void *data, size_t size, int64_t deadline_ns,
                         struct error *err);
enum status net_recv_all(int fd, void *data, size_t size, int64_t deadline_ns, struct error *err);

/* Keep the receive window of a connection inside this host at NET_LOCAL_WINDOW bytes.  The kernel's
 * own tuning goes too far there: a window of many MiB fills with bytes that have left the caches
 * when they are read (2 ranks, 64 MiB: 2.9 instead of 1.9 GB/s).  The kernel forgets the bound
 * whenever it enlarges the buffer.  So call this after every receive, which took the bytes received
 * so far from `before` to `after`: it says the bound again where they pass a multiple of
 * NET_LOCAL_WINDOW_EVERY, and else does nothing.  A hint: no harm where it fails. */
#define NET_LOCAL_WINDOW       (2 << 20)
#define NET_LOCAL_WINDOW_EVERY (1 << 20)
void net_bound_local_window(int fd, uint64_t before, uint64_t after);

/* Have a socket that stays inside this host send as fast as the peer reads, whatever the system's
 * congestion control is: of the connections accepted by it, too, where it listens.  One that paces
 * (bbr) estimates the speed of a line that is not there, and holds back with timers: 1.5 times the
 * processor time for push and pull of 64 MiB.  A hint: no harm where it fails. */
void net_unpace(int fd);

/* The local address of a connected socket, as a literal into text. */
enum status net_local_host(int fd, char *text, size_t size, struct error *err);

/* "pid 123 (command)" of the process that listens on TCP `port` on this host, or "another process"
 * where /proc does not tell. */
void net_port_holder(uint16_t port, char *text, size_t size);

#endif
