/*
 * Emulated hosts: what their links carry, how long and how safely; that nothing remains of them;
 * and jobs in them, which train to the same values as on this host's own network.
 */
#include "experiments/network/network.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <arpa/inet.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define WAIT_MS   120000
#define DATAGRAMS 500

static struct network network = NETWORK_CLOSED;
static bool link_changes; /* of the next network */
static struct error err;

/* Open a network with --network-check warn; false, and a line that says so, without the permission.
 */
static bool open_network(size_t hosts, const char *rate, const char *delay, const char *loss)
{
    struct network_options o = {.seed = 1, .check = "warn"};
    struct network_link links[NETWORK_HOSTS_MAX];
    enum status status;

    (void)snprintf(o.rate, sizeof(o.rate), "%s", rate);
    (void)snprintf(o.delay, sizeof(o.delay), "%s", delay);
    (void)snprintf(o.loss, sizeof(o.loss), "%s", loss);
    assert_ok(network_options_read(&o, hosts, hosts, NETWORK_DELAY_MIN_MS, links, &err));
    status = network_open(&network, links, hosts, &o, link_changes, &err);
    if (status == STATUS_UNSUPPORTED && strstr(err.text, "emulated hosts take root")) {
        (void)printf("skipped: %s\n", err.text);
        return false;
    }
    ck_assert_msg(status == STATUS_OK, "%s", err.text);
    return true;
}

/* ---- links ---- */

static const struct {
    size_t hosts;
    const char *rate, *delay;
} links_cases[] = {{2, "100mbit", ""},
                   {3, "100mbit", ""},
                   {3, "50mbit", "5"},
                   {2, "20mbit", "3"},
                   {3, "10mbit", ""}};

/* No machine is too slow for these bounds: a byte is never early, and htb never exceeds its rate by
 * more than a burst in a window. */
START_TEST(test_links)
{
    const char *path = support_path("network.json");
    const struct network_link *link = network.links;
    char *text;
    size_t size;

    if (!open_network(links_cases[_i].hosts, links_cases[_i].rate, links_cases[_i].delay, ""))
        return;
    assert_ok(network_measure(&network, &err));
    for (size_t h = 0; h < network.length; h++) {
        ck_assert_int_ge(network.measured[h].round_trip_ns, 2 * link->delay_ns);
        ck_assert_msg(network.measured[h].rate > 0 && network.measured[h].rate < 1.3 * link->rate,
                      "%g of %g", network.measured[h].rate, link->rate);
    }
    assert_ok(network_write(&network, support_folder(), &err));
    assert_ok(file_read(path, 1 << 16, &text, &size, &err));
    ck_assert_ptr_nonnull(strstr(text, "{\"address\":\"10.77.0.2\",\"rate_bits_s\":"));
    ck_assert_ptr_nonnull(strstr(text, "\"lowest_rate_bits_s\":"));
    /* Without a job: the ends of the connections that measured. */
    ck_assert_ptr_nonnull(strstr(text, "],\"link_bytes\":"));
    ck_assert_int_lt(strtol(strstr(text, "],\"link_bytes\":") + 15, NULL, 10), 10000);
    ck_assert_int_eq(strstr(text, "\"late_p99_ms\":") != NULL, link->delay_ns > 0);
    free(text);
    network_close(&network);
}
END_TEST

START_TEST(test_impossible_rate)
{
    if (!open_network(3, "100gbit", "", ""))
        return;
    assert_ok(network_measure(&network, &err));
    network.warns = false;
    assert_fails(network_measure(&network, &err), STATUS_DISTURBED,
                 "not the 9.564e+04 of a link of 1e+05");
    network_close(&network);
}
END_TEST

/* ---- single packets ---- */

