/*
 * host_load: the ticks of all processors, as proc(5) has them.
 */
#include "experiments/cluster/host_load.h"

#include <stdio.h>
#include <string.h>

enum { USER, NICE, SYSTEM, IDLE, IO_WAIT, IRQ, SOFT_IRQ, STEAL, KINDS };

static bool read_ticks(const char *line, double ticks[KINDS])
{
    return strncmp(line, "cpu ", 4) == 0 &&
           sscanf(line, "cpu %lf %lf %lf %lf %lf %lf %lf %lf", &ticks[USER], &ticks[NICE],
                  &ticks[SYSTEM], &ticks[IDLE], &ticks[IO_WAIT], &ticks[IRQ], &ticks[SOFT_IRQ],
                  &ticks[STEAL]) == KINDS;
}

bool host_load_read(const char *before, const char *after, struct host_load *ret)
{
    double first[KINDS], last[KINDS], all = 0, idle;

    *ret = (struct host_load){.busy = 0};
    if (!read_ticks(before, first) || !read_ticks(after, last))
        return false;
    for (int i = 0; i < KINDS; i++)
        all += last[i] - first[i];
    if (!(all > 0))
        return false;
    idle = last[IDLE] + last[IO_WAIT] - first[IDLE] - first[IO_WAIT];
    ret->stolen = (last[STEAL] - first[STEAL]) / all;
    ret->busy = 1 - idle / all - ret->stolen;
    if (ret->busy < 0) /* idle time is no exact count */
        ret->busy = 0;
    return true;
}
