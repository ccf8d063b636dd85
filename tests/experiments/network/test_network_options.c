/*
 * Options of an emulated network: values for all hosts, for some, and every mistake.
 */
#include "experiments/network/network_options.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <string.h>

static struct network_link links[NETWORK_HOSTS_MAX];
static struct error err;

/* Of 4 hosts, of which the last is a server's. */
static enum status read_options(const char *rate, const char *delay, const char *jitter,
                                const char *loss)
{
    struct network_options o = {.seed = 1};

    (void)snprintf(o.rate, sizeof(o.rate), "%s", rate);
    (void)snprintf(o.delay, sizeof(o.delay), "%s", delay);
    (void)snprintf(o.jitter, sizeof(o.jitter), "%s", jitter);
    (void)snprintf(o.loss, sizeof(o.loss), "%s", loss);
    return network_options_read(&o, 4, 3, NETWORK_DELAY_MIN_MS, links, &err);
}

START_TEST(test_lists)
{
    const struct network_options no_server = {.rate = "1gbit,server:10gbit", .seed = 1};

    assert_ok(read_options("1gbit,server:10gbit,host1:2.5mbit", "5,worker:7", "1", "0.5"));
    ck_assert(links[0].rate == 1e9 && links[1].rate == 2.5e6 && links[2].rate == 1e9);
    ck_assert(links[3].rate == 1e10);
    ck_assert(links[0].delay_ns == 7000000 && links[3].delay_ns == 5000000);
    ck_assert(links[2].jitter_ns == 1000000 && links[2].loss == 0.005);
    assert_ok(read_options("", "", "", ""));
    ck_assert(links[3].rate == 0 && links[3].delay_ns == 0 && links[3].loss == 0);
    assert_ok(read_options("host2:100mbit", "", "", ""));
    ck_assert(links[0].rate == 0 && links[2].rate == 1e8);
    assert_ok(network_options_read(&no_server, 4, 4, NETWORK_DELAY_MIN_MS, links, &err));
    ck_assert(links[0].rate == 1e9 && links[3].rate == 1e9);
}
END_TEST

START_TEST(test_between_two)
{
    struct network_link a = {1e9, 5000000, 1, 0.01}, b = {0, 7000000, 2, 0.02};
    struct network_link both = network_link_join(&a, &b);

    ck_assert(both.rate == 1e9 && both.delay_ns == 7000000 && both.jitter_ns == 2);
    ck_assert(both.loss == 0.02);
    ck_assert(network_link_join(&b, &a).rate == 1e9);
    b.rate = 1e8;
    ck_assert(network_link_join(&a, &b).rate == 1e8 && network_link_join(&b, &a).rate == 1e8);
}
END_TEST

START_TEST(test_text)
{
    struct network_options o = {.rate = "1gbit,host2:100mbit", .delay = "5"};
    char text[128], short_text[16];

    network_options_text(&o, text, sizeof(text));
    ck_assert_str_eq(text, "emulated: rate 1gbit,host2:100mbit, delay 5 ms");
    network_options_text(&o, short_text, sizeof(short_text));
    ck_assert_str_eq(short_text, "emulated: rate ");
    ck_assert(network_options_given(&o));
    ck_assert(!network_options_given(&(struct network_options){.seed = 7}));
}
END_TEST

static const struct {
    const char *rate, *delay, *jitter, *loss, *part;
} mistakes[] = {
    {"1", "", "", "", "--network-rate: '1' is not a rate"},
    {"1gbit,", "", "", "", NULL},
    {"gbit", "", "", "", "--network-rate: 'gbit' is not a rate"},
    {"-1gbit", "", "", "", "--network-rate: '-1gbit' is not a rate"},
    {"1kbit", "", "", "", "from 1mbit to 1000gbit"},
    {"1001gbit", "", "", "", "from 1mbit to 1000gbit"},
    {"nanbit", "", "", "", "--network-rate: 'nanbit' is not a rate"},
    {"host4:1gbit", "", "", "", "'host4:1gbit' names none of the 4 hosts"},
    {"hosts:1gbit", "", "", "", "'hosts:1gbit' names none of the 4 hosts"},
    {"rank:1gbit", "", "", "", "'rank:1gbit' names none of the 4 hosts"},
    {"server:", "", "", "", "--network-rate: 'server:' is not a rate"},
    {"", "0.5", "", "", "a delay of 1 to 10000 ms"},
    {"", "5ms", "", "", "a delay of 1 to 10000 ms"},
    {"", "10001", "", "", "a delay of 1 to 10000 ms"},
    {"", "5", "6", "", "--network-jitter: host 0 varies by more than its delay"},
    {"", "", "1", "", "--network-jitter: host 0 varies by more than its delay"},
    {"", "5", "", "51", "a share of up to 50 percent"},
    {"", "host0:5", "", "1", "--network-loss needs a --network-delay, host 1 has none"},
};

START_TEST(test_mistakes)
{
    enum status status =
        read_options(mistakes[_i].rate, mistakes[_i].delay, mistakes[_i].jitter, mistakes[_i].loss);

    if (mistakes[_i].part)
        assert_fails(status, STATUS_INVALID, mistakes[_i].part);
    else
        assert_ok(status);
}
END_TEST

START_TEST(test_too_many_hosts)
{
    struct network_options o = {.seed = 1};

    assert_fails(
        network_options_read(&o, NETWORK_HOSTS_MAX + 1, 1, NETWORK_DELAY_MIN_MS, links, &err),
        STATUS_INVALID, "65 emulated hosts, allowed are 64");
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("network_options", 30, TEST(test_lists), TEST(test_between_two),
                       TEST(test_text),
                       LOOP_TEST(test_mistakes, 0, sizeof(mistakes) / sizeof(mistakes[0])),
                       TEST(test_too_many_hosts));
}
