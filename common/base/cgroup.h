/*
 * cgroup: the processors and the memory that this process's control groups allow, versions 1 and 2.
 */
#ifndef SPARRING_COMMON_BASE_CGROUP_H
#define SPARRING_COMMON_BASE_CGROUP_H

/* The smallest "cpu.max" (version 2) or cpu.cfs_quota_us / cpu.cfs_period_us (version 1) from this
 * process's group up to the root, in processors; INFINITY without a limit.  `root` is prefixed to
 * /proc and /sys: "" except in tests. */
double cgroup_processor_quota(const char *root);

/* The same for "memory.max" or memory.limit_in_bytes, in bytes. */
double cgroup_memory_limit(const char *root);

#endif
