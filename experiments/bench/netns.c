/*
 * netns: the links are made inside the hub and moved into the hosts by descriptor
 * (/proc/<pid>/fd/<n>), which ip accepts instead of the name of a namespace.
 */
#include "experiments/bench/netns.h"

#include "common/base/file.h"
#include "experiments/subprocess/subprocess.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COMMAND_MS 10000

void netns_address(size_t host, char *text, size_t size)
{
    (void)snprintf(text, size, "10.77.0.%zu", host + 1);
}

/* Run one ip or tc command in the current namespace; its output becomes the error text. */
__attribute__((format(printf, 2, 3))) static enum status run_command(struct error *err,
                                                                     const char *format, ...)
{
    char line[400];
    char words[400];
    const char *argv[40];
    char log[] = "/tmp/sparring-netns-XXXXXX";
    struct subprocess_request request = {.argv = argv, .log_path = log, .timeout_ms = COMMAND_MS};
    struct subprocess_result result;
    size_t count = 0;
    char *rest = NULL;
    char *message = NULL;
    size_t message_bytes = 0;
    enum status status;
    va_list args;
    int fd = mkstemp(log);

    if (fd < 0)
        return error_set_errno(err, errno, "cannot make '%s'", log);
    (void)close(fd);
    va_start(args, format);
    (void)vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    memcpy(words, line, sizeof(words));
    for (char *w = strtok_r(words, " ", &rest); w && count < 39; w = strtok_r(NULL, " ", &rest))
        argv[count++] = w;
    argv[count] = NULL;
    status = subprocess_run(&request, &result, err);
    if (status == STATUS_OK && (result.outcome != SUBPROCESS_EXITED || result.code != 0)) {
        (void)file_read(log, 4096, &message, &message_bytes, NULL);
        status = error_set(err, STATUS_UNSUPPORTED, "--netns: '%s' failed: %s", line,
                           message && message[0] ? message : "no message");
        free(message);
    }
    (void)unlink(log);
    return status;
}

static enum status new_namespace(int *ret_fd, struct error *err)
{
    if (unshare(CLONE_NEWNET) != 0)
        return error_set(err, STATUS_UNSUPPORTED, "--netns: cannot make a network namespace: %s%s",
                         strerror(errno), errno == EPERM ? "; it takes root (CAP_SYS_ADMIN)" : "");
    *ret_fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (*ret_fd < 0)
        return error_set_errno(err, errno, "--netns: cannot open a network namespace");
    return STATUS_OK;
}

static enum status enter_namespace(int fd, struct error *err)
{
    if (setns(fd, CLONE_NEWNET) != 0)
        return error_set_errno(err, errno, "--netns: cannot enter a network namespace");
    return STATUS_OK;
}

/* Limit the egress rate of `device` in the current namespace. */
static enum status limit_rate(const char *device, const char *rate, struct error *err)
{
    enum status status;

    if (rate[0] == '\0')
        return STATUS_OK;
    status = run_command(err, "tc qdisc add dev %s root handle 1: htb default 1", device);
    if (status == STATUS_OK)
        status =
            run_command(err, "tc class add dev %s parent 1: classid 1:1 htb rate %s quantum 65536",
                        device, rate);
    return status;
}

/* In the host: set its address and limit its egress rate. */
static enum status set_up_host(const struct netns *n, size_t host, const char *rate,
                               struct error *err)
{
    char address[32];
    enum status status = enter_namespace(n->host_fds[host], err);

    netns_address(host, address, sizeof(address));
    if (status == STATUS_OK)
        status = run_command(err, "ip link set lo up");
    if (status == STATUS_OK)
        status = run_command(err, "ip address add %s/24 dev eth0", address);
    if (status == STATUS_OK)
        status = run_command(err, "ip link set eth0 up");
    return status == STATUS_OK ? limit_rate("eth0", rate, err) : status;
}

/* Two hosts: a direct link without a hub. */
static enum status connect_two(const struct netns *n, const char *rate, struct error *err)
{
    enum status status = enter_namespace(n->host_fds[0], err);

    if (status == STATUS_OK)
        status = run_command(err, "ip link add eth0 type veth peer name eth0 netns /proc/%ld/fd/%d",
                             (long)getpid(), n->host_fds[1]);
    if (status == STATUS_OK)
        status = set_up_host(n, 0, rate, err);
    return status == STATUS_OK ? set_up_host(n, 1, rate, err) : status;
}

static enum status connect_host(const struct netns *n, size_t host, const char *rate,
                                struct error *err)
{
    char port[32];
    enum status status = enter_namespace(n->hub_fd, err);

    (void)snprintf(port, sizeof(port), "port%zu", host);
    if (status == STATUS_OK)
        status = run_command(err, "ip link add %s type veth peer name eth0 netns /proc/%ld/fd/%d",
                             port, (long)getpid(), n->host_fds[host]);
    if (status == STATUS_OK)
        status = run_command(err, "ip link set %s master bridge0 up", port);
    if (status == STATUS_OK)
        status = limit_rate(port, rate, err);
    return status == STATUS_OK ? set_up_host(n, host, rate, err) : status;
}

static enum status connect_many(struct netns *n, const char *rate, struct error *err)
{
    enum status status = new_namespace(&n->hub_fd, err);

    if (status == STATUS_OK)
        status = run_command(err, "ip link add bridge0 type bridge");
    if (status == STATUS_OK)
        status = run_command(err, "ip link set bridge0 up");
    for (size_t h = 0; h < n->length && status == STATUS_OK; h++)
        status = connect_host(n, h, rate, err);
    return status;
}

static enum status create_namespaces(struct netns *n, const char *rate, struct error *err)
{
    enum status status = STATUS_OK;

    for (size_t h = 0; h < n->length && status == STATUS_OK; h++)
        status = new_namespace(&n->host_fds[h], err);
    if (status != STATUS_OK)
        return status;
    return n->length == 2 ? connect_two(n, rate, err) : connect_many(n, rate, err);
}

enum status netns_open(struct netns *n, size_t length, const char *rate, struct error *err)
{
    enum status status;

    *n = (struct netns){.length = length < NETNS_MAX ? length : NETNS_MAX, .hub_fd = -1};
    for (size_t h = 0; h < NETNS_MAX; h++)
        n->host_fds[h] = -1;
    n->home_fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (n->home_fd < 0)
        return error_set_errno(err, errno, "--netns: cannot open our network namespace");
    status = create_namespaces(n, rate, err);
    if (status == STATUS_OK)
        return netns_leave(n, err);
    (void)netns_leave(n, NULL);
    netns_close(n);
    return status;
}

enum status netns_enter(const struct netns *n, size_t host, struct error *err)
{
    return enter_namespace(n->host_fds[host], err);
}

enum status netns_leave(const struct netns *n, struct error *err)
{
    return enter_namespace(n->home_fd, err);
}

void netns_close(struct netns *n)
{
    for (size_t h = 0; h < n->length; h++)
        if (n->host_fds[h] >= 0)
            (void)close(n->host_fds[h]);
    if (n->hub_fd >= 0)
        (void)close(n->hub_fd);
    if (n->home_fd >= 0)
        (void)close(n->home_fd);
    *n = (struct netns){.hub_fd = -1, .home_fd = -1};
}
