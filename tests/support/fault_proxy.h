/*
 * fault_proxy: a TCP proxy on loopback between a worker and a server, with which a test injects
 * network faults at chosen times: reset, black hole, half-closed connection, slow link, delay.
 *
 * A thread forwards.  All functions may be called from any thread, including from `act`; they do
 * not block, and apply to all bytes that are forwarded later.  Delays are drawn from the seed.
 */
#ifndef SPARRING_TESTS_SUPPORT_FAULT_PROXY_H
#define SPARRING_TESTS_SUPPORT_FAULT_PROXY_H

#include <stdbool.h>
#include <stdint.h>

enum fault_direction { FAULT_UP, FAULT_DOWN, FAULT_DIRECTIONS }; /* up: to the server */

struct fault_proxy;

/* Forward connections to a port of 127.0.0.1; an error fails the test. */
struct fault_proxy *fault_proxy_open(uint16_t target, uint64_t seed);
uint16_t fault_proxy_port(const struct fault_proxy *p);
void fault_proxy_close(struct fault_proxy *p); /* NULL is allowed */

/* Change the target port of new connections. */
void fault_proxy_retarget(struct fault_proxy *p, uint16_t target);

/* Reset all open connections. */
void fault_proxy_reset(struct fault_proxy *p);

/* Half-close open connections: drop bytes in that direction; the receiver gets end of file. */
void fault_proxy_half_close(struct fault_proxy *p, enum fault_direction direction);

/* Reset each new connection at once. */
void fault_proxy_refuse(struct fault_proxy *p, bool on);

/* Forward nothing in that direction, without closing it.  Switching it off forwards the held bytes.
 */
void fault_proxy_hold(struct fault_proxy *p, enum fault_direction direction, bool on);

/* Turn one connection, number `index` in the order of acceptance (from 0), into a black hole, now
 * or once it is accepted: it stays open and forwards nothing from the server, and with `both`
 * nothing to it.  One at a time: another call releases the previous connection. */
void fault_proxy_freeze(struct fault_proxy *p, unsigned index, bool both);

/* Limit the rate of each direction; 0: no limit. */
void fault_proxy_throttle(struct fault_proxy *p, uint64_t bytes_per_second);

/* Delay the bytes of each read by min_ms to max_ms, in order. */
void fault_proxy_delay(struct fault_proxy *p, unsigned min_ms, unsigned max_ms);

/* Bytes forwarded so far, over all connections. */
uint64_t fault_proxy_bytes(struct fault_proxy *p, enum fault_direction direction);

/* Connections accepted and forwarded so far.  Time of the first connection attempt since
 * fault_proxy_reset_first_connect, even if it was refused (clock_now_ns; 0: none). */
unsigned fault_proxy_accepted(struct fault_proxy *p);
void fault_proxy_reset_first_connect(struct fault_proxy *p);
int64_t fault_proxy_first_connect_ns(struct fault_proxy *p);

/* Call act(user) on the proxy's thread when exactly `bytes` have been forwarded in that direction
 * (at once if they have been already), before any other byte is forwarded.  One at a time; NULL:
 * none. */
void fault_proxy_call_at(struct fault_proxy *p, enum fault_direction direction, uint64_t bytes,
                         void (*act)(void *user), void *user);

#endif
