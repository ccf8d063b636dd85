/*
 * fault_proxy: a TCP proxy on loopback that a test puts between a worker and a server, to inject
 * faults of a network at chosen times: resets, a black hole, one direction that ends, a slow link,
 * delays.
 *
 * A thread forwards.  The functions may be called from any thread, also from an `act`; they return
 * at once, and hold for what is forwarded next.  Delays are drawn from the seed.
 */
#ifndef SPARRING_TESTS_SUPPORT_FAULT_PROXY_H
#define SPARRING_TESTS_SUPPORT_FAULT_PROXY_H

#include <stdbool.h>
#include <stdint.h>

enum fault_way { FAULT_UP, FAULT_DOWN, FAULT_WAYS }; /* to the server, from it */

struct fault_proxy;

/* Forward connections to a port of 127.0.0.1; fails the test when it cannot. */
struct fault_proxy *fault_proxy_open(uint16_t target, uint64_t seed);
uint16_t fault_proxy_port(const struct fault_proxy *p);
void fault_proxy_close(struct fault_proxy *p); /* NULL is allowed */

/* Change the target port of new connections. */
void fault_proxy_retarget(struct fault_proxy *p, uint16_t target);

/* Reset all connections that are open now. */
void fault_proxy_reset(struct fault_proxy *p);

/* On open connections: bytes in that direction are dropped, and the receiver gets end of file. */
void fault_proxy_end(struct fault_proxy *p, enum fault_way way);

/* Reset new connections at once. */
void fault_proxy_refuse(struct fault_proxy *p, bool on);

/* Forward nothing in that direction, without closing it.  Held bytes are forwarded when it is off
 * again. */
void fault_proxy_hold(struct fault_proxy *p, enum fault_way way, bool on);

/* A black hole for one connection, the one accepted as number `index` (from 0), now or once it is
 * accepted: it forwards nothing more from the server, and with `both` nothing to it, and stays
 * open.  One at a time: another call releases the connection before. */
void fault_proxy_freeze(struct fault_proxy *p, unsigned index, bool both);

/* A link of so many bytes per second in each direction; 0: no limit. */
void fault_proxy_throttle(struct fault_proxy *p, uint64_t bytes_per_second);

/* Keep each read's bytes min_ms to max_ms, in order. */
void fault_proxy_delay(struct fault_proxy *p, unsigned min_ms, unsigned max_ms);

/* Bytes forwarded so far, over all connections. */
uint64_t fault_proxy_bytes(struct fault_proxy *p, enum fault_way way);

/* Connections accepted so far; and when the first one since fault_proxy_expect was accepted, even
 * if it was refused then (clock_now_ns; 0: none). */
unsigned fault_proxy_accepted(struct fault_proxy *p);
void fault_proxy_expect(struct fault_proxy *p);
int64_t fault_proxy_called_ns(struct fault_proxy *p);

/* Run act(user) on the proxy's thread when exactly `bytes` have been forwarded that way (at once,
 * when they have been already), before anything else is forwarded.  One at a time; NULL: none. */
void fault_proxy_at(struct fault_proxy *p, enum fault_way way, uint64_t bytes,
                    void (*act)(void *user), void *user);

#endif
