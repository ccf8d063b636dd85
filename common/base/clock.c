/*
 * Monotonic time, deadlines and wall-clock time.  Pure wrappers of clock_gettime: no state, no
 * locks. A deadline that overflows saturates at INT64_MAX, which means "none".
 */
#include "common/base/clock.h"

#include <limits.h>
#include <time.h>

int64_t clock_now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t clock_deadline_ns(int64_t timeout_ms)
{
    int64_t now = clock_now_ns();

    if (timeout_ms > (INT64_MAX - now) / 1000000)
        return INT64_MAX;
    return now + timeout_ms * 1000000;
}

int clock_left_ms(int64_t deadline_ns)
{
    int64_t left = deadline_ns - clock_now_ns();

    if (left <= 0)
        return 0;
    left = left / 1000000 + (left % 1000000 != 0);
    return left > INT_MAX ? INT_MAX : (int)left;
}

double clock_wall_seconds(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

double clock_wall_seconds_at(int64_t moment_ns)
{
    return clock_wall_seconds() - (double)(clock_now_ns() - moment_ns) * 1e-9;
}

void clock_wall_text(char *text, size_t size)
{
    time_t now = time(NULL);
    struct tm parts;

    (void)gmtime_r(&now, &parts);
    if (strftime(text, size, "%Y-%m-%dT%H:%M:%SZ", &parts) == 0 && size > 0)
        text[0] = '\0';
}