static int open_datagrams(size_t host)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(4000)};
    int fd;
    char text[32];

    network_address(host, text, sizeof(text));
    ck_assert_int_eq(inet_pton(AF_INET, text, &address.sin_addr), 1);
    assert_ok(network_enter(&network, host, &err));
    fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(bind(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
    assert_ok(network_leave(&network, &err));
    return fd;
}

static void send_datagram(int fd, size_t to, uint32_t value)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(4000)};
    char text[32];

    network_address(to, text, sizeof(text));
    ck_assert_int_eq(inet_pton(AF_INET, text, &address.sin_addr), 1);
    ck_assert_int_eq(
        sendto(fd, &value, sizeof(value), 0, (const struct sockaddr *)&address, sizeof(address)),
        sizeof(value));
}

/* Send `value` again and again until it arrives; returns how many of [0, DATAGRAMS) arrived before.
 */
static size_t send_until_it_arrives(int from, int to, uint32_t value)
{
    int64_t deadline_ns = clock_deadline_ns(WAIT_MS);
    size_t numbered = 0;

    while (clock_left_ms(deadline_ns) > 0) {
        struct pollfd fd = {.fd = to, .events = POLLIN};
        uint32_t got;

        send_datagram(from, 1, value);
        while (poll(&fd, 1, 20) > 0) {
            ck_assert_int_eq(recv(to, &got, sizeof(got), 0), sizeof(got));
            if (got == value)
                return numbered;
            numbered += got < DATAGRAMS;
        }
    }
    ck_abort_msg("datagram %u did not arrive", value);
}

/* Order is kept, so all that were sent before a marker have arrived or are lost; the number of
 * arrivals is binomial: within 5 standard deviations.  Ten at a time, which fit any buffer. */
START_TEST(test_loss)
{
    const double loss = 0.2, sd = sqrt(loss * (1 - loss) * DATAGRAMS);
    int from, to;
    size_t arrived = 0;

    if (!open_network(2, "", "1", "20"))
        return;
    from = open_datagrams(0);
    to = open_datagrams(1);
    (void)send_until_it_arrives(from, to, UINT32_MAX); /* ARP */
    for (uint32_t i = 0; i < DATAGRAMS; i++) {
        send_datagram(from, 1, i);
        if (i % 10 == 9)
            arrived += send_until_it_arrives(from, to, DATAGRAMS + i);
    }
    ck_assert_msg(fabs((double)arrived - (1 - loss) * DATAGRAMS) < 5 * sd, "%zu arrived", arrived);
    ck_assert_uint_gt(atomic_load(&network.relay.counts->lost), 0);
    network_close(&network);
}
END_TEST

START_TEST(test_lateness)
{
    struct pollfd arrival = {.events = POLLIN};
    uint32_t copy;
    int from, to;

    if (!open_network(2, "", "2", ""))
        return;
    from = open_datagrams(0);
    to = open_datagrams(1);
    (void)send_until_it_arrives(from, to, 1);
    ck_assert_int_eq(kill(network.relay.pid, SIGSTOP), 0);
    send_datagram(from, 1, 2);
    while (recv(to, &copy, sizeof(copy), MSG_DONTWAIT) > 0) /* of the first */
        continue;
    arrival.fd = to;
    ck_assert_int_eq(poll(&arrival, 1, 50), 0); /* the second's lateness */
    ck_assert_int_eq(kill(network.relay.pid, SIGCONT), 0);
    (void)send_until_it_arrives(from, to, 3);
    network.warns = false;
    assert_fails(network_check(&network, &err), STATUS_DISTURBED, "too much for a delay of 2 ms");
    ck_assert_int_ge(relay_lateness_ns(&network.relay, 1), 45000000);
    network_close(&network);
}
END_TEST

/* ---- changes ---- */

static const char *const change_delays[] = {"", "2"};

