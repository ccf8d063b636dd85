/*
 * network: the links are made inside the hub with their other ends in the hosts, which ip takes by
 * descriptor (/proc/<pid>/fd/<n>) instead of by name.  Each namespace takes one call of ip and one
 * of tc, with all of its commands in a file.
 */
#include "experiments/network/network.h"

#include "common/base/file.h"
#include "common/base/log.h"
#include "experiments/network/network_measure.h"
#include "experiments/network/privilege.h"
#include "experiments/subprocess/subprocess.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define COMMAND_MS 10000
#define LATE_SHARE 0.99
#define LATE_PART  10  /* of the delay: half of the packets may be so late, */
#define LATE_MS    0.3 /* LATE_SHARE of them so late, too, or by this where it is more */

void network_address(size_t host, char *text, size_t size)
{
    (void)snprintf(text, size, "10.77.0.%zu", host + 1);
}

static void close_fd(int fd)
{
    if (fd >= 0)
        (void)close(fd);
}

/* ---- commands ---- */

/* A file without a name, and its path for other programs. */
static enum status open_unnamed(int *ret_fd, char *path, size_t size, struct error *err)
{
    *ret_fd = memfd_create("sparring-network", MFD_CLOEXEC);
    if (*ret_fd < 0)
        return error_set_errno(err, errno, "network: cannot make a file in memory");
    (void)snprintf(path, size, "/proc/%ld/fd/%d", (long)getpid(), *ret_fd);
    return STATUS_OK;
}

/* An ordinary user's PATH lacks the folder of tc. */
static void find_program(const char *name, char *path, size_t size)
{
    (void)snprintf(path, size, "/usr/sbin/%s", name);
    if (access(path, X_OK) != 0)
        (void)snprintf(path, size, "%s", name);
}

/* Run the commands, one a line, in the current namespace; what `program` says becomes the error. */
static enum status run_commands(const char *program, struct strbuf *commands, struct error *err)
{
    char path[32], input[64], log[64];
    const char *argv[] = {path, "-batch", input, NULL};
    struct subprocess_request request = {.argv = argv, .log_path = log, .timeout_ms = COMMAND_MS};
    struct subprocess_result result;
    char message[400] = "";
    int input_fd = -1, log_fd = -1;
    enum status status = strbuf_ok(commands)
                             ? open_unnamed(&input_fd, input, sizeof(input), err)
                             : error_set(err, STATUS_NO_MEMORY, "network: no memory for commands");

    find_program(program, path, sizeof(path));
    if (status == STATUS_OK)
        status = open_unnamed(&log_fd, log, sizeof(log), err);
    if (status == STATUS_OK)
        status = file_write_all(input_fd, program, commands->text, commands->length, err);
    if (status == STATUS_OK)
        status = subprocess_run(&request, &result, err);
    if (status == STATUS_OK && (result.outcome != SUBPROCESS_EXITED || result.code != 0)) {
        (void)!pread(log_fd, message, sizeof(message) - 1, 0);
        status = error_set(err, STATUS_UNSUPPORTED, "network: %s failed: %s", program,
                           message[0] ? message : "no message");
    }
    close_fd(input_fd);
    close_fd(log_fd);
    strbuf_reset(commands);
    return status;
}

/* `verb` is add or change. */
static void add_class(const char *verb, const char *device, double rate, struct strbuf *commands)
{
    strbuf_addf(commands, "class %s dev %s parent 1: classid 1:1 htb rate %.0fbit quantum 65536\n",
                verb, device, rate);
}

static void add_rate(const char *device, double rate, struct strbuf *commands)
{
    if (rate == 0)
        return;
    strbuf_addf(commands, "qdisc add dev %s root handle 1: htb default 1\n", device);
    add_class("add", device, rate, commands);
}

/* ---- namespaces ---- */

/* Write one of the current namespace's settings, "ipv4/tcp_congestion_control". */
static bool write_setting(const char *name, const char *value)
{
    char path[128];
    int fd;
    bool written;

    (void)snprintf(path, sizeof(path), "/proc/sys/net/%s", name);
    fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    written = write(fd, value, strlen(value)) == (ssize_t)strlen(value);
    (void)close(fd);
    return written;
}

/* Make a namespace and enter it. */
static enum status new_namespace(int *ret_fd, struct error *err)
{
    if (unshare(CLONE_NEWNET) != 0)
        return error_set_errno(err, errno, "network: cannot make a network namespace");
    *ret_fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (*ret_fd < 0)
        return error_set_errno(err, errno, "network: cannot open a network namespace");
    (void)write_setting("ipv6/conf/all/disable_ipv6", "1"); /* no packets but those of the job */
    (void)write_setting("ipv6/conf/default/disable_ipv6", "1");
    return STATUS_OK;
}

