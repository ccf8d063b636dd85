/*
 * net: TCP and Unix end points with deadlines.  Sockets are non-blocking and close-on-exec; TCP
 * sockets have TCP_NODELAY set.
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

/* "host:port" or "[v6]:port", where the port is required and 0 allowed; or "unix:/path", absolute,
 * of at most 107 letters, digits and the characters / . _ - + = @ ~ (others are special to gRPC or
 * in a list of servers).  The error names `what` and the text. */
enum status endpoint_parse(const char *text, const char *what, struct endpoint *ret,
                           struct error *err);

/* The path of a Unix socket, borrowed from e; NULL for host and port. */
const char *endpoint_unix_path(const struct endpoint *e);

/* "host:port" with brackets where the host has a colon, or "unix:/path". */
void endpoint_format(const struct endpoint *e, char *text, size_t size);

/* True for 127.0.0.0/8, ::1, "localhost" and unix sockets. */
int endpoint_is_loopback(const struct endpoint *e);

/* Listen on e (port 0: any free one); *ret_port is the bound port.  When the port is taken the
 * error names the process that holds it (pid and command, when /proc shows them) and `origin`, the
 * option or variable that set the port ("--listen", "MASTER_PORT", ...).  A Unix socket's path must
 * be free, and the caller removes it; its *ret_port is 0. */
enum status net_listen(const struct endpoint *e, const char *origin, int *ret_fd,
                       uint16_t *ret_port, struct error *err);

/* Accept one connection, waiting until deadline_ns (STATUS_TIMEOUT). */
enum status net_accept(int listen_fd, int64_t deadline_ns, int *ret_fd, struct error *err);

/* Does a process listen there?  One try; on failure `reason` is why not ("Connection refused"). */
bool net_probe(const struct endpoint *e, int64_t deadline_ns, char *reason, size_t size);

/* Connect, retrying after every failure until deadline_ns (the peer may not listen yet, its name
 * may not resolve yet).  STATUS_UNREACHABLE names the end point, the time and the last reason. */
enum status net_connect(const struct endpoint *e, int64_t deadline_ns, int *ret_fd,
                        struct error *err);

/* Send or receive exactly `size` bytes until deadline_ns; STATUS_PEER_LOST on EOF or reset. */
enum status net_send_all(int fd, const void *data, size_t size, int64_t deadline_ns,
                         struct error *err);
enum status net_recv_all(int fd, void *data, size_t size, int64_t deadline_ns, struct error *err);

/* Limit the receive window of a connection within this host to NET_LOCAL_WINDOW bytes.  The
 * kernel's auto-tuning grows it to many MiB, whose bytes have left the caches when they are read (2
 * ranks, 64 MiB: 2.9 GB/s with the limit, 1.9 without).  The kernel drops the limit whenever it
 * enlarges the buffer.  So call this after every receive; the receive increased the number of bytes
 * received so far from `before` to `after`.  It sets the limit again when they pass a multiple of
 * NET_LOCAL_WINDOW_EVERY, and otherwise does nothing.  Best effort: a failure is ignored. */
#define NET_LOCAL_WINDOW       (2 << 20)
#define NET_LOCAL_WINDOW_EVERY (1 << 20)
void net_limit_local_window(int fd, uint64_t before, uint64_t after);

/* Set a congestion control without pacing on a socket within this host, so that it sends as fast as
 * the peer reads; a listening socket passes it on to accepted connections.  Pacing (bbr) estimates
 * the bandwidth of a link that does not exist here and delays with timers: 1.5 times the processor
 * time for push and pull of 64 MiB.  Best effort: a failure is ignored. */
void net_disable_pacing(int fd);

/* Let the kernel take at most about NET_UNSENT bytes from this process before it can send them; a
 * listening socket passes the limit on.  Without it the kernel takes megabytes, and what is urgent
 * waits behind them: with four ranks, one server, 4.2 MiB and 300 Mbit/s, a step of 718 ms takes
 * 799.  Best effort: a failure is ignored. */
#define NET_UNSENT (128 << 10)
void net_limit_unsent(int fd);

/* The local address of a connected socket, as a literal into text. */
enum status net_local_host(int fd, char *text, size_t size, struct error *err);

/* "pid 123 (command)" of the process that listens on TCP `port` on this host, or "another process"
 * when /proc does not show it. */
void net_port_holder(uint16_t port, char *text, size_t size);

#endif
