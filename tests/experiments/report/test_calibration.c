/*
 * Error rate and power of the verdict, over blocks drawn with replacement from recorded runs of six
 * identical modes (tests/data/verdict): the noise of a real host, with outliers and drift, and a
 * known difference.
 *
 * Bounds are 4.5 standard deviations from the nominal rates: less than one of 10^5 runs of this
 * test fails by chance.  SPARRING_TEST_REPORTS=2000 draws more reports and prints the table of
 * METRICS.md.
 */
#include "experiments/report/design.h"
#include "experiments/report/paired.h"
#include "tests/support/support.h"

#include "common/base/file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODES      6
#define PAIRS      (MODES * (MODES - 1) / 2)
#define BLOCKS_MAX 100
#define SETTINGS   2
#define N_MAX      20
#define SIGMAS     4.5

/* Logarithms of throughput, less their block's mean. */
struct setting {
    char name[32];
    double blocks[BLOCKS_MAX][MODES];
    size_t length;
    double deviation; /* of the difference of two modes */
};
static struct setting settings[SETTINGS];
static unsigned reports = 400;

static void add_block(struct setting *s, const char *fields)
{
    double mean = 0, *block = s->blocks[s->length];

    ck_assert_uint_lt(s->length, BLOCKS_MAX);
    for (size_t m = 0; m < MODES; m++) {
        fields = strchr(fields, ',') + 1;
        block[m] = log(strtod(fields, NULL));
        mean += block[m] / MODES;
    }
    for (size_t m = 0; m < MODES; m++)
        block[m] -= mean;
    s->length++;
}

static void measure(struct setting *s)
{
    double sum = 0;

    for (size_t k = 0; k < s->length; k++)
        for (size_t a = 0; a < MODES; a++)
            for (size_t b = a + 1; b < MODES; b++)
                sum += pow(s->blocks[k][a] - s->blocks[k][b], 2);
    s->deviation = sqrt(sum / (double)(s->length * PAIRS));
    (void)printf("%s: %zu blocks, deviation of d %.2f %%\n", s->name, s->length,
                 100 * s->deviation);
}

static void read_recording(void)
{
    struct error err = {0};
    char *text = NULL, *rest = NULL;
    size_t size = 0, count = 0;
    const char *wanted = getenv("SPARRING_TEST_REPORTS");

    assert_ok(
        file_read(support_source("tests/data/verdict/same.csv"), 1 << 20, &text, &size, &err));
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *comma = strchr(line, ',');

        if (line[0] == '#' || strncmp(line, "setting,", 8) == 0)
            continue;
        *comma = '\0';
        if (count == 0 || strcmp(settings[count - 1].name, line) != 0) {
            ck_assert_uint_lt(count, SETTINGS);
            (void)snprintf(settings[count++].name, sizeof(settings[0].name), "%s", line);
        }
        add_block(&settings[count - 1], strchr(comma + 1, ','));
    }
    free(text);
    ck_assert_uint_eq(count, SETTINGS);
    for (size_t i = 0; i < SETTINGS; i++)
        measure(&settings[i]);
    if (wanted)
        reports = (unsigned)strtoul(wanted, NULL, 10);
}

static size_t draw_below(size_t n)
{
    return (size_t)(support_random() * (double)n);
}

/* Six values of one block, in any order. */
static void draw_block(const struct setting *s, double ret[MODES])
{
    memcpy(ret, s->blocks[draw_below(s->length)], MODES * sizeof(double));
    for (size_t i = MODES; i > 1; i--) {
        const size_t other = draw_below(i);
        const double value = ret[i - 1];

        ret[i - 1] = ret[other];
        ret[other] = value;
    }
}

static struct paired compare(const double *d, size_t n)
{
    struct paired p;
    struct error err = {0};

    assert_ok(paired_compare(d, n, DESIGN_LEVEL, design_log_margin(DESIGN_MARGIN), &p, &err));
    return p;
}

/* Blocks of two modes whose log-ratio is `shift`, with that deviation. */
static struct paired draw_pair(size_t n, double deviation, double shift)
{
    const struct setting *s = &settings[draw_below(SETTINGS)];
    double d[N_MAX], block[MODES];

    for (size_t i = 0; i < n; i++) {
        draw_block(s, block);
        d[i] = (block[0] - block[1]) * deviation / s->deviation + shift;
    }
    return compare(d, n);
}