static enum status enter_namespace(int fd, struct error *err)
{
    if (setns(fd, CLONE_NEWNET) != 0)
        return error_set_errno(err, errno, "network: cannot enter a network namespace");
    return STATUS_OK;
}

/* cubic or reno: the host's default may pace packets by timers (bbr), which a shared machine does
 * not keep. */
static void choose_congestion_control(struct network *n)
{
    char *text = NULL;
    size_t size = 0;

    if (!write_setting("ipv4/tcp_congestion_control", "cubic"))
        (void)write_setting("ipv4/tcp_congestion_control", "reno");
    if (file_read("/proc/sys/net/ipv4/tcp_congestion_control", 64, &text, &size, NULL) == STATUS_OK)
        (void)snprintf(n->congestion_control, sizeof(n->congestion_control), "%.*s",
                       (int)strcspn(text, "\n"), text);
    free(text);
}

static bool has_relay(const struct network *n)
{
    for (size_t h = 0; h < n->length; h++)
        if (n->links[h].delay_ns > 0)
            return true;
    return false;
}

/* Packets that may be lost, on the way from a host or to it, are sent one by one, not as large
 * frames. */
static const char *frame_setting(const struct network *n)
{
    for (size_t h = 0; h < n->length; h++)
        if (n->links[h].loss > 0)
            return " gso_max_segs 1";
    return "";
}

/* In the host: its address, and the rate of what it sends. */
static enum status set_up_host(struct network *n, size_t host, struct strbuf *commands,
                               struct error *err)
{
    char address[32];
    enum status status = enter_namespace(n->host_fds[host], err);

    if (status != STATUS_OK)
        return status;
    choose_congestion_control(n);
    /* What the measurement finds out about the path is not for the job's connections. */
    (void)write_setting("ipv4/tcp_no_metrics_save", "1");
    network_address(host, address, sizeof(address));
    strbuf_addf(commands, "link set lo up\naddress add %s/24 dev eth0\nlink set eth0 up%s\n",
                address, frame_setting(n));
    status = run_commands("ip", commands, err);
    add_rate("eth0", n->links[host].rate, commands);
    return status == STATUS_OK && commands->length > 0 ? run_commands("tc", commands, err) : status;
}

/* `device` of the current namespace, linked with eth0 of the host. */
static void add_link(const struct network *n, const char *device, size_t host,
                     struct strbuf *commands)
{
    unsigned char mac[6];

    relay_mac(host, mac);
    strbuf_addf(commands,
                "link add %s type veth peer name eth0 address %02x:%02x:%02x:%02x:%02x:%02x "
                "netns /proc/%ld/fd/%d\n",
                device, mac[0], mac[1], mac[2], mac[3], mac[4], mac[5], (long)getpid(),
                n->host_fds[host]);
}

static enum status make_hub(struct network *n, struct strbuf *commands, struct error *err)
{
    bool relayed = has_relay(n);
    struct strbuf rates = STRBUF_INIT;
    enum status status = new_namespace(&n->hub_fd, err);

    if (!relayed)
        strbuf_add(commands, "link add bridge0 type bridge\nlink set bridge0 up\n");
    for (size_t h = 0; h < n->length; h++) {
        char port[32];

        (void)snprintf(port, sizeof(port), "port%zu", h);
        add_link(n, port, h, commands);
        strbuf_addf(commands, "link set %s%s up%s\n", port, relayed ? "" : " master bridge0",
                    frame_setting(n));
        add_rate(port, n->links[h].rate, &rates);
    }
    if (status == STATUS_OK)
        status = run_commands("ip", commands, err);
    if (status == STATUS_OK && rates.length > 0)
        status = run_commands("tc", &rates, err);
    if (status == STATUS_OK && relayed)
        status = relay_start(&n->relay, n->links, n->length, n->seed, err);
    strbuf_release(&rates);
    return status;
}

static enum status make_network(struct network *n, bool changes, struct error *err)
{
    struct strbuf commands = STRBUF_INIT;
    enum status status = STATUS_OK;

    for (size_t h = 0; h < n->length && status == STATUS_OK; h++)
        status = new_namespace(&n->host_fds[h], err);
    if (status == STATUS_OK && n->length == 2 && !has_relay(n) && !changes) {
        status = enter_namespace(n->host_fds[0], err);
        add_link(n, "eth0", 1, &commands);
        if (status == STATUS_OK)
            status = run_commands("ip", &commands, err);
    } else if (status == STATUS_OK) {
        status = make_hub(n, &commands, err);
    }
    for (size_t h = 0; h < n->length && status == STATUS_OK; h++)
        status = set_up_host(n, h, &commands, err);
    strbuf_release(&commands);
    return status;
}

