/*
 * fault_proxy: one thread with poll.  Each direction of a connection has a buffer, and a list of
 * the reads in it with the time at which each may be forwarded.
 * Limits: 64 connections at once; 128 KiB and 64 reads per direction.
 * Locking: the thread copies the settings under the lock once per iteration of its loop.  Only the
 * thread uses sockets and buffers.
 */
#include "tests/support/fault_proxy.h"

#include "common/base/clock.h"
#include "tests/support/support.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONNECTIONS_MAX 64u
#define BUFFER_BYTES    ((size_t)128 << 10)
#define READS_MAX       64u
#define SLICE_BYTES     ((size_t)8 << 10) /* per send on a slow link */

struct waiting_read {
    int64_t due_ns;
    size_t size; /* bytes not forwarded yet */
};

/* One direction of a connection: from fds[direction] to fds[!direction]. */
struct flow {
    uint8_t *bytes; /* ring of BUFFER_BYTES, owned */
    size_t first, length;
    struct waiting_read reads[READS_MAX]; /* ring */
    unsigned reads_first, reads_count;
    bool has_end;          /* end of file received */
    bool is_end_forwarded; /* end of file forwarded */
    bool is_discarded;     /* drop received bytes */
    bool is_frozen;
};

struct connection {
    bool open;
    unsigned index; /* in the order of acceptance */
    int fds[2];     /* client, server */
    struct flow flows[FAULT_DIRECTIONS];
};

/* Settings that the test makes. */
struct settings {
    bool stop, reset, refuse;
    bool end[FAULT_DIRECTIONS], hold[FAULT_DIRECTIONS];
    bool freeze[FAULT_DIRECTIONS];
    unsigned frozen; /* with freeze: the connection's index */
    uint64_t rate;
    unsigned min_ms, max_ms;
    uint16_t target;
    uint64_t at_bytes; /* with act */
    enum fault_direction at_direction;
    void (*act)(void *user);
    void *act_user;
};

struct fault_proxy {
    pthread_t thread;
    int listener, wake;
    uint16_t port;
    pthread_mutex_t lock;
    struct settings settings;          /* (lock) */
    uint64_t bytes[FAULT_DIRECTIONS];  /* (lock) for writes, and for reads by other threads */
    unsigned accepted;                 /* (lock) as well */
    int64_t first_connect_ns;          /* (lock) as well */
    struct settings applied;           /* used by the thread only, as all members below */
    int64_t free_ns[FAULT_DIRECTIONS]; /* with a rate: when the next send is allowed */
    uint64_t random;
    struct connection connections[CONNECTIONS_MAX];
};

/* ------------------------------------------------------------------ connections */

