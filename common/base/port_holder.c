/*
 * Finds the process that listens on a port: /proc/net/tcp{,6} gives the inode of the listening
 * socket, and the process is the one with a descriptor on that inode.  Only for error texts: when
 * /proc is hidden or the process belongs to another user, the result is "another process".
 */
#include "common/base/net.h"
#include "common/base/parse.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define TCP_STATE_LISTEN 0x0a /* as /proc/net/tcp prints it */

/* Inode of the socket that listens on `port` in a table of /proc/net; false when there is none. */
static bool find_inode(const char *table, uint16_t port, uint64_t *ret_inode)
{
    char line[512];
    bool found = false;
    FILE *f = fopen(table, "re");

    if (!f)
        return false;
    while (!found && fgets(line, sizeof(line), f)) {
        unsigned line_port;
        unsigned state;
        uint64_t inode;

        /* sl local:port remote:port state tx:rx timer:when retransmits uid timeout inode */
        if (sscanf(line, "%*u: %*[0-9A-Fa-f]:%x %*s %x %*s %*s %*s %*u %*u %" SCNu64, &line_port,
                   &state, &inode) != 3)
            continue;
        if (line_port == port && state == TCP_STATE_LISTEN) {
            *ret_inode = inode;
            found = true;
        }
    }
    (void)fclose(f);
    return found;
}

/* True when a descriptor of process `pid` is the socket with that inode. */
static bool process_holds(const char *pid, const char *wanted)
{
    char folder[64];
    DIR *fds;
    const struct dirent *entry;
    bool found = false;

    (void)snprintf(folder, sizeof(folder), "/proc/%.20s/fd", pid);
    fds = opendir(folder);
    if (!fds)
        return false;
    while (!found && (entry = readdir(fds)) != NULL) {
        char target[64];
        ssize_t length = readlinkat(dirfd(fds), entry->d_name, target, sizeof(target) - 1);

        if (length <= 0)
            continue;
        target[length] = '\0';
        found = strcmp(target, wanted) == 0;
    }
    (void)closedir(fds);
    return found;
}

static void format_process(const char *pid, char *text, size_t size)
{
    char path[64];
    char command[64] = "?";
    FILE *f;

    (void)snprintf(path, sizeof(path), "/proc/%.20s/comm", pid);
    f = fopen(path, "re");
    if (f) {
        if (fgets(command, sizeof(command), f))
            command[strcspn(command, "\n")] = '\0';
        (void)fclose(f);
    }
    (void)snprintf(text, size, "pid %s (%s)", pid, command);
}

void net_port_holder(uint16_t port, char *text, size_t size)
{
    char wanted[64];
    uint64_t inode;
    const struct dirent *entry;
    DIR *processes;

    (void)snprintf(text, size, "another process");
    if (!find_inode("/proc/net/tcp", port, &inode) && !find_inode("/proc/net/tcp6", port, &inode))
        return;
    (void)snprintf(wanted, sizeof(wanted), "socket:[%" PRIu64 "]", inode);
    processes = opendir("/proc");
    if (!processes)
        return;
    while ((entry = readdir(processes)) != NULL) {
        uint64_t pid;

        if (parse_uint64(entry->d_name, &pid) && process_holds(entry->d_name, wanted)) {
            format_process(entry->d_name, text, size);
            break;
        }
    }
    (void)closedir(processes);
}
