/*
 * /proc/self/cgroup names the group in each hierarchy: "0::/a/b" is version 2's, "4:cpu,cpuacct:/a"
 * that of version 1's cpu controller.  A container may see a path there that its own /sys does not
 * have, and the root in its place: a file that is missing limits nothing.
 * Source: Linux, Documentation/admin-guide/cgroup-v2.rst and scheduler/sched-bwc.rst.
 */
#include "common/base/cgroup.h"

#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VERSION_2 "/sys/fs/cgroup"
#define VERSION_1 "/sys/fs/cgroup/cpu"

static bool read_words(const char *folder, const char *name, char first[32], char second[32])
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

static double quotient(const char *quota, const char *period)
{
    double q = strtod(quota, NULL); /* "max" is 0, version 1's "none" is -1 */
    double p = strtod(period, NULL);

    return q > 0 && p > 0 ? q / p : (double)INFINITY;
}

static double folder_quota(const char *folder, bool is_version_2)
{
    char quota[32] = "";
    char period[32] = "";
    char rest[32];

    if (is_version_2)
        return read_words(folder, "cpu.max", quota, period) ? quotient(quota, period)
                                                            : (double)INFINITY;
    if (!read_words(folder, "cpu.cfs_quota_us", quota, rest) ||
        !read_words(folder, "cpu.cfs_period_us", period, rest))
        return (double)INFINITY;
    return quotient(quota, period);
}

/* From the group `path` below `mount` up to the root. */
static double least_quota(const char *root, const char *mount, const char *path, bool is_version_2)
{
    char folder[PATH_MAX];
    size_t top = strlen(root) + strlen(mount);
    double least = (double)INFINITY;

    if (snprintf(folder, sizeof(folder), "%s%s%s", root, mount, path) >= (int)sizeof(folder))
        return least;
    for (;;) {
        char *slash = strrchr(folder, '/');

        least = fmin(least, folder_quota(folder, is_version_2));
        if (strlen(folder) <= top || !slash)
            return least;
        *slash = '\0';
    }
}

static bool has_cpu(const char *controllers)
{
    for (const char *c = controllers; *c; c += strcspn(c, ",") + (c[strcspn(c, ",")] == ','))
        if (strncmp(c, "cpu", 3) == 0 && (c[3] == ',' || c[3] == '\0'))
            return true;
    return false;
}

double cgroup_processor_quota(const char *root)
{
    char line[PATH_MAX + 256];
    double least = (double)INFINITY;
    FILE *file;

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
            least = fmin(least, least_quota(root, VERSION_2, path, true));
        else if (has_cpu(controllers))
            least = fmin(least, least_quota(root, VERSION_1, path, false));
    }
    if (file)
        (void)fclose(file);
    return least;
}
