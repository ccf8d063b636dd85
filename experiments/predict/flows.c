/*
 * flows: the rates are computed anew when other connections have messages.
 */
#include "experiments/predict/flows.h"

#include <float.h>
#include <string.h>

#define ROUNDING 1e-9 /* relative */
#define TICK_S   1e-12

/* Behind the message that is being sent, in gRPC, the socket and the queues of links, where nothing
 * overtakes.  From runs of two and four ranks at 300 Mbit/s and 1 Gbit/s with messages of 64 KiB,
 * and with 512 KiB, of which it is one. */
#define BEHIND_BYTES (384 << 10)

/* Without the care of fmin and fmax for NaN, which costs a call. */
static double smaller(double a, double b)
{
    return a < b ? a : b;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static uint32_t *message_at(const struct connection *c, size_t index)
{
    return &c->messages[(c->first + index) % c->capacity];
}

/* ---- messages */

/* Among those that are not taken, that of the last partition, which the next forward reads first,
 * becomes the next. */
static uint32_t choose_next(const struct connection *c)
{
    uint32_t *next = message_at(c, c->taken);

    for (size_t i = c->taken + 1; i < c->length; i++) {
        uint32_t *other = message_at(c, i);
        const uint32_t partition = *next;

        if (*other > partition) {
            *next = *other;
            *other = partition;
        }
    }
    return *next;
}

/* Take messages while those behind the one that is being sent have less than BEHIND_BYTES; what is
 * taken keeps its order. */
static void take_messages(struct flows *f, struct connection *c)
{
    double behind_bytes = 0;

    for (size_t i = 1; i < c->taken; i++)
        behind_bytes += f->bytes(f->user, c, *message_at(c, i));
    while (c->taken < c->length && behind_bytes < BEHIND_BYTES) {
        const uint32_t next = f->in_order ? *message_at(c, c->taken) : choose_next(c);

        if (!send_limit_allows(&c->ahead, (uint64_t)next + 1))
            return;
        send_limit_sent(&c->ahead, (uint64_t)next + 1);
        behind_bytes += c->taken > 0 ? f->bytes(f->user, c, next) : 0;
        c->taken++;
    }
}

static void begin_message(struct flows *f, struct connection *c)
{
    c->left_bytes = f->bytes(f->user, c, *message_at(c, 0));
    c->rounding_bytes = ROUNDING * c->left_bytes;
}

/* Without a rate for the time that has passed. */
static void activate(struct flows *f, struct connection *c)
{
    size_t low = 0, high = f->active_count;

    c->rate = 0;
    c->level = c->limit / c->weight;
    while (low < high) {
        const size_t middle = (low + high) / 2;

        if (f->active[middle]->level <= c->level)
            low = middle + 1;
        else
            high = middle;
    }
    memmove(&f->active[low + 1], &f->active[low],
            (f->active_count - low) * sizeof(struct connection *));
    f->active[low] = c;
    f->active_count++;
    f->has_changed = true;
}

static void take_and_begin(struct flows *f, struct connection *c)
{
    const bool is_active = c->taken > 0;

    take_messages(f, c);
    if (is_active || c->taken == 0)
        return;
    begin_message(f, c);
    activate(f, c);
}

void flows_send(struct flows *f, struct connection *c, uint32_t partition)
{
    *message_at(c, c->length++) = partition;
    take_and_begin(f, c);
}

void flows_replied(struct flows *f, struct connection *c, uint32_t partition)
{
    send_limit_replied(&c->ahead, (uint64_t)partition + 1);
    take_and_begin(f, c);
}

/* Its first message is on its way; returns whether there is another that may follow. */
static bool end_message(struct flows *f, struct connection *c)
{
    const uint32_t partition = *message_at(c, 0);

    f->ended(f->user, c, partition);
    c->first = (c->first + 1) % c->capacity;
    c->length--;
    c->taken--;
    take_messages(f, c);
    if (c->taken > 0)
        begin_message(f, c);
    return c->taken > 0;
}

/* ---- sharing the links */

static void count_flow(struct flow_link *l, struct connection *c, struct connection **next)
{
    l->weights += c->weight;
    l->count++;
    *next = l->flows;
    l->flows = c;
}

static void count_flows(struct flows *f)
{
    f->unfilled_count = 0;
    for (size_t h = 0; h < f->host_count; h++) {
        struct flow_host *host = &f->hosts[h];

        host->up = host->down = (struct flow_link){.left = host->rate};
        f->unfilled[f->unfilled_count++] = &host->up;
        f->unfilled[f->unfilled_count++] = &host->down;
    }
    for (size_t i = 0; i < f->active_count; i++) {
        struct connection *c = f->active[i];

        c->is_shared = false;
        count_flow(&f->hosts[c->from].up, c, &c->next_up);
        count_flow(&f->hosts[c->to].down, c, &c->next_down);
    }
}

static void take_rate(struct flow_link *l, const struct connection *c)
{
    l->left = larger(0, l->left - c->rate);
    l->weights -= c->weight;
    l->count--;
}

static void set_rate(struct flows *f, struct connection *c, double level)
{
    if (c->is_shared)
        return;
    c->rate = level * c->weight;
    c->is_shared = true;
    take_rate(&f->hosts[c->from].up, c);
    take_rate(&f->hosts[c->to].down, c);
}

/* A rate for all flows of a link that is full at the level. */
static void set_rates(struct flows *f, const struct flow_link *l, double level)
{
    const bool is_up = l == &f->hosts[l->flows->from].up;

    for (struct connection *c = l->flows; c; c = is_up ? c->next_up : c->next_down)
        set_rate(f, c, level);
}

/* Of the links with flows that have no rate yet, the only ones that stay; returns the lowest. */
static double find_levels(struct flows *f)
{
    double level = DBL_MAX;
    size_t kept = 0;

    for (size_t i = 0; i < f->unfilled_count; i++) {
        struct flow_link *l = f->unfilled[i];

        if (l->count == 0)
            continue;
        f->unfilled[kept++] = l;
        l->level = l->left / l->weights;
        level = smaller(level, l->level);
    }
    f->unfilled_count = kept;
    return level;
}

/* Raise all rates together until a link is full or a flow is at its limit; those stay, the others
 * go on. */
static void share_links(struct flows *f)
{
    size_t next = 0;

    count_flows(f);
    while (next < f->active_count) {
        const double level = smaller(f->active[next]->level, find_levels(f));
        const double reached = level * (1 + ROUNDING);

        for (size_t i = next; i < f->active_count && f->active[i]->level <= reached; i++)
            set_rate(f, f->active[i], level);
        for (size_t i = 0; i < f->unfilled_count; i++)
            if (f->unfilled[i]->level <= reached)
                set_rates(f, f->unfilled[i], level);
        while (next < f->active_count && f->active[next]->is_shared)
            next++;
    }
}

/* ---- time */

/* But for the rounding of bytes and of time. */
static double negligible_bytes(const struct connection *c)
{
    return larger(c->rounding_bytes, c->rate * TICK_S);
}

static void find_next(struct flows *f)
{
    f->first_s = f->next_s = DBL_MAX;
    for (size_t i = 0; i < f->active_count; i++) {
        const struct connection *c = f->active[i];
        const double byte_s = 1 / c->rate;

        f->first_s = smaller(f->first_s, (c->left_bytes - negligible_bytes(c)) * byte_s);
        f->next_s = smaller(f->next_s, c->left_bytes * byte_s);
    }
}

static void let_flow(struct flows *f)
{
    for (size_t i = 0; i < f->active_count; i++)
        f->active[i]->left_bytes -= f->active[i]->rate * f->passed_s;
    f->passed_s = 0;
}

double flows_next_s(struct flows *f)
{
    if (f->has_changed) {
        let_flow(f);
        share_links(f);
        find_next(f);
    }
    f->has_changed = false;
    return f->active_count > 0 ? f->next_s - f->passed_s : DBL_MAX;
}

void flows_advance(struct flows *f, double seconds)
{
    size_t kept = 0;

    f->passed_s += seconds;
    if (f->passed_s < f->first_s)
        return;
    let_flow(f);
    for (size_t i = 0; i < f->active_count; i++) {
        struct connection *c = f->active[i];

        if (c->left_bytes > negligible_bytes(c) || end_message(f, c))
            f->active[kept++] = c;
    }
    f->has_changed = f->has_changed || kept < f->active_count;
    f->active_count = kept;
    if (!f->has_changed)
        find_next(f);
}