static void configure_socket(int fd)
{
    int on = 1;

    (void)fcntl(fd, F_SETFL, O_NONBLOCK);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

static void reset_socket(int fd)
{
    struct linger linger = {.l_onoff = 1};

    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
    (void)close(fd);
}

static void close_connection(struct connection *c, bool with_reset)
{
    for (int side = 0; side < 2; side++) {
        if (with_reset)
            reset_socket(c->fds[side]);
        else
            (void)close(c->fds[side]);
        free(c->flows[side].bytes);
    }
    memset(c, 0, sizeof(*c));
}

static int connect_to(uint16_t port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd >= 0 && connect(fd, (const struct sockaddr *)&address, sizeof(address)) != 0) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

static void accept_one(struct fault_proxy *p)
{
    struct connection *c = p->connections;
    int client = accept4(p->listener, NULL, NULL, SOCK_CLOEXEC);
    int server;

    if (client < 0)
        return;
    (void)pthread_mutex_lock(&p->lock);
    if (p->first_connect_ns == 0)
        p->first_connect_ns = clock_now_ns();
    (void)pthread_mutex_unlock(&p->lock);
    while (c < p->connections + CONNECTIONS_MAX && c->open)
        c++;
    server = p->applied.refuse || c == p->connections + CONNECTIONS_MAX
                 ? -1
                 : connect_to(p->applied.target);
    if (server < 0) {
        reset_socket(client);
        return;
    }
    *c = (struct connection){.open = true, .index = p->accepted, .fds = {client, server}};
    for (int direction = 0; direction < FAULT_DIRECTIONS; direction++) {
        c->flows[direction].bytes = malloc(BUFFER_BYTES);
        configure_socket(c->fds[direction]);
        if (!c->flows[direction].bytes)
            abort();
    }
    (void)pthread_mutex_lock(&p->lock);
    p->accepted++;
    (void)pthread_mutex_unlock(&p->lock);
}

/* ------------------------------------------------------------------ forwarding */

static uint64_t draw_below(struct fault_proxy *p, uint64_t limit)
{
    p->random ^= p->random << 13;
    p->random ^= p->random >> 7;
    p->random ^= p->random << 17;
    return p->random % limit;
}

static bool can_read(const struct fault_proxy *p, const struct flow *f,
                     enum fault_direction direction)
{
    return !f->has_end && f->length < BUFFER_BYTES && f->reads_count < READS_MAX &&
           !p->applied.hold[direction] && !f->is_frozen;
}

/* When the next bytes may be written; INT64_MAX: there are none. */
static int64_t write_time_ns(const struct fault_proxy *p, const struct flow *f,
                             enum fault_direction direction)
{
    int64_t due_ns = f->reads[f->reads_first].due_ns;

    if (f->reads_count == 0 || p->applied.hold[direction] || f->is_frozen)
        return INT64_MAX;
    return p->applied.rate > 0 && p->free_ns[direction] > due_ns ? p->free_ns[direction] : due_ns;
}

/* Returns false when the connection has failed. */
static bool read_to_buffer(struct fault_proxy *p, struct connection *c,
                           enum fault_direction direction)
{
    struct flow *f = &c->flows[direction];
    size_t at = (f->first + f->length) % BUFFER_BYTES;
    size_t room = BUFFER_BYTES - f->length;
    ssize_t size = recv(c->fds[direction], f->bytes + at,
                        room < BUFFER_BYTES - at ? room : BUFFER_BYTES - at, 0);
    struct waiting_read *r = &f->reads[(f->reads_first + f->reads_count) % READS_MAX];
    uint64_t span = p->applied.max_ms - p->applied.min_ms + UINT64_C(1);

    if (size < 0)
        return errno == EAGAIN || errno == EINTR;
    f->has_end = size == 0;
    if (size == 0 || f->is_discarded)
        return true;
    r->size = (size_t)size;
    r->due_ns = clock_now_ns();
    if (p->applied.max_ms > 0)
        r->due_ns += (int64_t)(p->applied.min_ms + draw_below(p, span)) * 1000000;
    f->length += (size_t)size;
    f->reads_count++;
    return true;
}

/* How many bytes of the oldest read may be sent now. */
static size_t sendable_bytes(const struct fault_proxy *p, const struct flow *f,
                             enum fault_direction direction)
{
    size_t size = f->reads[f->reads_first].size;
    uint64_t left = p->applied.at_bytes - p->bytes[direction];

    if (size > BUFFER_BYTES - f->first)
        size = BUFFER_BYTES - f->first;
    if (p->applied.rate > 0 && size > SLICE_BYTES)
        size = SLICE_BYTES;
    if (p->applied.act && p->applied.at_direction == direction && size > left)
        size = (size_t)left;
    return size;
}

static bool write_from_buffer(struct fault_proxy *p, struct connection *c,
                              enum fault_direction direction)
{
    struct flow *f = &c->flows[direction];
    int64_t now_ns = clock_now_ns();
    ssize_t size;

    (void)pthread_mutex_lock(&p->lock); /* the receiver must see them counted */
    size = send(c->fds[!direction], f->bytes + f->first, sendable_bytes(p, f, direction),
                MSG_NOSIGNAL);
    if (size > 0)
        p->bytes[direction] += (uint64_t)size;
    (void)pthread_mutex_unlock(&p->lock);
    if (size < 0)
        return errno == EAGAIN || errno == EINTR;
    f->first = (f->first + (size_t)size) % BUFFER_BYTES;
    f->length -= (size_t)size;
    f->reads[f->reads_first].size -= (size_t)size;
    if (f->reads[f->reads_first].size == 0) {
        f->reads_first = (f->reads_first + 1) % READS_MAX;
        f->reads_count--;
    }
    if (p->applied.rate > 0)
        p->free_ns[direction] = (p->free_ns[direction] > now_ns ? p->free_ns[direction] : now_ns) +
                                (int64_t)((uint64_t)size * 1000000000 / p->applied.rate);
    return true;
}

/* Forward end of file; close the connection when both directions have ended. */
static void forward_ends(struct connection *c)
{
    for (int direction = 0; direction < FAULT_DIRECTIONS; direction++) {
        struct flow *f = &c->flows[direction];

        if (f->has_end && f->reads_count == 0 && !f->is_end_forwarded) {
            (void)shutdown(c->fds[!direction], SHUT_WR);
            f->is_end_forwarded = true;
        }
    }
    if (c->flows[FAULT_UP].is_end_forwarded && c->flows[FAULT_DOWN].is_end_forwarded)
        close_connection(c, false);
}

/* ------------------------------------------------------------------ the thread */

static void discard_reads(struct connection *c, enum fault_direction direction)
{
    struct flow *f = &c->flows[direction];

    f->is_discarded = true;
    f->first = f->length = 0;
    f->reads_count = 0;
    if (!f->is_end_forwarded)
        (void)shutdown(c->fds[!direction], SHUT_WR);
    f->is_end_forwarded = true;
}

/* Call `act` when its byte is reached; its settings apply before any other byte is forwarded. */
static void apply_settings(struct fault_proxy *p)
{
    for (;;) {
        void (*act)(void *user) = NULL;
        void *user;

        (void)pthread_mutex_lock(&p->lock);
        if (p->settings.act && p->bytes[p->settings.at_direction] >= p->settings.at_bytes) {
            act = p->settings.act;
            p->settings.act = NULL;
        }
        user = p->settings.act_user;
        p->applied = p->settings;
        if (!act)
            p->settings.reset = p->settings.end[FAULT_UP] = p->settings.end[FAULT_DOWN] = false;
        (void)pthread_mutex_unlock(&p->lock);
        if (!act)
            break;
        act(user);
    }
    for (unsigned i = 0; i < CONNECTIONS_MAX; i++) {
        struct connection *c = &p->connections[i];

        for (int direction = 0; c->open && direction < FAULT_DIRECTIONS; direction++) {
            c->flows[direction].is_frozen =
                p->applied.freeze[direction] && c->index == p->applied.frozen;
            if (p->applied.end[direction])
                discard_reads(c, (enum fault_direction)direction);
        }
        if (c->open && p->applied.reset)
            close_connection(c, true);
    }
}

static int poll_timeout_ms(int64_t at_ns)
{
    int64_t left_ns = at_ns - clock_now_ns();

    if (at_ns == INT64_MAX)
        return -1;
    return left_ns <= 0 ? 0 : (int)(left_ns / 1000000) + 1;
}

/* Set the events of each socket; returns when the next delayed write is due. */
static int64_t prepare_poll(const struct fault_proxy *p, struct pollfd *polls)
{
    int64_t now_ns = clock_now_ns(), next_ns = INT64_MAX;

    for (unsigned i = 0; i < CONNECTIONS_MAX; i++) {
        const struct connection *c = &p->connections[i];
        short events[2] = {0, 0};

        for (int direction = 0; c->open && direction < FAULT_DIRECTIONS; direction++) {
            int64_t due_ns =
                write_time_ns(p, &c->flows[direction], (enum fault_direction)direction);

            if (can_read(p, &c->flows[direction], (enum fault_direction)direction))
                events[direction] |= POLLIN;
            if (due_ns <= now_ns)
                events[!direction] |= POLLOUT;
            else if (due_ns < next_ns)
                next_ns = due_ns;
        }
        for (int side = 0; side < 2; side++) /* -1: hang-ups must not wake poll */
            polls[2 * i + (unsigned)side] = (struct pollfd){
                .fd = c->open && events[side] ? c->fds[side] : -1, .events = events[side]};
    }
    return next_ns;
}

static void serve_connection(struct fault_proxy *p, struct connection *c,
                             const struct pollfd *polls)
{
    for (int direction = 0; direction < FAULT_DIRECTIONS; direction++) {
        struct flow *f = &c->flows[direction];
        bool readable = polls[direction].revents & (POLLIN | POLLHUP | POLLERR);
        bool writable = polls[!direction].revents & (POLLOUT | POLLHUP | POLLERR);

        if (readable && can_read(p, f, (enum fault_direction)direction) &&
            !read_to_buffer(p, c, (enum fault_direction)direction)) {
            close_connection(c, true);
            return;
        }
        if (writable && write_time_ns(p, f, (enum fault_direction)direction) <= clock_now_ns()) {
            if (!write_from_buffer(p, c, (enum fault_direction)direction)) {
                close_connection(c, true);
                return;
            }
            apply_settings(p);
            if (!c->open)
                return;
        }
    }
    forward_ends(c);
}

static void *forward_connections(void *user)
{
    struct fault_proxy *p = user;
    static _Thread_local struct pollfd polls[2 * CONNECTIONS_MAX + 2];

    for (apply_settings(p); !p->applied.stop; apply_settings(p)) {
        int64_t next_ns = prepare_poll(p, polls);
        uint64_t count;

        polls[2 * CONNECTIONS_MAX] = (struct pollfd){.fd = p->wake, .events = POLLIN};
        polls[2 * CONNECTIONS_MAX + 1] = (struct pollfd){.fd = p->listener, .events = POLLIN};
        if (poll(polls, 2 * CONNECTIONS_MAX + 2, poll_timeout_ms(next_ns)) < 0)
            continue;
        if (polls[2 * CONNECTIONS_MAX].revents)
            (void)!read(p->wake, &count, sizeof(count));
        apply_settings(p);
        for (unsigned i = 0; i < CONNECTIONS_MAX; i++)
            if (p->connections[i].open)
                serve_connection(p, &p->connections[i], &polls[2 * (size_t)i]);
        if (polls[2 * CONNECTIONS_MAX + 1].revents)
            accept_one(p);
    }
    for (unsigned i = 0; i < CONNECTIONS_MAX; i++)
        if (p->connections[i].open)
            close_connection(&p->connections[i], true);
    return NULL;
}

/* ------------------------------------------------------------------ settings of the test */

struct fault_proxy *fault_proxy_open(uint16_t target, uint64_t seed)
{
    struct fault_proxy *p = calloc(1, sizeof(*p));
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);

    ck_assert_ptr_nonnull(p);
    p->random = seed | 1;
    p->settings.target = target;
    (void)pthread_mutex_init(&p->lock, NULL);
    p->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    p->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    ck_assert_int_ge(p->wake, 0);
    ck_assert_int_eq(bind(p->listener, (const struct sockaddr *)&address, length), 0);
    ck_assert_int_eq(listen(p->listener, (int)CONNECTIONS_MAX), 0);
    ck_assert_int_eq(getsockname(p->listener, (struct sockaddr *)&address, &length), 0);
    p->port = ntohs(address.sin_port);
    ck_assert_int_eq(pthread_create(&p->thread, NULL, forward_connections, p), 0);
    return p;
}

