/*
 * Random messages on random links, some of which wait for replies: at each moment the rates are
 * weighted max-min fair, and all bytes flow.
 */
#include "experiments/predict/flows.h"
#include "tests/support/support.h"

#include <float.h>
#include <math.h>

#define HOSTS       6
#define CONNECTIONS 24
#define MESSAGES    3

static struct connection connections[CONNECTIONS], *active[CONNECTIONS];
static struct flow_host hosts[HOSTS];
static struct flow_link *unfilled[2 * HOSTS];
static uint32_t messages[CONNECTIONS][MESSAGES];
static struct flows flows;
static size_t ended;

/* Of messages that have ended. */
static struct {
    struct connection *on;
    uint32_t partition;
} replies[2 * CONNECTIONS];

static size_t reply_count;

static double bytes_of(const void *user, const struct connection *c, uint32_t partition)
{
    (void)user;
    return 1e6 * (1 + (c->rank * 7 + partition * 3) % 5);
}

static void count_ended(void *user, const struct connection *c, uint32_t partition)
{
    (void)user;
    replies[reply_count].on = &connections[c->rank];
    replies[reply_count++].partition = partition;
    ended++;
}

static void make_flows(void)
{
    flows = (struct flows){.hosts = hosts,
                           .host_count = HOSTS,
                           .active = active,
                           .unfilled = unfilled,
                           .bytes = bytes_of,
                           .ended = count_ended};
    ended = reply_count = 0;
    for (size_t h = 0; h < HOSTS; h++)
        hosts[h].rate = 1e8 * (0.1 + support_random());
    for (unsigned i = 0; i < CONNECTIONS; i++) {
        struct connection *c = &connections[i];

        *c = (struct connection){.rank = i,
                                 .from = (unsigned)(support_random() * HOSTS),
                                 .weight = 0.5 + support_random(),
                                 .limit = support_random() < 0.5 ? FLOWS_RATE_MAX
                                                                 : 5e7 * (0.01 + support_random()),
                                 .ahead.most = (uint64_t)(support_random() * 3),
                                 .messages = messages[i],
                                 .capacity = MESSAGES};
        c->to = (c->from + 1 + (unsigned)(support_random() * (HOSTS - 1))) % HOSTS;
        if (support_random() < 0.2) /* levels that are equal */
            c->weight = 1;
    }
}

/* Of a host's link in one direction: its rates together, and the highest over its weight. */
static double rate_of_link(unsigned host, bool is_up, double *highest)
{
    double sum = 0;

    *highest = 0;
    for (size_t i = 0; i < flows.active_count; i++) {
        const struct connection *c = active[i];

        if ((is_up ? c->from : c->to) != host)
            continue;
        sum += c->rate;
        *highest = fmax(*highest, c->rate / c->weight);
    }
    return sum;
}

static bool is_full_for(unsigned host, bool is_up, double level)
{
    double highest;

    return rate_of_link(host, is_up, &highest) >= hosts[host].rate * (1 - 1e-6) &&
           level >= highest * (1 - 1e-6);
}

/* No link carries more than it can, and each flow is at its limit or on a full link where no other
 * is faster for its weight. */
static void assert_fair(void)
{
    double highest;

    for (unsigned h = 0; h < HOSTS; h++) {
        ck_assert(rate_of_link(h, true, &highest) <= hosts[h].rate * (1 + 1e-6));
        ck_assert(rate_of_link(h, false, &highest) <= hosts[h].rate * (1 + 1e-6));
    }
    for (size_t i = 0; i < flows.active_count; i++) {
        const struct connection *c = active[i];
        const double level = c->rate / c->weight;

        ck_assert(c->rate > 0 && c->rate <= c->limit * (1 + 1e-6));
        ck_assert(c->rate >= c->limit * (1 - 1e-6) || is_full_for(c->from, true, level) ||
                  is_full_for(c->to, false, level));
    }
}

static double send_one(struct connection *c)
{
    const uint32_t partition = (uint32_t)(support_random() * 10);

    flows_send(&flows, c, partition);
    return bytes_of(NULL, c, partition);
}

static void reply_one(void)
{
    const size_t drawn = (size_t)(support_random() * (double)reply_count);
    struct connection *c = replies[drawn].on;
    const uint32_t partition = replies[drawn].partition;

    replies[drawn] = replies[--reply_count];
    flows_replied(&flows, c, partition);
}

/* Some begin while others flow, before any of these has ended; every byte has flowed at the end. */
START_TEST(test_random)
{
    for (int draw = 0; draw < SUPPORT_DRAWS(300, 50); draw++) {
        double bytes = 0, flowed = 0;
        size_t sent = 0;

        make_flows();
        while (sent < 2 * CONNECTIONS || flows.active_count > 0 || reply_count > 0) {
            struct connection *c = &connections[(size_t)(support_random() * CONNECTIONS)];
            const bool is_whole = support_random() < 0.5;
            double seconds;

            if (sent < 2 * CONNECTIONS && c->length < MESSAGES) {
                bytes += send_one(c);
                sent++;
            }
            if (reply_count > 0 && (flows.active_count == 0 || support_random() < 0.3))
                reply_one();
            if (flows.active_count == 0)
                continue;
            seconds = flows_next_s(&flows) * (is_whole ? 1 : support_random());
            assert_fair();
            for (size_t i = 0; i < flows.active_count; i++)
                flowed += active[i]->rate * seconds;
            flows_advance(&flows, seconds);
        }
        ck_assert_uint_eq(ended, sent);
        ck_assert(flows_next_s(&flows) == DBL_MAX);
        ck_assert_msg(fabs(flowed / bytes - 1) < 1e-6, "%.9g of %.9g", flowed, bytes);
    }
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("flows", 30, TEST(test_random));
}
