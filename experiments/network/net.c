/*
 * net: makes the network, measures it, prints how to enter each host, and waits.
 */
#include "experiments/network/net.h"

#include "common/base/stop.h"
#include "common/option/program.h"
#include "experiments/network/network.h"

#include <poll.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

struct net_options {
    int64_t hosts;
    struct network_options network;
};

static const struct option_spec specs[] = {{.name = "hosts",
                                            .kind = OPTION_INT,
                                            .offset = offsetof(struct net_options, hosts),
                                            .default_text = "2",
                                            .min = 2,
                                            .max = NETWORK_HOSTS_MAX,
                                            .metavar = "N",
                                            .help = "Emulated hosts."},
                                           {0}};

static const struct option_set set = {
    .program = "sparring net up",
    .summary = "Make emulated hosts with a network between them, measure it, print how to run "
               "programs in them, and hold them until Ctrl-C.  Nothing remains afterwards.",
    .usage = "[OPTION]...",
    .tables = {{specs, 0}, {network_option_specs, offsetof(struct net_options, network)}},
};

/* Is this process in a user namespace that it made? */
static bool has_own_users(void)
{
    struct stat own, parent;

    return stat("/proc/self/ns/user", &own) == 0 && stat("/proc/1/ns/user", &parent) == 0
               ? own.st_ino != parent.st_ino
               : geteuid() != 0;
}

static void print_hosts(const struct network *n)
{
    long pid = (long)getpid();
    char users[96] = "";

    if (has_own_users())
        (void)snprintf(users, sizeof(users), " --preserve-credentials --user=/proc/%ld/ns/user",
                       pid);
    (void)printf("congestion control %s; run a program in a host by\n", n->congestion_control);
    for (size_t h = 0; h < n->length; h++) {
        char address[32];

        network_address(h, address, sizeof(address));
        (void)printf("  host %zu, %s: nsenter%s --net=/proc/%ld/fd/%d PROGRAM\n", h, address, users,
                     pid, n->host_fds[h]);
    }
    for (size_t h = 0; h < n->length; h++)
        (void)printf("measured from host %zu to host %zu: %.1f Mbit/s, round trip %.3f ms\n", h,
                     (h + 1) % n->length, n->measured[h].rate * 1e-6,
                     (double)n->measured[h].round_trip_ns * 1e-6);
    (void)fflush(stdout);
}

static enum status hold_network(struct network *n, const struct net_options *o, struct error *err)
{
    struct network_link links[NETWORK_HOSTS_MAX];
    struct pollfd stop = {.events = POLLIN};
    size_t hosts = (size_t)o->hosts;
    enum status status =
        network_options_read(&o->network, hosts, hosts, NETWORK_DELAY_MIN_MS, links, err);

    if (status == STATUS_OK)
        status = stop_install(err);
    if (status == STATUS_OK)
        status = network_open(n, links, hosts, &o->network, false, err);
    if (status == STATUS_OK)
        status = network_measure(n, err);
    if (status != STATUS_OK)
        return status;
    print_hosts(n);
    stop.fd = stop_fd();
    while (!stop_requested())
        (void)poll(&stop, 1, -1);
    return network_check(n, err);
}

static enum status run_net_up(const void *options, const struct option_result *origins,
                              struct error *err)
{
    struct network network = NETWORK_CLOSED;
    enum status status = hold_network(&network, options, err);

    (void)origins;
    network_close(&network);
    return status;
}

int net_up_main(int argc, char **argv)
{
    static const struct program program = {
        .set = &set, .options_size = sizeof(struct net_options), .run = run_net_up};

    return program_main(&program, argc, argv);
}