uint16_t fault_proxy_port(const struct fault_proxy *p)
{
    return p->port;
}

static void lock_settings(struct fault_proxy *p)
{
    (void)pthread_mutex_lock(&p->lock);
}

static void unlock_and_wake(struct fault_proxy *p)
{
    uint64_t one = 1;

    (void)pthread_mutex_unlock(&p->lock);
    (void)!write(p->wake, &one, sizeof(one));
}

void fault_proxy_close(struct fault_proxy *p)
{
    if (!p)
        return;
    lock_settings(p);
    p->settings.stop = true;
    unlock_and_wake(p);
    (void)pthread_join(p->thread, NULL);
    (void)close(p->listener);
    (void)close(p->wake);
    (void)pthread_mutex_destroy(&p->lock);
    free(p);
}

void fault_proxy_retarget(struct fault_proxy *p, uint16_t target)
{
    lock_settings(p);
    p->settings.target = target;
    unlock_and_wake(p);
}

void fault_proxy_reset(struct fault_proxy *p)
{
    lock_settings(p);
    p->settings.reset = true;
    unlock_and_wake(p);
}

void fault_proxy_half_close(struct fault_proxy *p, enum fault_direction direction)
{
    lock_settings(p);
    p->settings.end[direction] = true;
    unlock_and_wake(p);
}

