/*
 * Describes the host from /proc, /sys, uname and the control groups.  A value that cannot be read
 * is left empty, 0 or NaN; nothing here fails.  No state.
 */
#include "common/base/host.h"

#include "common/base/cgroup.h"
#include "common/base/parse.h"

#include <ctype.h>
#include <glob.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#define FILES_MAX 65536

static void read_cpu_name(char *text, size_t size)
{
    FILE *file = fopen("/proc/cpuinfo", "re");
    char line[512];

    while (file && fgets(line, sizeof(line), file)) {
        const char *value = strchr(line, ':');

        if (strncmp(line, "model name", 10) != 0 || !value)
            continue;
        value += 1 + strspn(value + 1, " \t");
        (void)snprintf(text, size, "%.*s", (int)strcspn(value, "\n"), value);
        break;
    }
    if (file)
        (void)fclose(file);
}

unsigned host_cores(void)
{
    double quota = ceil(cgroup_processor_quota(""));
    cpu_set_t allowed;
    unsigned cores = 1;

    if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0)
        cores = (unsigned)CPU_COUNT(&allowed);
    else if (sysconf(_SC_NPROCESSORS_ONLN) > 0) /* more than CPU_SETSIZE */
        cores = (unsigned)sysconf(_SC_NPROCESSORS_ONLN);
    return quota < cores ? (unsigned)quota : cores;
}

unsigned host_job_cores(void)
{
    const char *text = getenv("SPARRING_HOST_CORES");
    uint64_t cores;

    return text && parse_uint64(text, &cores) && cores > 0 && cores <= CPU_SETSIZE ? (unsigned)cores
                                                                                   : host_cores();
}

unsigned host_cores_part(unsigned parts)
{
    unsigned own = host_cores(), part = host_job_cores() / parts;

    return part < 1 ? 1 : part < own ? part : own;
}

/* "0-3,8": the processors of the affinity mask. */
static void list_processors(char *text, size_t size)
{
    cpu_set_t allowed;
    size_t length = 0;

    text[0] = '\0';
    if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0)
        return;
    for (unsigned first = 0, end; first < CPU_SETSIZE && length < size; first = end + 1) {
        for (end = first; end < CPU_SETSIZE && CPU_ISSET(end, &allowed); end++)
            ;
        if (end == first)
            continue;
        length +=
            (size_t)snprintf(text + length, size - length, "%s%u", length > 0 ? "," : "", first);
        if (end - first > 1 && length < size)
            length += (size_t)snprintf(text + length, size - length, "-%u", end - 1);
    }
}

/* The first word of a file; "" where it cannot be read. */
static void read_word(const char *path, char text[32])
{
    FILE *file = fopen(path, "re");

    if (!file || fscanf(file, "%31s", text) != 1)
        text[0] = '\0';
    if (file)
        (void)fclose(file);
}