/* Nothing passes a link that is down, from and to its host, and the other hosts notice nothing. */
START_TEST(test_cut)
{
    struct pollfd arrival = {.events = POLLIN};
    uint32_t copy;
    int fds[3];

    link_changes = true;
    if (!open_network(3, "100mbit", change_delays[_i], ""))
        return;
    for (size_t h = 0; h < 3; h++)
        fds[h] = open_datagrams(h);
    (void)send_until_it_arrives(fds[0], fds[1], 1);
    (void)send_until_it_arrives(fds[2], fds[1], 2);
    assert_ok(network_change(&network, 0, 1e8, false, &err));
    (void)send_until_it_arrives(fds[2], fds[1], 3); /* by then all that was under way is here */
    while (recv(fds[1], &copy, sizeof(copy), MSG_DONTWAIT) > 0)
        continue;
    send_datagram(fds[0], 1, 4);
    send_datagram(fds[1], 0, 4);
    (void)send_until_it_arrives(fds[2], fds[1], 5);
    while (recv(fds[1], &copy, sizeof(copy), MSG_DONTWAIT) > 0)
        ck_assert_uint_eq(copy, 5);
    arrival.fd = fds[0];
    ck_assert_int_eq(poll(&arrival, 1, 50), 0);
    assert_ok(network_change(&network, 0, 1e8, true, &err));
    (void)send_until_it_arrives(fds[0], fds[1], 6);
    network_close(&network);
}
END_TEST

/* A window of the measurement has a few segments of 64 KiB at the slow rate. */
START_TEST(test_slow)
{
    const double most = 2 * 2e7;

    link_changes = true;
    if (!open_network(2, "200mbit", change_delays[_i], ""))
        return;
    assert_ok(network_change(&network, 1, 2e7, true, &err));
    assert_ok(network_measure(&network, &err));
    for (size_t h = 0; h < 2; h++) /* each measures to the other */
        ck_assert_double_lt(network.measured[h].rate, most);
    assert_ok(network_change(&network, 1, 2e8, true, &err));
    do /* until the machine has time for it */
        assert_ok(network_measure(&network, &err));
    while (network.measured[0].rate < most || network.measured[1].rate < most);
    network_close(&network);
}
END_TEST

/* ---- ends ---- */

static void wait_for_end(int pidfd)
{
    struct pollfd fd = {.fd = pidfd, .events = POLLIN};

    ck_assert_int_eq(poll(&fd, 1, WAIT_MS), 1);
    (void)close(pidfd);
}

START_TEST(test_relay_dies)
{
    int pidfd;

    if (!open_network(2, "", "2", ""))
        return;
    pidfd = pidfd_open(network.relay.pid, 0);
    ck_assert_int_eq(kill(network.relay.pid, SIGKILL), 0);
    wait_for_end(pidfd);
    network.warns = false;
    assert_fails(network_check(&network, &err), STATUS_DISTURBED, "has ended");
    network_close(&network);
}
END_TEST

/* After kill -9 of the process that made the network its relay ends, and with it the last that
 * holds a namespace. */
START_TEST(test_kill)
{
    int ends[2], pidfd;
    pid_t pid, relay = 0;

    ck_assert_int_eq(pipe(ends), 0);
    pid = fork();
    if (pid == 0) {
        relay = open_network(3, "", "2", "") ? network.relay.pid : 0;
        if (write(ends[1], &relay, sizeof(relay)) == sizeof(relay) && relay > 0)
            (void)pause();
        _exit(0);
    }
    ck_assert_int_eq(read(ends[0], &relay, sizeof(relay)), sizeof(relay));
    pidfd = relay > 0 ? pidfd_open(relay, 0) : -1;
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    if (relay > 0)
        wait_for_end(pidfd);
}
END_TEST

/* ---- without root ---- */

static int run_as_nobody(void)
{
    if (setresgid(65534, 65534, 65534) != 0 || setresuid(65534, 65534, 65534) != 0)
        return 1;
    if (!open_network(3, "50mbit", "2", ""))
        return 0;
    if (network_measure(&network, &err) != STATUS_OK) {
        (void)printf("%s\n", err.text);
        return 2;
    }
    return network.measured[0].round_trip_ns >= 4000000 && geteuid() == 65534 ? 0 : 3;
}

