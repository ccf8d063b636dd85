#include "tests/common/collective/ring/memory_transport.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct pipe {
    unsigned char *bytes; /* owned, capacity */
    size_t head, length;
    bool ended; /* the writer is gone */
};

struct rank_transport {
    struct transport head;
    struct memory_world *world;
    unsigned rank;
};

struct memory_world {
    unsigned size;
    size_t capacity;
    uint64_t random;    /* 0: whole pieces */
    struct pipe *pipes; /* [from][to] */
    struct rank_transport *ranks;
};

static struct pipe *pipe_of(struct memory_world *w, unsigned from, unsigned to)
{
    return &w->pipes[from * w->size + to];
}

/* How many of `size` bytes move now: 0 to all. */
static size_t piece(struct memory_world *w, size_t size)
{
    if (w->random == 0 || size == 0)
        return size;
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return w->random % 4 == 0 ? size : (size_t)(w->random >> 8) % (size + 1);
}

size_t memory_put(struct memory_world *w, unsigned from, unsigned to, const void *bytes,
                  size_t size)
{
    struct pipe *p = pipe_of(w, from, to);
    const unsigned char *at = bytes;
    size_t done = 0;

    for (; done < size && p->length < w->capacity; done++)
        p->bytes[(p->head + p->length++) % w->capacity] = at[done];
    return done;
}

size_t memory_take(struct memory_world *w, unsigned from, unsigned to, void *bytes, size_t size)
{
    struct pipe *p = pipe_of(w, from, to);
    unsigned char *at = bytes;
    size_t done = 0;

    for (; done < size && p->length > 0; done++, p->length--) {
        at[done] = p->bytes[p->head];
        p->head = (p->head + 1) % w->capacity;
    }
    return done;
}

void memory_end(struct memory_world *w, unsigned from, unsigned to)
{
    pipe_of(w, from, to)->ended = true;
}

/* ---- the table ---- */

static ssize_t memory_send(struct transport *head, unsigned peer, const struct iovec *parts,
                           int count)
{
    struct rank_transport *t = (struct rank_transport *)head;
    size_t done = 0;

    if (pipe_of(t->world, peer, t->rank)->ended)
        return TRANSPORT_ENDED;
    for (int i = 0; i < count; i++) {
        size_t wish = piece(t->world, parts[i].iov_len);
        size_t put = memory_put(t->world, t->rank, peer, parts[i].iov_base, wish);

        done += put;
        if (put < parts[i].iov_len)
            break;
    }
    return (ssize_t)done;
}

static ssize_t memory_receive(struct transport *head, unsigned peer, const struct iovec *parts,
                              int count)
{
    struct rank_transport *t = (struct rank_transport *)head;
    struct pipe *p = pipe_of(t->world, peer, t->rank);
    size_t done = 0;

    if (p->length == 0 && p->ended)
        return TRANSPORT_ENDED;
    for (int i = 0; i < count; i++) {
        size_t wish = piece(t->world, parts[i].iov_len);
        size_t got = memory_take(t->world, peer, t->rank, parts[i].iov_base, wish);

        done += got;
        if (got < parts[i].iov_len)
            break;
    }
    return (ssize_t)done;
}

static bool memory_wait(struct transport *head, struct transport_interest *interests, size_t count,
                        int alarm_fd, int64_t until_ns)
{
    struct rank_transport *t = (struct rank_transport *)head;

    (void)alarm_fd;
    (void)until_ns;
    for (size_t i = 0; i < count; i++) {
        const struct pipe *in = pipe_of(t->world, interests[i].peer, t->rank);
        const struct pipe *out = pipe_of(t->world, t->rank, interests[i].peer);

        interests[i].can_send =
            interests[i].send && (out->length < t->world->capacity || in->ended);
        interests[i].can_receive = interests[i].receive && (in->length > 0 || in->ended);
    }
    return true;
}

static const struct transport_ops memory_ops = {
    .name = "memory",
    .send = memory_send,
    .receive = memory_receive,
    .wait = memory_wait,
};

/* ---- lifetime ---- */

struct memory_world *memory_world_open(unsigned world_size, size_t capacity, uint64_t seed)
{
    struct memory_world *w = calloc(1, sizeof(*w));
    size_t pipes = (size_t)world_size * world_size;

    if (!w)
        return NULL;
    *w = (struct memory_world){.size = world_size, .capacity = capacity, .random = seed};
    w->pipes = calloc(pipes, sizeof(*w->pipes));
    w->ranks = calloc(world_size, sizeof(*w->ranks));
    for (size_t i = 0; w->pipes && i < pipes; i++)
        w->pipes[i].bytes = malloc(capacity);
    for (unsigned r = 0; w->ranks && r < world_size; r++)
        w->ranks[r] = (struct rank_transport){.head = {.ops = &memory_ops}, .world = w, .rank = r};
    return w;
}

void memory_world_close(struct memory_world *w)
{
    for (size_t i = 0; i < (size_t)w->size * w->size; i++)
        free(w->pipes[i].bytes);
    free(w->pipes);
    free(w->ranks);
    free(w);
}

struct transport *memory_world_transport(struct memory_world *w, unsigned rank)
{
    return &w->ranks[rank].head;
}