void host_info_read(struct host_info *ret)
{
    struct utsname names;
    long pages = sysconf(_SC_PHYS_PAGES);
    const char *bind = getenv("SPARRING_BIND"), *network = getenv("SPARRING_NETWORK");

    memset(ret, 0, sizeof(*ret));
    if (uname(&names) == 0) {
        (void)snprintf(ret->name, sizeof(ret->name), "%s", names.nodename);
        (void)snprintf(ret->cpu, sizeof(ret->cpu), "%s", names.machine);
        (void)snprintf(ret->kernel, sizeof(ret->kernel), "%.60s %.60s", names.sysname,
                       names.release);
    }
    read_cpu_name(ret->cpu, sizeof(ret->cpu));
    ret->cores = host_job_cores();
    list_processors(ret->processors, sizeof(ret->processors));
    (void)snprintf(ret->bind, sizeof(ret->bind), "%s", bind ? bind : "");
    (void)snprintf(ret->network, sizeof(ret->network), "%s", network ? network : "");
    ret->processor_quota = cgroup_processor_quota("");
    if (pages > 0)
        ret->memory_bytes = (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
    ret->memory_limit = cgroup_memory_limit("");
    if (getloadavg(&ret->load, 1) != 1)
        ret->load = (double)NAN;
    read_word("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", ret->governor);
    read_word("/proc/sys/net/ipv4/tcp_congestion_control", ret->congestion_control);
}

static bool is_read_by_libraries(const char *variable)
{
    static const char *const prefixes[] = {"OMP_", "GOMP_", "KMP_",  "DNNL_", "ONEDNN_",
                                           "MKL_", "NCCL_", "GRPC_", "CUDA_", "MALLOC_"};

    for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++)
        if (strncmp(variable, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return false;
}

void host_add_environment(struct strbuf *out)
{
    const char *before = NULL;
    const size_t begin = out->length;

    for (;;) { /* a selection sort: there are few of them */
        const char *next = NULL;

        for (char **v = environ; *v; v++)
            if (is_read_by_libraries(*v) && (!before || strcmp(*v, before) > 0) &&
                (!next || strcmp(*v, next) < 0))
                next = *v;
        if (!next)
            return;
        strbuf_addf(out, "%s%s", out->length > begin ? " " : "", next);
        before = next;
    }
}

static void add_json_if_set(struct strbuf *out, const char *name, const char *value)
{
    if (value[0] == '\0')
        return;
    strbuf_addf(out, ",\"%s\":", name);
    strbuf_add_json(out, value);
}

void host_info_json(const struct host_info *host, struct strbuf *out)
{
    struct strbuf environment = STRBUF_INIT;

    strbuf_add(out, "{\"name\":");
    strbuf_add_json(out, host->name);
    strbuf_add(out, ",\"cpu\":");
    strbuf_add_json(out, host->cpu);
    strbuf_addf(out,
                ",\"cores\":%u,\"processors\":\"%s\",\"memory_bytes\":%ju,\"kernel\":", host->cores,
                host->processors, (uintmax_t)host->memory_bytes);
    strbuf_add_json(out, host->kernel);
    add_json_if_set(out, "bind", host->bind);
    add_json_if_set(out, "network", host->network);
    if (isfinite(host->processor_quota))
        strbuf_addf(out, ",\"processor_quota\":%g", host->processor_quota);
    if (isfinite(host->memory_limit))
        strbuf_addf(out, ",\"memory_limit\":%.0f", host->memory_limit);
    if (isfinite(host->load))
        strbuf_addf(out, ",\"load\":%.2f", host->load);
    add_json_if_set(out, "governor", host->governor);
    add_json_if_set(out, "congestion_control", host->congestion_control);
    host_add_environment(&environment);
    strbuf_add(out, ",\"environment\":");
    strbuf_add_json(out, strbuf_ok(&environment) ? environment.text : "");
    out->failed = out->failed || !strbuf_ok(&environment);
    strbuf_release(&environment);
    strbuf_add(out, ",\"compiler\":");
#ifdef __clang__
    strbuf_add_json(out, "clang " __clang_version__);
#else
    strbuf_add_json(out, "gcc " __VERSION__);
#endif
    strbuf_add(out, "}");
}

uint64_t host_rss_bytes(void)
{
    FILE *file = fopen("/proc/self/statm", "re");
    unsigned long long size = 0, resident = 0;
    long page = sysconf(_SC_PAGESIZE);

    if (!file)
        return 0;
    if (fscanf(file, "%llu %llu", &size, &resident) != 2)
        resident = 0;
    (void)fclose(file);
    return page > 0 ? (uint64_t)resident * (uint64_t)page : 0;
}

uint64_t host_peak_rss_bytes(void)
{
    struct rusage usage;

    if (getrusage(RUSAGE_SELF, &usage) != 0)
        return 0;
    return (uint64_t)usage.ru_maxrss * 1024;
}

static double seconds_of(struct timeval t)
{
    return (double)t.tv_sec + (double)t.tv_usec * 1e-6;
}

double host_cpu_seconds(void)
{
    struct rusage usage;

    if (getrusage(RUSAGE_SELF, &usage) != 0)
        return 0;
    return seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
}

int64_t host_processor_wait_ns(void)
{
    FILE *file = fopen("/proc/pressure/cpu", "re");
    unsigned long long us = 0;
    bool is_known = file && fscanf(file, "some %*s %*s %*s total=%llu", &us) == 1;

    if (file)
        (void)fclose(file);
    return is_known ? (int64_t)us * 1000 : -1;
}

void host_raise_file_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= FILES_MAX)
        return;
    limit.rlim_cur = limit.rlim_max < FILES_MAX ? limit.rlim_max : FILES_MAX;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

unsigned host_gpus(void)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    char entry[128];
    glob_t found = {0};
    unsigned count = 0;

    while (visible && *visible) {
        visible = parse_list_next(visible, entry, sizeof(entry));
        if (!isdigit((unsigned char)entry[0]) && strncmp(entry, "GPU-", 4) != 0 &&
            strncmp(entry, "MIG-", 4) != 0)
            return count;
        count++;
    }
    if (visible)
        return count;
    if (glob("/dev/nvidia[0-9]*", 0, NULL, &found) == 0)
        count = (unsigned)found.gl_pathc;
    globfree(&found);
    return count;
}