START_TEST(test_without_root)
{
    pid_t pid;
    int state;

    if (geteuid() != 0)
        return; /* then all other tests were without root */
    (void)fflush(stdout);
    pid = fork();
    if (pid == 0) {
        int code = run_as_nobody();

        (void)fflush(stdout);
        _exit(code);
    }
    ck_assert_int_eq(waitpid(pid, &state, 0), pid);
    ck_assert_msg(WIFEXITED(state) && WEXITSTATUS(state) == 0, "state %#x", (unsigned)state);
}
END_TEST

/* ---- jobs ---- */

#define NO_FAULTS "--fault-schedule="

static const char *const syncs[][3] = {{"--sync=allreduce", "--backend=ring", "--servers=0"},
                                       {"--sync=ps", "--consistency=bsp", "--servers=1"}};

/* Train on two ranks, at least a second long; the trained values go to `path`. */
static const char *train(const char *const *sync, const char *network_word, const char *faults_word,
                         const char *path)
{
    const char *delays = support_write("slow.delays", "0 0- 50\n", 8);
    char save[600], folder[600], delays_word[600];

    (void)snprintf(save, sizeof(save), "--save=%s", path);
    (void)snprintf(folder, sizeof(folder), "--run-dir=%s-run", path);
    (void)snprintf(delays_word, sizeof(delays_word), "--delay-schedule=%s", delays);
    return process_run(
        0, WAIT_MS, NULL,
        ARGS(support_program("sparring"), "launch", "--standalone", "--nproc-per-node=2",
             "--network-check=warn", network_word, faults_word, sync[2], folder, "--",
             support_program("sparring-worker"), "--model=mlp:784-16-10", "--data=digits",
             "--steps=20", "--batch-size=8", "--threads=1", "--evaluate=never",
             "--heartbeat-timeout-ms=20000", delays_word, sync[0], sync[1], save, folder));
}

static void assert_same_values(const char *path, const char *other_path)
{
    char *values, *other;
    size_t size, other_size;

    assert_ok(file_read(path, 1 << 20, &values, &size, &err));
    assert_ok(file_read(other_path, 1 << 20, &other, &other_size, &err));
    ck_assert_uint_eq(size, other_size);
    ck_assert_mem_eq(values, other, size);
    free(values);
    free(other);
}

static double number_behind(const char *text, const char *name)
{
    const char *at = strstr(text, name);

    return at ? strtod(at + strlen(name), NULL) : 0;
}

/* Of a parameter server the ranks have measured the link, for its messages.  Other processes may
 * make it seem slower, but not TCP's first windows on a link with a long round trip, by which one
 * of 40 ms has 1.6 MB/s. */
static void check_measured_link(const char *summary, bool is_ps, double bytes_per_s, double trip_s)
{
    double rate, measured_trip_s;
    char *text;
    size_t size;

    assert_ok(file_read(summary, 1 << 20, &text, &size, &err));
    rate = number_behind(text, "\"link_bytes_per_s\":");
    measured_trip_s = number_behind(text, "\"link_round_trip_s\":");
    ck_assert_int_eq(rate > 0, is_ps);
    ck_assert_msg(!is_ps || (rate > 4e6 && rate < 1.5 * bytes_per_s), "%g bytes per second", rate);
    ck_assert_msg(!is_ps || (measured_trip_s > trip_s && measured_trip_s < 1), "%g s",
                  measured_trip_s);
    free(text);
}

START_TEST(test_jobs)
{
    char *record;
    size_t record_size;

    if (!open_network(2, "", "", ""))
        return;
    network_close(&network);
    (void)train(syncs[_i], "--network-delay=", NO_FAULTS, support_path("own"));
    (void)train(syncs[_i], "--network-delay=20", NO_FAULTS, support_path("emulated"));
    check_measured_link(support_path("emulated-run/summary.json"), _i == 1, 1e12, 0.04);
    assert_same_values(support_path("emulated"), support_path("own"));
    assert_ok(
        file_read(support_path("emulated-run/network.json"), 1 << 16, &record, &record_size, &err));
    ck_assert_ptr_nonnull(strstr(record, _i == 0 ? "10.77.0.2" : "10.77.0.3"));
    ck_assert_int_ne(access(support_path("own-run/network.json"), F_OK), 0);
    free(record);
}
END_TEST

