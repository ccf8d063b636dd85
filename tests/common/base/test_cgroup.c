/*
 * Limits of control groups, read below a folder with its own /proc and /sys.
 */
#include "common/base/cgroup.h"
#include "common/base/file.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define FILES_MAX 6

static const struct {
    const char *name;
    struct {
        const char *path, *text;
    } files[FILES_MAX];
    double quota;  /* 0: none */
    double memory; /* bytes; 0: none */
} cases[] = {
    {"nothing is there", {{NULL, NULL}}, 0, 0},
    {"version 2, its own group",
     {{"/proc/self/cgroup", "0::/a/b\n"}, {"/sys/fs/cgroup/a/b/cpu.max", "150000 100000\n"}},
     1.5,
     0},
    {"version 2, a group above has less",
     {{"/proc/self/cgroup", "0::/a/b\n"},
      {"/sys/fs/cgroup/a/b/cpu.max", "400000 100000\n"},
      {"/sys/fs/cgroup/a/cpu.max", "50000 50000\n"},
      {"/sys/fs/cgroup/a/b/memory.max", "max\n"},
      {"/sys/fs/cgroup/a/memory.max", "1073741824\n"}},
     1,
     1073741824},
    {"version 2, no limit",
     {{"/proc/self/cgroup", "0::/a\n"}, {"/sys/fs/cgroup/a/cpu.max", "max 100000\n"}},
     0,
     0},
    {"version 2 in a container, whose own root is the group",
     {{"/proc/self/cgroup", "0::/../../outside\n"}, {"/sys/fs/cgroup/cpu.max", "20000 100000\n"}},
     0.2,
     0},
    {"version 1, mounted with cpuacct",
     {{"/proc/self/cgroup", "9:memory:/m\n4:cpu,cpuacct:/docker/77\n1:name=systemd:/\n0::/\n"},
      {"/sys/fs/cgroup/cpu/docker/77/cpu.cfs_quota_us", "250000\n"},
      {"/sys/fs/cgroup/cpu/docker/77/cpu.cfs_period_us", "100000\n"},
      {"/sys/fs/cgroup/memory/m/memory.limit_in_bytes", "4096000\n"},
      {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"}},
     2.5,
     4096000},
    {"version 1, no limit; cpuset is another controller",
     {{"/proc/self/cgroup", "4:cpuset:/x\n3:cpuacct,cpu:/\n"},
      {"/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"},
      {"/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"},
      {"/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "1000\n"},
      {"/sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "1000\n"}},
     0,
     0},
    {"nonsense",
     {{"/proc/self/cgroup", "0::/a\nx\n:\n::\n"}, {"/sys/fs/cgroup/a/cpu.max", "0 0\n"}},
     0,
     0},
};

static void write_below(const char *root, const char *path, const char *text)
{
    struct error err = {0};
    char whole[4096];
    char *slash;

    (void)snprintf(whole, sizeof(whole), "%s%s", root, path);
    slash = strrchr(whole, '/');
    *slash = '\0';
    assert_ok(file_make_folder(whole, &err));
    *slash = '/';
    assert_ok(file_write_atomic(whole, text, strlen(text), &err));
}

START_TEST(test_limits)
{
    const char *root = support_path("root");
    double quota, memory;

    for (size_t i = 0; i < FILES_MAX && cases[_i].files[i].path; i++)
        write_below(root, cases[_i].files[i].path, cases[_i].files[i].text);
    quota = cgroup_processor_quota(root);
    ck_assert_msg(cases[_i].quota > 0 ? quota == cases[_i].quota : isinf(quota) != 0, "%s: %g",
                  cases[_i].name, quota);
    memory = cgroup_memory_limit(root);
    ck_assert_msg(cases[_i].memory > 0 ? memory == cases[_i].memory : isinf(memory) != 0, "%s: %g",
                  cases[_i].name, memory);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("cgroup", 0, LOOP_TEST(test_limits, 0, sizeof(cases) / sizeof(cases[0])));
}