static double share(unsigned count)
{
    return 100.0 * count / reports;
}

/* Upper and lower bounds of the count of reports when the true share is `wanted`. */
static unsigned most_of(double wanted)
{
    return (unsigned)ceil(reports * wanted + SIGMAS * sqrt(reports * wanted * (1 - wanted)));
}

static unsigned least_of(double wanted)
{
    return (unsigned)floor(reports * wanted - SIGMAS * sqrt(reports * wanted * (1 - wanted)));
}

/* Six modes, ten blocks: a false verdict on any of the pairs, all of them registered or one. */
START_TEST(test_false_verdicts)
{
    unsigned of_all = 0, of_one = 0;

    for (unsigned r = 0; r < reports; r++) {
        const struct setting *s = &settings[draw_below(SETTINGS)];
        double blocks[10][MODES], d[10], p[PAIRS];
        size_t pair = 0, first;

        for (size_t i = 0; i < 10; i++)
            draw_block(s, blocks[i]);
        for (size_t a = 0; a < MODES; a++) {
            for (size_t b = a + 1; b < MODES; b++) {
                for (size_t i = 0; i < 10; i++)
                    d[i] = blocks[i][a] - blocks[i][b];
                p[pair++] = compare(d, 10).p_difference;
            }
        }
        of_one += p[0] <= DESIGN_LEVEL;
        statistics_holm(p, sizeof(*p), PAIRS, PAIRS);
        for (first = 0; first < PAIRS && p[first] > DESIGN_LEVEL; first++)
            continue;
        of_all += first < PAIRS;
    }
    (void)printf("false verdicts of %u reports: %.1f %% with all pairs, %.1f %% with one\n",
                 reports, share(of_all), share(of_one));
    ck_assert_uint_le(of_all, most_of(DESIGN_LEVEL));
    ck_assert_uint_le(of_one, most_of(DESIGN_LEVEL));
    ck_assert_uint_gt(of_one, 0); /* of 400 none: less than one of 10^8 */
}
END_TEST

START_TEST(test_what_is_found)
{
    unsigned found = 0, equivalent = 0, false_equivalent = 0;

    for (unsigned r = 0; r < reports; r++) {
        found += draw_pair(10, 0.049, log(0.95)).p_difference <= DESIGN_LEVEL;
        equivalent += draw_pair(20, 0.029, 0).p_equivalence <= DESIGN_LEVEL;
        false_equivalent +=
            draw_pair(20, 0.029, design_log_margin(DESIGN_MARGIN)).p_equivalence <= DESIGN_LEVEL;
    }
    (void)printf("5 %% found, 10 blocks, deviation 4.9 %%: %.1f %%; equivalent, 20 blocks, 2.9 %%: "
                 "%.1f %%, and %.1f %% where the margin is reached\n",
                 share(found), share(equivalent), share(false_equivalent));
    ck_assert_uint_ge(found, least_of(0.8));
    ck_assert_uint_ge(equivalent, least_of(0.8));
    ck_assert_uint_le(false_equivalent, most_of(DESIGN_LEVEL));
}
END_TEST

/* The table of METRICS.md, by hand. */
START_TEST(test_table)
{
    static const size_t blocks[] = {6, 8, 10, 15, 20};
    static const double deviations[] = {0.01, 0.02, 0.03, 0.05, 0.07, 0.09};

    if (!getenv("SPARRING_TEST_REPORTS"))
        return;
    for (size_t i = 0; i < sizeof(deviations) / sizeof(deviations[0]); i++) {
        (void)printf("| %.0f %% |", 100 * deviations[i]);
        for (size_t k = 0; k < sizeof(blocks) / sizeof(blocks[0]); k++) {
            unsigned found = 0, equivalent = 0;

            for (unsigned r = 0; r < reports; r++) {
                found +=
                    draw_pair(blocks[k], deviations[i], log(0.95)).p_difference <= DESIGN_LEVEL;
                equivalent += draw_pair(blocks[k], deviations[i], 0).p_equivalence <= DESIGN_LEVEL;
            }
            (void)printf(" %.0f / %.0f |", share(found), share(equivalent));
        }
        (void)printf("\n");
    }
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("calibration", 600, UNCHECKED_FIXTURE(read_recording, NULL),
                       TEST(test_false_verdicts), TEST(test_what_is_found), TEST(test_table));
}
