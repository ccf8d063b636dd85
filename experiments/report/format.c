/*
 * format: implements format.h with snprintf into the caller's buffers; no locale, no state.
 */
#include "experiments/report/format.h"

#include "experiments/report/statistics.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MIB (1024.0 * 1024.0)

void format_number(double value, int decimals, char text[FORMAT_MAX])
{
    char plain[FORMAT_MAX];
    size_t length;
    size_t digits;
    size_t sign;
    size_t out = 0;

    if (!isfinite(value) || fabs(value) >= 1e18) {
        (void)snprintf(text, FORMAT_MAX, "%s", FORMAT_UNKNOWN);
        return;
    }
    (void)snprintf(plain, sizeof(plain), "%.*f", decimals, value);
    sign = plain[0] == '-';
    length = strlen(plain);
    digits = strcspn(plain, ".") - sign;
    for (size_t i = 0; i < length && out + 2 < FORMAT_MAX; i++) {
        size_t position = i - sign;

        if (i > sign && position < digits && (digits - position) % 3 == 0)
            text[out++] = ',';
        text[out++] = plain[i];
    }
    text[out] = '\0';
}

void format_metric(enum metric_index index, double value, char text[FORMAT_MAX])
{
    if (!isfinite(value))
        (void)snprintf(text, FORMAT_MAX, "%s", FORMAT_UNKNOWN);
    else if (index == METRIC_test_accuracy)
        (void)snprintf(text, FORMAT_MAX, "%.2f %%", 100 * value);
    else if (index == METRIC_peak_rss_bytes || index == METRIC_total_rss_bytes)
        (void)snprintf(text, FORMAT_MAX, "%.1f MiB", value / MIB);
    else
        format_number(value, metric_specs[index].decimals, text);
}

void format_quartiles(enum metric_index index, const struct spread *spread,
                      char text[2 * FORMAT_MAX])
{
    char low[FORMAT_MAX];
    char high[FORMAT_MAX];

    format_metric(index, spread->q1, low);
    format_metric(index, spread->q3, high);
    if (spread->n > 1)
        (void)snprintf(text, 2 * (size_t)FORMAT_MAX, "%.40s to %.40s", low, high);
    else
        (void)snprintf(text, 2 * (size_t)FORMAT_MAX, "%s", FORMAT_UNKNOWN);
}

void format_ratio(double value, char text[FORMAT_MAX])
{
    format_number(value, 2, text);
}

void format_ratio_interval(double value, const struct interval *interval, char text[2 * FORMAT_MAX])
{
    char middle[FORMAT_MAX];
    char low[FORMAT_MAX];
    char high[FORMAT_MAX];

    format_ratio(value, middle);
    format_ratio(interval->low, low);
    format_ratio(interval->high, high);
    if (isfinite(interval->low))
        (void)snprintf(text, 2 * (size_t)FORMAT_MAX, "%s (%.20s to %.20s)", middle, low, high);
    else
        (void)snprintf(text, 2 * (size_t)FORMAT_MAX, "%s", middle);
}

double format_scale(double largest, int is_short, const char **ret_prefix)
{
    static const struct {
        double factor;
        const char *word, *letter;
    } scales[] = {{1e9, "billion ", "G"}, {1e6, "million ", "M"}, {1e4, "thousand ", "k"}};

    for (size_t i = 0; i < sizeof(scales) / sizeof(scales[0]); i++) {
        if (largest >= scales[i].factor) {
            *ret_prefix = is_short ? scales[i].letter : scales[i].word;
            return scales[i].factor > 1e4 ? scales[i].factor : 1e3;
        }
    }
    *ret_prefix = "";
    return 1;
}
