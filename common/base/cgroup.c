/*
 * Reads the cgroup limits on processors and memory.
 *
 * /proc/self/cgroup names the group in each hierarchy: "0::/a/b" for version 2, "4:cpu,cpuacct:/a"
 * for version 1's cpu controller.  The path may not exist in a container's own /sys, where the
 * group is then the root: a missing file means no limit.  No state.
 * Source: Linux, Documentation/admin-guide/cgroup-v2.rst and scheduler/sched-bwc.rst.
 */
#include "common/base/cgroup.h"

#include "common/base/parse.h"

#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CGROUP2_MOUNT   "/sys/fs/cgroup"
#define MEMORY_NO_LIMIT 9.2e18 /* version 1 writes the largest number of whole pages */

/* One limit: its controller in version 1, and how to read it from a group's folder. */
struct limit {
    const char *controller;
    double (*read)(const char *folder, bool is_version_2);
};

static bool read_two_words(const char *folder, const char *name, char first[32], char second[32])
{
    char path[PATH_MAX + 32];
    FILE *file;
    int words;

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    file = fopen(path, "re");
    words = file ? fscanf(file, "%31s %31s", first, second) : 0;
    if (file)
        (void)fclose(file);
    return words >= 1;
}

static double quota_to_processors(const char *quota, const char *period)
{
    double q = strtod(quota, NULL); /* "max" is 0, version 1's "none" is -1 */
    double p = strtod(period, NULL);

    return q > 0 && p > 0 ? q / p : (double)INFINITY;
}

static double read_cpu_quota(const char *folder, bool is_version_2)
{
    char quota[32] = "";
    char period[32] = "";
    char rest[32];

    if (is_version_2)
        return read_two_words(folder, "cpu.max", quota, period) ? quota_to_processors(quota, period)
                                                                : (double)INFINITY;
    if (!read_two_words(folder, "cpu.cfs_quota_us", quota, rest) ||
        !read_two_words(folder, "cpu.cfs_period_us", period, rest))
        return (double)INFINITY;
    return quota_to_processors(quota, period);
}

static double read_memory_limit(const char *folder, bool is_version_2)
{
    char bytes[32] = "";
    char rest[32];
    double limit;

    if (!read_two_words(folder, is_version_2 ? "memory.max" : "memory.limit_in_bytes", bytes, rest))
        return (double)INFINITY;
    limit = strtod(bytes, NULL); /* "max" is 0 */
    return limit > 0 && limit < MEMORY_NO_LIMIT ? limit : (double)INFINITY;
}

/* The smallest limit from the group `path` below `mount` up to the root. */
static double min_limit_to_root(const struct limit *limit, const char *root, const char *mount,
                                const char *path, bool is_version_2)
{
    char folder[PATH_MAX];
    size_t top = strlen(root) + strlen(mount);
    double least = (double)INFINITY;

    if (snprintf(folder, sizeof(folder), "%s%s%s", root, mount, path) >= (int)sizeof(folder))
        return least;
    for (;;) {
        char *slash = strrchr(folder, '/');

        least = fmin(least, limit->read(folder, is_version_2));
        if (strlen(folder) <= top || !slash)
            return least;
        *slash = '\0';
    }
}

static double find_min_limit(const struct limit *limit, const char *root)
{
    char line[PATH_MAX + 256];
    char mount[64];
    double least = (double)INFINITY;
    FILE *file;

    (void)snprintf(mount, sizeof(mount), CGROUP2_MOUNT "/%s", limit->controller);
    (void)snprintf(line, sizeof(line), "%s/proc/self/cgroup", root);
    file = fopen(line, "re");
    while (file && fgets(line, sizeof(line), file)) {
        char *controllers = strchr(line, ':');
        char *path = controllers ? strchr(controllers + 1, ':') : NULL;

        if (!path)
            continue;
        *controllers++ = *path++ = '\0';
        path[strcspn(path, "\n")] = '\0';
        if (controllers[0] == '\0')
            least = fmin(least, min_limit_to_root(limit, root, CGROUP2_MOUNT, path, true));
        else if (parse_list_has(controllers, limit->controller))
            least = fmin(least, min_limit_to_root(limit, root, mount, path, false));
    }
    if (file)
        (void)fclose(file);
    return least;
}

double cgroup_processor_quota(const char *root)
{
    return find_min_limit(&(struct limit){"cpu", read_cpu_quota}, root);
}

double cgroup_memory_limit(const char *root)
{
    return find_min_limit(&(struct limit){"memory", read_memory_limit}, root);
}