/* The link of a rank, then of a server, is slow and is down for a while: the job waits. */
START_TEST(test_jobs_with_faults)
{
    const char *host = _i == 0 ? "host1" : "host2", *printed;
    char rules[128], faults_word[600], ended[64];

    if (!open_network(2, "", "", ""))
        return;
    network_close(&network);
    (void)snprintf(rules, sizeof(rules), "0.2 slow %s 5mbit for 0.3\n0.6 cut %s for 0.3\n", host,
                   host);
    (void)snprintf(faults_word, sizeof(faults_word), "--fault-schedule=%s",
                   support_write("faults", rules, strlen(rules)));
    (void)train(syncs[_i], "--network-rate=100mbit", NO_FAULTS, support_path("whole"));
    check_measured_link(support_path("whole-run/summary.json"), _i == 1, 12.5e6, 0);
    printed = train(syncs[_i], "--network-rate=100mbit", faults_word, support_path("faulty"));
    (void)snprintf(ended, sizeof(ended), "fault: slow %s has ended\n", host);
    ck_assert_msg(strstr(printed, ended) != NULL, "%s", printed);
    (void)snprintf(ended, sizeof(ended), "fault: cut %s has ended\n", host);
    ck_assert_msg(strstr(printed, ended) != NULL, "%s", printed);
    assert_same_values(support_path("faulty"), support_path("whole"));
}
END_TEST

/* The ring's slow link is named from what waits in the ranks' kernels. */
START_TEST(test_slow_link_is_named)
{
    char folder[600];
    const char *printed;

    if (!open_network(2, "", "", ""))
        return;
    network_close(&network);
    (void)snprintf(folder, sizeof(folder), "--run-dir=%s", support_path("slow"));
    (void)process_run(
        0, WAIT_MS, NULL,
        ARGS(support_program("sparring"), "launch", "--standalone", "--nproc-per-node=3",
             "--network-check=warn", "--network-rate=100mbit,host1:10mbit", folder, "--",
             support_program("sparring-worker"), "--model=mlp:784-64-10", "--data=digits",
             "--samples=512", "--batch-size=16", "--steps=10", "--threads=1", "--evaluate=never",
             "--sync=allreduce", "--backend=ring"));
    printed = process_run(0, WAIT_MS, NULL,
                          ARGS(support_program("sparring"), "inspect", support_path("slow")));
    ck_assert_msg(strstr(printed, "communication over the link of rank 1") != NULL, "%s", printed);
}
END_TEST

START_TEST(test_net_up)
{
    struct process p;

    if (!open_network(2, "", "", ""))
        return;
    network_close(&network);
    process_start(&p, NULL,
                  ARGS(support_program("sparring"), "net", "up", "--hosts", "3", "--network-delay",
                       "2", "--network-check", "warn"));
    process_wait_output(&p, "from host 2 to host 0", WAIT_MS);
    ck_assert_ptr_nonnull(strstr(process_output(&p), "host 1, 10.77.0.2: nsenter"));
    process_signal(&p, SIGINT);
    ck_assert_int_eq(process_wait(&p, WAIT_MS), 0);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN(
        "network", 240, LOOP_TEST(test_links, 0, sizeof(links_cases) / sizeof(links_cases[0])),
        TEST(test_impossible_rate), TEST(test_loss), TEST(test_lateness), LOOP_TEST(test_cut, 0, 2),
        LOOP_TEST(test_slow, 0, 2), TEST(test_relay_dies), TEST(test_kill), TEST(test_without_root),
        LOOP_TEST(test_jobs, 0, 2), LOOP_TEST(test_jobs_with_faults, 0, 2),
        TEST(test_slow_link_is_named), TEST(test_net_up));
}