void fault_proxy_refuse(struct fault_proxy *p, bool on)
{
    lock_settings(p);
    p->settings.refuse = on;
    unlock_and_wake(p);
}

void fault_proxy_hold(struct fault_proxy *p, enum fault_direction direction, bool on)
{
    lock_settings(p);
    p->settings.hold[direction] = on;
    unlock_and_wake(p);
}

void fault_proxy_freeze(struct fault_proxy *p, unsigned index, bool both)
{
    lock_settings(p);
    p->settings.freeze[FAULT_DOWN] = true;
    p->settings.freeze[FAULT_UP] = both;
    p->settings.frozen = index;
    unlock_and_wake(p);
}

void fault_proxy_throttle(struct fault_proxy *p, uint64_t bytes_per_second)
{
    lock_settings(p);
    p->settings.rate = bytes_per_second;
    unlock_and_wake(p);
}

void fault_proxy_delay(struct fault_proxy *p, unsigned min_ms, unsigned max_ms)
{
    lock_settings(p);
    p->settings.min_ms = min_ms;
    p->settings.max_ms = max_ms;
    unlock_and_wake(p);
}

uint64_t fault_proxy_bytes(struct fault_proxy *p, enum fault_direction direction)
{
    uint64_t bytes;

    (void)pthread_mutex_lock(&p->lock);
    bytes = p->bytes[direction];
    (void)pthread_mutex_unlock(&p->lock);
    return bytes;
}

unsigned fault_proxy_accepted(struct fault_proxy *p)
{
    unsigned accepted;

    (void)pthread_mutex_lock(&p->lock);
    accepted = p->accepted;
    (void)pthread_mutex_unlock(&p->lock);
    return accepted;
}

void fault_proxy_reset_first_connect(struct fault_proxy *p)
{
    (void)pthread_mutex_lock(&p->lock);
    p->first_connect_ns = 0;
    (void)pthread_mutex_unlock(&p->lock);
}

int64_t fault_proxy_first_connect_ns(struct fault_proxy *p)
{
    int64_t first_connect_ns;

    (void)pthread_mutex_lock(&p->lock);
    first_connect_ns = p->first_connect_ns;
    (void)pthread_mutex_unlock(&p->lock);
    return first_connect_ns;
}

void fault_proxy_call_at(struct fault_proxy *p, enum fault_direction direction, uint64_t bytes,
                         void (*act)(void *user), void *user)
{
    lock_settings(p);
    p->settings.at_direction = direction;
    p->settings.at_bytes = bytes;
    p->settings.act = act;
    p->settings.act_user = user;
    unlock_and_wake(p);
}
