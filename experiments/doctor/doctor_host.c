/*
 * doctor_host: from /proc, /sys and a few system calls.
 */
#include "common/base/host.h"
#include "common/base/net.h"
#include "common/base/parse.h"
#include "experiments/cluster/host_load.h"
#include "experiments/doctor/findings.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <math.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <time.h>
#include <unistd.h>

#define GIB          1073741824.0
#define MIB          1048576.0
#define SAMPLE_NS    500000000
#define BUSY_MAX     0.1  /* of the processors, by others, without a note */
#define STOLEN_MAX   0.02 /* by the hypervisor */
#define SHM_LEAST    (256 * MIB)
#define FILES_LEAST  1024
#define LOCKED_LEAST (64 * MIB) /* NCCL with InfiniBand wants more than the usual 8 MiB */
#define MASTER_PORT  29500
#define SERVER_PORT  5757

/* The first line of a file; "" when it cannot be read. */
static void read_line(const char *path, char *text, size_t size)
{
    FILE *file = fopen(path, "re");

    text[0] = '\0';
    if (!file)
        return;
    if (!fgets(text, (int)size, file))
        text[0] = '\0';
    text[strcspn(text, "\n")] = '\0';
    (void)fclose(file);
}

/* ---- processors */

/* While this process sleeps all that is busy is another. */
static void check_neighbours(struct findings *f)
{
    const struct timespec half = {.tv_nsec = SAMPLE_NS};
    char before[512], after[512];
    struct host_load load;

    read_line("/proc/stat", before, sizeof(before));
    (void)nanosleep(&half, NULL);
    read_line("/proc/stat", after, sizeof(after));
    if (!host_load_read(before, after, &load))
        return;
    findings_add(f, load.busy > BUSY_MAX ? FINDING_NOTE : FINDING_OK, "neighbours",
                 "other processes use %.0f %% of the processors%s", 100 * load.busy,
                 load.busy > BUSY_MAX ? ": figures will vary (top)" : "");
    if (load.stolen > STOLEN_MAX)
        findings_add(f, FINDING_NOTE, "neighbours",
                     "the hypervisor takes %.0f %% of the processors: figures will vary",
                     100 * load.stolen);
}

static void check_processors(struct findings *f, const struct host_info *host)
{
    findings_add(f, FINDING_OK, "processors", "%u, %s; %s", host->cores, host->cpu, host->kernel);
    if (isfinite(host->processor_quota))
        findings_add(f, FINDING_NOTE, "processors",
                     "the control group allows %.2f: threads beyond that are stopped for a while",
                     host->processor_quota);
    if (host->governor[0] != '\0' && strcmp(host->governor, "performance") != 0)
        findings_add(f, FINDING_NOTE, "processors",
                     "the frequency follows the load (governor %s); for steady figures: cpupower "
                     "frequency-set -g performance",
                     host->governor);
}

/* ---- memory */

static void check_memory(struct findings *f, const struct host_info *host)
{
    struct statvfs shared;
    struct rlimit limit;

    findings_add(f, FINDING_OK, "memory", "%.1f GiB%s", (double)host->memory_bytes / GIB,
                 isfinite(host->memory_limit) ? ", of which the control group allows a part" : "");
    if (isfinite(host->memory_limit))
        findings_add(f, FINDING_NOTE, "memory", "at most %.1f GiB for this control group",
                     host->memory_limit / GIB);
    if (statvfs("/dev/shm", &shared) == 0) {
        const double free_bytes = (double)shared.f_bavail * (double)shared.f_frsize;

        findings_add(f, free_bytes < SHM_LEAST ? FINDING_NOTE : FINDING_OK, "shared memory",
                     "%.0f MiB free in /dev/shm%s", free_bytes / MIB,
                     free_bytes < SHM_LEAST ? ": too little for large models (docker run "
                                              "--shm-size)"
                                            : "");
    }
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < FILES_LEAST)
        findings_add(f, FINDING_NOTE, "open files",
                     "%ju at most: too few for hundreds of ranks (ulimit -n)",
                     (uintmax_t)limit.rlim_cur);
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && (double)limit.rlim_cur < LOCKED_LEAST)
        findings_add(f, FINDING_NOTE, "locked memory",
                     "%.0f MiB at most: too little for NCCL over InfiniBand (ulimit -l)",
                     (double)limit.rlim_cur / MIB);
}

/* ---- clock */

static void check_clock(struct findings *f)
{
    struct timex state = {.modes = 0};
    char source[64];
    int result = adjtimex(&state);

    read_line("/sys/devices/system/clocksource/clocksource0/current_clocksource", source,
              sizeof(source));
    if (source[0] == '\0')
        (void)snprintf(source, sizeof(source), "unknown source");
    if (result < 0 || result == TIME_ERROR || (state.status & STA_UNSYNC))
        findings_add(f, FINDING_NOTE, "clock",
                     "%s, not synchronised: timelines of several hosts rely on offsets that are "
                     "measured (NTP or PTP)",
                     source);
    else
        findings_add(f, FINDING_OK, "clock", "%s, synchronised", source);
}

/* ---- network */

static void check_interfaces(struct findings *f)
{
    struct ifaddrs *all = NULL;

    if (getifaddrs(&all) != 0)
        return;
    for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
        char address[INET_ADDRSTRLEN], path[128], speed[32];
        int64_t mbit_s;

        if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET || !(i->ifa_flags & IFF_UP) ||
            (i->ifa_flags & IFF_LOOPBACK))
            continue;
        (void)inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)i->ifa_addr)->sin_addr,
                        address, sizeof(address));
        (void)snprintf(path, sizeof(path), "/sys/class/net/%.64s/speed", i->ifa_name);
        read_line(path, speed, sizeof(speed));
        if (parse_int64(speed, &mbit_s) && mbit_s > 0)
            findings_add(f, FINDING_OK, "network", "%s has %s, %jd Mbit/s", i->ifa_name, address,
                         (intmax_t)mbit_s);
        else
            findings_add(f, FINDING_OK, "network", "%s has %s", i->ifa_name, address);
    }
    freeifaddrs(all);
}

static void check_port(struct findings *f, const char *what, uint16_t port)
{
    const struct endpoint any = {.host = "0.0.0.0", .port = port};
    struct error err = {0};
    uint16_t bound;
    int fd;

    if (net_listen(&any, what, &fd, &bound, &err) != STATUS_OK) {
        findings_add(f, FINDING_NOTE, "ports", "%s", err.text);
        return;
    }
    (void)close(fd);
    findings_add(f, FINDING_OK, "ports", "%u is free (%s)", port, what);
}

void doctor_check_host(struct findings *f)
{
    struct host_info host;

    host_info_read(&host);
    check_processors(f, &host);
    check_neighbours(f);
    check_memory(f, &host);
    check_clock(f);
    check_interfaces(f);
    if (host.congestion_control[0] != '\0')
        findings_add(f, FINDING_OK, "TCP", "congestion control %s", host.congestion_control);
    check_port(f, "MASTER_PORT, where ranks of several hosts meet", MASTER_PORT);
    check_port(f, "sparring-server --listen", SERVER_PORT);
}