enum status network_open(struct network *n, const struct network_link *links, size_t length,
                         const struct network_options *options, bool changes, struct error *err)
{
    bool is_new;
    enum status status = privilege_obtain(&is_new, err);

    if (status != STATUS_OK)
        return status;
    *n = (struct network)NETWORK_CLOSED;
    n->length = length < NETWORK_HOSTS_MAX ? length : NETWORK_HOSTS_MAX;
    n->seed = (uint64_t)options->seed;
    n->warns = strcmp(options->check, "warn") == 0;
    memcpy(n->links, links, n->length * sizeof(*links));
    for (size_t h = 0; h < NETWORK_HOSTS_MAX; h++)
        n->host_fds[h] = -1;
    if (is_new && unshare(CLONE_NEWNET) != 0) /* there is no way back into the host's namespace */
        return error_set_errno(err, errno, "network: cannot make a network namespace");
    n->home_fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (n->home_fd < 0)
        return error_set_errno(err, errno, "network: cannot open our network namespace");
    status = make_network(n, changes, err);
    if (status == STATUS_OK)
        status = network_leave(n, err);
    if (status == STATUS_OK)
        return STATUS_OK;
    (void)network_leave(n, NULL);
    network_close(n);
    return status;
}

enum status network_enter(const struct network *n, size_t host, struct error *err)
{
    return enter_namespace(n->host_fds[host], err);
}

enum status network_leave(const struct network *n, struct error *err)
{
    return enter_namespace(n->home_fd, err);
}

enum status network_change(const struct network *n, size_t host, double rate, bool is_up,
                           struct error *err)
{
    struct strbuf commands = STRBUF_INIT;
    char port[32];
    enum status status = enter_namespace(n->hub_fd, err), left;

    (void)snprintf(port, sizeof(port), "port%zu", host);
    strbuf_addf(&commands, "link set %s %s\n", port, is_up ? "up" : "down");
    if (status == STATUS_OK)
        status = run_commands("ip", &commands, err);
    if (status == STATUS_OK && rate > 0) {
        add_class("change", port, rate, &commands);
        status = run_commands("tc", &commands, err);
    }
    if (status == STATUS_OK && rate > 0)
        status = network_enter(n, host, err);
    if (status == STATUS_OK && rate > 0) {
        add_class("change", "eth0", rate, &commands);
        status = run_commands("tc", &commands, err);
    }
    strbuf_release(&commands);
    left = network_leave(n, status == STATUS_OK ? err : NULL);
    return status != STATUS_OK ? status : left;
}

/* What eth0 of a host has carried so far; false: unknown. */
static bool read_bytes(const struct network *n, size_t host, struct network_bytes *ret)
{
    char *text = NULL;
    size_t size = 0;
    const char *line;
    bool found = false;

    if (network_enter(n, host, NULL) != STATUS_OK)
        return false;
    if (file_read("/proc/thread-self/net/dev", 1 << 16, &text, &size, NULL) == STATUS_OK) {
        line = strstr(text, "eth0:");
        found = line && sscanf(line, "eth0: %" SCNu64 " %*u %*u %*u %*u %*u %*u %*u %" SCNu64,
                               &ret->received, &ret->sent) == 2;
    }
    free(text);
    return network_leave(n, NULL) == STATUS_OK && found;
}

/* What becomes of STATUS_DISTURBED. */
static enum status judge(const struct network *n, enum status status, struct error *why,
                         struct error *err)
{
    if (status == STATUS_DISTURBED && n->warns) {
        log_warning("%s", why->text);
        return STATUS_OK;
    }
    return status == STATUS_OK ? STATUS_OK : error_set(err, status, "%s", why->text);
}

enum status network_measure(struct network *n, struct error *err)
{
    struct error why = {0};
    enum status status = network_probe(n, &why);

    n->is_measured = status == STATUS_OK;
    for (size_t h = 0; h < n->length; h++)
        (void)read_bytes(n, h, &n->before[h]);
    for (size_t h = 0; h < n->length && status == STATUS_OK; h++)
        status = network_probe_check(n, h, &why);
    return judge(n, status, &why, err);
}

enum status network_check(const struct network *n, struct error *err)
{
    const double late_ms = (double)relay_lateness_ns(&n->relay, LATE_SHARE) * 1e-6;
    const double median_ms = (double)relay_lateness_ns(&n->relay, 0.5) * 1e-6;
    double least_ms = (double)INFINITY;
    struct error why = {0};
    enum status status = STATUS_OK;

