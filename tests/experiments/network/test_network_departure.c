/*
 * When packets leave the hub: delay, order, the distribution of jitter and loss, seeds.
 */
#include "experiments/network/departure.h"
#include "tests/support/support.h"

#include <math.h>

#define PACKETS 100000

static struct departure_path path;

static void open_path(int64_t delay_ns, int64_t jitter_ns, double loss)
{
    const struct network_link link = {.delay_ns = delay_ns, .jitter_ns = jitter_ns, .loss = loss};

    departure_open(&path, &link, (uint64_t)(support_random() * 0x1p32), 1, 2);
}

START_TEST(test_delay)
{
    int64_t at;

    open_path(5000000, 0, 0);
    for (int64_t arrival = 1; arrival < 1000; arrival += 7) {
        ck_assert(departure_next(&path, arrival, &at));
        ck_assert_int_eq(at, arrival + 5000000);
    }
    /* A time stamp may be older than the one before it. */
    ck_assert(departure_next(&path, 10, &at));
    ck_assert_int_eq(at, 995 + 5000000);
}
END_TEST

/* Packets so far apart that order does not bind: mean and variance are those of the uniform
 * distribution, within 5 standard errors: sd of the mean is j / sqrt(3 n), of the mean square
 * j^2 sqrt(4 / 45 / n). */
START_TEST(test_jitter)
{
    const int64_t jitter = 2000000, apart = 10000000;
    double sum = 0, squares = 0;

    open_path(5000000, jitter, 0);
    for (int64_t i = 0; i < PACKETS; i++) {
        int64_t at;
        double off;

        ck_assert(departure_next(&path, i * apart, &at));
        off = (double)(at - i * apart - 5000000) / (double)jitter;
        ck_assert(off >= -1 && off <= 1);
        sum += off;
        squares += off * off;
    }
    ck_assert(fabs(sum / PACKETS) < 5 / sqrt(3.0 * PACKETS));
    ck_assert(fabs(squares / PACKETS - 1.0 / 3) < 5 * sqrt(4.0 / 45 / PACKETS));
}
END_TEST

/* Packets closer than the jitter keep their order, and each leaves when it could at the latest. */
START_TEST(test_order)
{
    int64_t last = 0;

    open_path(5000000, 5000000, 0);
    for (int64_t i = 0; i < PACKETS; i++) {
        int64_t at;

        ck_assert(departure_next(&path, i * 1000, &at));
        ck_assert(at >= last && at >= i * 1000 && at <= i * 1000 + 10000000);
        last = at;
    }
}
END_TEST

/* The number of losses is binomial: within 5 standard deviations. */
START_TEST(test_loss)
{
    const double loss = 0.03;
    size_t lost = 0;

    open_path(5000000, 1000000, loss);
    for (int64_t i = 0; i < PACKETS; i++) {
        int64_t at;

        lost += !departure_next(&path, i, &at);
    }
    ck_assert_msg(fabs((double)lost - loss * PACKETS) < 5 * sqrt(loss * (1 - loss) * PACKETS),
                  "%zu of %d lost", lost, PACKETS);
}
END_TEST

static void draw_losses(uint64_t seed, size_t from, size_t to, bool *lost)
{
    const struct network_link link = {.delay_ns = 1, .loss = 0.5};

    departure_open(&path, &link, seed, from, to);
    for (int64_t i = 0; i < 64; i++) {
        int64_t at;

        lost[i] = !departure_next(&path, i, &at);
    }
}

START_TEST(test_seeds)
{
    bool one[64], same[64], other_seed[64], other_path[64];

    draw_losses(1, 0, 1, one);
    draw_losses(1, 0, 1, same);
    draw_losses(2, 0, 1, other_seed);
    draw_losses(1, 1, 0, other_path);
    ck_assert_mem_eq(one, same, sizeof(one));
    ck_assert_mem_ne(one, other_seed, sizeof(one));
    ck_assert_mem_ne(one, other_path, sizeof(one));
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("departure", 30, TEST(test_delay), TEST(test_jitter), TEST(test_order),
                       TEST(test_loss), TEST(test_seeds));
}
