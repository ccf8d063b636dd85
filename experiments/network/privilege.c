/*
 * privilege: capabilities of a user namespace reach the programs ip and tc as ambient ones.
 */
#include "experiments/network/privilege.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NEEDED ((1ull << CAP_SYS_ADMIN) | (1ull << CAP_NET_ADMIN) | (1ull << CAP_NET_RAW))

static bool read_capabilities(struct __user_cap_data_struct data[2])
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};

    return syscall(SYS_capget, &header, data) == 0;
}

static bool has_needed(void)
{
    struct __user_cap_data_struct data[2] = {{0}};

    return read_capabilities(data) &&
           (((uint64_t)data[1].effective << 32 | data[0].effective) & NEEDED) == NEEDED;
}

static bool write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool written;

    if (fd < 0)
        return false;
    written = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    (void)close(fd);
    return written;
}

/* Let programs inherit all capabilities: ip opens our descriptors, for which it must have as many
 * as we. */
static bool make_ambient(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {{0}};

    if (!read_capabilities(data))
        return false;
    data[0].inheritable = data[0].permitted;
    data[1].inheritable = data[1].permitted;
    if (syscall(SYS_capset, &header, data) != 0)
        return false;
    for (unsigned c = 0; c < 64; c++)
        if (data[c / 32].permitted >> (c % 32) & 1 &&
            prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, c, 0, 0) != 0)
            return false;
    return true;
}

enum status privilege_obtain(bool *ret_is_new, struct error *err)
{
    unsigned user = geteuid(), group = getegid();
    char users[64], groups[64];

    *ret_is_new = !has_needed();
    if (!*ret_is_new)
        return STATUS_OK;
    if (unshare(CLONE_NEWUSER) != 0)
        return error_set(err, STATUS_UNSUPPORTED,
                         "network: emulated hosts take root (CAP_SYS_ADMIN, CAP_NET_ADMIN, "
                         "CAP_NET_RAW) or user namespaces, and this kernel refuses a user "
                         "namespace: %s (see /proc/sys/user/max_user_namespaces, "
                         "kernel.unprivileged_userns_clone, kernel.apparmor_restrict_"
                         "unprivileged_userns)",
                         strerror(errno));
    (void)snprintf(users, sizeof(users), "%u %u 1", user, user);
    (void)snprintf(groups, sizeof(groups), "%u %u 1", group, group);
    /* Dumpable: our files in /proc are ours, so that the maps can be written and nsenter finds our
     * namespaces. */
    if (prctl(PR_SET_DUMPABLE, 1) != 0 || !write_file("/proc/self/setgroups", "deny") ||
        !write_file("/proc/self/uid_map", users) || !write_file("/proc/self/gid_map", groups) ||
        !make_ambient())
        return error_set_errno(err, errno, "network: cannot set up a user namespace");
    return STATUS_OK;
}

void privilege_drop(void)
{
    (void)prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
}