    for (size_t h = 0; h < n->length; h++)
        if (n->links[h].delay_ns > 0)
            least_ms = fmin(least_ms, (double)n->links[h].delay_ns * 1e-6);
    if (relay_has_ended(&n->relay))
        status = error_set(&why, STATUS_DISTURBED,
                           "network: the relay between the emulated hosts has ended");
    else if (late_ms > fmax(least_ms / LATE_PART, LATE_MS) || median_ms > least_ms / LATE_PART)
        status = error_set(&why, STATUS_DISTURBED,
                           "network: half of the packets left %.2f ms late or more, one in a "
                           "hundred %.2f ms, which is too much for a delay of %.3g ms: this run's "
                           "times are not of that network",
                           median_ms, late_ms, least_ms);
    return judge(n, status, &why, err);
}

/* ---- the record ---- */

static void add_host(const struct network *n, size_t host, uint64_t *link_bytes,
                     struct strbuf *text)
{
    const struct network_link *link = &n->links[host];
    struct network_bytes bytes;
    char address[32];

    network_address(host, address, sizeof(address));
    strbuf_addf(text, "{\"address\":\"%s\",\"rate_bits_s\":%.0f,\"delay_ms\":", address,
                link->rate);
    strbuf_add_double(text, (double)link->delay_ns * 1e-6);
    strbuf_add(text, ",\"jitter_ms\":");
    strbuf_add_double(text, (double)link->jitter_ns * 1e-6);
    strbuf_add(text, ",\"loss\":");
    strbuf_add_double(text, link->loss);
    if (n->is_measured)
        strbuf_addf(text, ",\"measured_rate_bits_s\":%.0f,\"measured_round_trip_ms\":%.4f",
                    n->measured[host].rate, (double)n->measured[host].round_trip_ns * 1e-6);
    if (read_bytes(n, host, &bytes)) {
        bytes.received -= n->before[host].received;
        bytes.sent -= n->before[host].sent;
        *link_bytes += bytes.sent;
        strbuf_addf(text, ",\"received_bytes\":%" PRIu64 ",\"sent_bytes\":%" PRIu64, bytes.received,
                    bytes.sent);
    }
    strbuf_add(text, "}");
}

static void add_relay(const struct relay *r, struct strbuf *text)
{
    const struct relay_counts *c = r->counts;

    strbuf_addf(
        text,
        ",\"relay\":{\"forwarded\":%" PRIu64 ",\"lost\":%" PRIu64 ",\"dropped\":%" PRIu64 "},"
        "\"late_p50_ms\":%.4f,\"late_p99_ms\":%.4f",
        atomic_load(&c->forwarded), atomic_load(&c->lost), atomic_load(&c->dropped),
        (double)relay_lateness_ns(r, 0.5) * 1e-6, (double)relay_lateness_ns(r, LATE_SHARE) * 1e-6);
}

static void add_measured(const struct network *n, struct strbuf *text)
{
    struct network_measured worst = n->measured[0];

    for (size_t h = 1; h < n->length; h++) {
        worst.rate = fmin(worst.rate, n->measured[h].rate);
        if (n->measured[h].round_trip_ns > worst.round_trip_ns)
            worst.round_trip_ns = n->measured[h].round_trip_ns;
    }
    strbuf_addf(text, ",\"lowest_rate_bits_s\":%.0f,\"highest_round_trip_ms\":%.4f", worst.rate,
                (double)worst.round_trip_ns * 1e-6);
}

enum status network_write(const struct network *n, const char *folder, struct error *err)
{
    struct strbuf text = STRBUF_INIT;
    char path[4096];
    enum status status = file_join(path, sizeof(path), folder, "network.json", err);
    uint64_t link_bytes = 0;

    strbuf_addf(&text, "{\"schema\":1,\"seed\":%" PRIu64 ",\"congestion_control\":", n->seed);
    strbuf_add_json(&text, n->congestion_control);
    strbuf_add(&text, ",\"hosts\":[");
    for (size_t h = 0; h < n->length; h++) {
        strbuf_add(&text, h > 0 ? ",\n" : "\n");
        add_host(n, h, &link_bytes, &text);
    }
    strbuf_addf(&text, "],\"link_bytes\":%" PRIu64, link_bytes);
    if (n->is_measured && n->length > 1)
        add_measured(n, &text);
    if (n->relay.counts)
        add_relay(&n->relay, &text);
    strbuf_add(&text, "}\n");
    if (status == STATUS_OK)
        status = file_write_text(path, &text, err);
    strbuf_release(&text);
    return status;
}

void network_close(struct network *n)
{
    relay_stop(&n->relay);
    for (size_t h = 0; h < n->length; h++)
        close_fd(n->host_fds[h]);
    close_fd(n->hub_fd);
    close_fd(n->home_fd);
    *n = (struct network)NETWORK_CLOSED;
}
