/*
 * flows: the rates are computed anew when connections with messages or their weights change.
 */
#include "experiments/predict/flows.h"

#include <float.h>
#include <math.h>

#define ROUNDING 1e-9 /* relative */
#define TICK_S   1e-12

/* What is ahead of a message that waits: in gRPC, the socket and the queues of links.  From runs of
 * two ranks at 300 Mbit/s and 1 Gbit/s without delay: between 800 KiB and 1.5 MiB all give the
 * same. */
#define AHEAD_BYTES (1 << 20)

static uint32_t *message_at(const struct connection *c, size_t index)
{
    return &c->messages[(c->first + index) % c->capacity];
}

/* ---- messages */

/* Messages are taken until AHEAD_BYTES are on their way; those stay in their order.  Of the others
 * the last partition is next, which the next forward reads first. */
static void take_messages(struct flows *f, struct connection *c)
{
    double held_bytes = 0;

    for (size_t i = 0; i < c->taken; i++)
        held_bytes += f->bytes(f->user, c, *message_at(c, i));
    for (; c->taken < c->length && held_bytes < AHEAD_BYTES; c->taken++) {
        uint32_t *next = message_at(c, c->taken);

        for (size_t i = c->taken + 1; i < c->length && !f->in_order; i++) {
            uint32_t *other = message_at(c, i);
            const uint32_t partition = *next;

            if (*other > partition) {
                *next = *other;
                *other = partition;
            }
        }
        held_bytes += f->bytes(f->user, c, *next);
    }
}

void flows_send(struct flows *f, struct connection *c, uint32_t partition)
{
    *message_at(c, c->length++) = partition;
    take_messages(f, c);
    if (c->length > 1)
        return;
    c->left_bytes = f->bytes(f->user, c, partition);
    f->active[f->active_count++] = c;
    f->has_changed = true;
}

/* Its first message is on its way; returns whether there is another. */
static bool end_message(struct flows *f, struct connection *c)
{
    const uint32_t partition = *message_at(c, 0);

    f->ended(f->user, c, partition);
    c->first = (c->first + 1) % c->capacity;
    c->length--;
    c->taken--;
    if (c->length == 0)
        return false;
    take_messages(f, c);
    c->left_bytes = f->bytes(f->user, c, *message_at(c, 0));
    return true;
}

/* ---- sharing the links */

static void count_weights(struct flows *f)
{
    for (size_t h = 0; h < f->host_count; h++)
        f->hosts[h].up_weights = f->hosts[h].down_weights = 0;
    for (size_t i = 0; i < f->active_count; i++) {
        const struct connection *c = f->active[i];

        if (c->is_shared)
            continue;
        f->hosts[c->from].up_weights += c->weight;
        f->hosts[c->to].down_weights += c->weight;
    }
}

static double level_of(const struct flows *f, const struct connection *c)
{
    const struct flow_host *from = &f->hosts[c->from], *to = &f->hosts[c->to];

    return fmin(c->limit / c->weight,
                fmin(from->up / from->up_weights, to->down / to->down_weights));
}

static void set_rate(struct flows *f, struct connection *c, double level)
{
    c->rate = level * c->weight;
    c->is_shared = true;
    f->hosts[c->from].up = fmax(0, f->hosts[c->from].up - c->rate);
    f->hosts[c->to].down = fmax(0, f->hosts[c->to].down - c->rate);
}

/* Raise all rates together until a link is full or a flow is at its limit; those stay, the others
 * go on. */
static void share_links(struct flows *f)
{
    size_t shared = 0;

    for (size_t h = 0; h < f->host_count; h++)
        f->hosts[h].up = f->hosts[h].down = f->hosts[h].rate;
    for (size_t i = 0; i < f->active_count; i++)
        f->active[i]->is_shared = false;
    while (shared < f->active_count) {
        double level = DBL_MAX;

        /* All levels before the first rate, which changes them. */
        count_weights(f);
        for (size_t i = 0; i < f->active_count; i++) {
            struct connection *c = f->active[i];

            if (c->is_shared)
                continue;
            c->level = level_of(f, c);
            level = fmin(level, c->level);
        }
        for (size_t i = 0; i < f->active_count; i++) {
            struct connection *c = f->active[i];

            if (c->is_shared || c->level > level * (1 + ROUNDING))
                continue;
            set_rate(f, c, level);
            shared++;
        }
    }
}

/* But for the rounding of bytes and of time. */
static bool has_ended(const struct flows *f, const struct connection *c)
{
    return c->left_bytes <=
           fmax(ROUNDING * f->bytes(f->user, c, c->messages[c->first]), c->rate * TICK_S);
}

double flows_next_s(struct flows *f)
{
    double next_s = DBL_MAX;

    if (f->has_changed)
        share_links(f);
    f->has_changed = false;
    for (size_t i = 0; i < f->active_count; i++)
        next_s = fmin(next_s, f->active[i]->left_bytes / f->active[i]->rate);
    return next_s;
}

void flows_advance(struct flows *f, double seconds)
{
    size_t kept = 0;

    for (size_t i = 0; i < f->active_count; i++)
        f->active[i]->left_bytes -= f->active[i]->rate * seconds;
    for (size_t i = 0; i < f->active_count; i++) {
        struct connection *c = f->active[i];

        if (!has_ended(f, c) || end_message(f, c))
            f->active[kept++] = c;
    }
    f->has_changed = f->has_changed || kept < f->active_count;
    f->active_count = kept;
}
