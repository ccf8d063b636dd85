/*
 * ps_run: the processes of a case, and their turns.  A server publishes its port in a file in a
 * temporary folder; a worker communicates through two pipes.  On every path all processes are
 * waited for: workers end when their stdin ends, servers at SIGTERM; at the deadline they are
 * killed.
 */
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/memory.h"
#include "common/base/parse.h"
#include "common/base/stop.h"
#include "common/base/strbuf.h"
#include "experiments/bench/bench_ps.h"
#include "experiments/bench/peer_script.h"
#include "experiments/subprocess/temporary_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define POLL_NS   2000000 /* between checks of a port file or of a process that ends */
#define STOP_MS   10000
#define WORDS_MAX 24
#define LINE_SIZE 256

struct child {
    pid_t pid; /* 0: not running */
    int in;    /* write end of its stdin; -1 */
    int out;   /* read end of its stdout; -1 */
    char line[LINE_SIZE];
    size_t length; /* of the partial line */
};

/* One series and its processes. */
struct series_run {
    struct ps_series *series;
    size_t index; /* of the series */
    struct strbuf servers;
    struct child *children; /* owned; servers first, then workers */
    size_t started;
};

struct case_run {
    const struct ps_plan *plan;
    const struct ps_case *shape;
    char self[3072];                /* this program */
    char server[4096];              /* sparring-server, beside it */
    char folder[256];               /* temporary */
    struct series_run *series_runs; /* owned */
    size_t length;
};

/* ---- processes ---- */

static void close_end(int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
    *fd = -1;
}

/* Start words[0], with pipes for stdin and stdout when `piped`. */
static enum status spawn_child(struct child *c, const char *const *words, bool piped,
                               struct error *err)
{
    posix_spawn_file_actions_t actions;
    char *argv[WORDS_MAX + 1] = {NULL};
    int in[2] = {-1, -1}, out[2] = {-1, -1};
    int failed;

    if (!words[0])
        return error_set(err, STATUS_INVALID, "no program to start");
    if (piped && (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0)) {
        failed = errno;
        close_end(&in[0]);
        close_end(&in[1]);
        return error_set_errno(err, failed, "cannot make a pipe");
    }
    for (size_t i = 0; words[i]; i++)
        memcpy(&argv[i], &words[i], sizeof(argv[i])); /* exec does not write to them */
    (void)posix_spawn_file_actions_init(&actions);
    if (piped) {
        (void)posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
        (void)posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    }
    failed = posix_spawnp(&c->pid, words[0], &actions, NULL, argv, environ);
    (void)posix_spawn_file_actions_destroy(&actions);
    close_end(&in[0]);
    close_end(&out[1]);
    c->in = in[1];
    c->out = out[0];
    if (failed) {
        c->pid = 0;
        return error_set_errno(err, failed, "cannot start '%s'", words[0]);
    }
    return STATUS_OK;
}

/* Wait for a child's end; kill it at the deadline.  An end by SIGTERM is success: servers end so.
 */
static enum status wait_for_child_end(struct child *c, const char *what, int64_t deadline_ns,
                                      struct error *err)
{
    struct timespec pause = {.tv_nsec = POLL_NS};
    int state = 0;

    close_end(&c->in);
    close_end(&c->out);
    if (c->pid == 0)
        return STATUS_OK;
    while (waitpid(c->pid, &state, WNOHANG) == 0) {
        if (clock_now_ns() > deadline_ns) {
            (void)kill(c->pid, SIGKILL);
            (void)waitpid(c->pid, &state, 0);
            break;
        }
        (void)nanosleep(&pause, NULL);
    }
    c->pid = 0;
    if ((WIFEXITED(state) && WEXITSTATUS(state) == 0) ||
        (WIFSIGNALED(state) && WTERMSIG(state) == SIGTERM))
        return STATUS_OK;
    return error_set(err, STATUS_INTERNAL, "%s ended with %s %d", what,
                     WIFEXITED(state) ? "exit code" : "signal",
                     WIFEXITED(state) ? WEXITSTATUS(state) : WTERMSIG(state));
}

static enum status find_programs(struct case_run *r, struct error *err)
{
    ssize_t length = readlink("/proc/self/exe", r->self, sizeof(r->self) - 1);
    char *slash;

    if (length < 0)
        return error_set_errno(err, errno, "cannot find this program's path");
    r->self[length] = '\0';
    slash = strrchr(r->self, '/');
    (void)snprintf(r->server, sizeof(r->server), "%.*s/sparring-server", (int)(slash - r->self),
                   r->self);
    if (access(r->server, X_OK) != 0)
        return error_set_errno(err, errno, "cannot run '%s'", r->server);
    return STATUS_OK;
}

/* ---- words ---- */

static void number_text(char *text, uint64_t value)
{
    (void)snprintf(text, 24, "%ju", (uintmax_t)value);
}

/* A TLS file of the plan; "" without TLS. */
static const char *tls_file(const struct case_run *r, const char *file)
{
    return r->shape->tls ? file : "";
}

static void server_path(const struct case_run *r, const struct series_run *t, size_t k,
                        const char *what, char *path, size_t size)
{
    (void)snprintf(path, size, "%s/%s-%zu-%zu", r->folder, what, t->index, k);
}

/* Start this program as a worker or an echo server. */
static enum status start_own(struct case_run *r, struct series_run *t, const char *role,
                             size_t index, const char *address, const char *port_file,
                             struct error *err)
{
    const struct ps_case *c = r->shape;
    const struct rpc_security *s = &r->plan->security;
    uint64_t values[] = {t->series->kind,
                         index,
                         c->workers,
                         c->servers,
                         c->bytes,
                         c->partition_bytes,
                         (uint64_t)r->plan->timeout_ms,
                         t->series->transport,
                         c->connections,
                         t->series->codec};
    enum { NUMBERS = sizeof(values) / sizeof(values[0]) };
    char texts[NUMBERS][24];
    const char *words[WORDS_MAX] = {r->self, "bench", "ps", role};
    size_t count = 4;

    for (size_t i = 0; i < NUMBERS; i++) {
        number_text(texts[i], values[i]);
        words[count++] = texts[i];
    }
    words[count++] = address;
    words[count++] = port_file;
    words[count++] = tls_file(r, s->ca_file);
    words[count++] = tls_file(r, s->cert_file);
    words[count] = tls_file(r, s->key_file);
    return spawn_child(&t->children[t->started++], words, strcmp(role, BENCH_PS_WORKER) == 0, err);
}

static enum status start_sparring_server(struct case_run *r, struct series_run *t, size_t k,
                                         const char *address, const char *port_file,
                                         struct error *err)
{
    const struct rpc_security *s = &r->plan->security;
    char timeout[24], state[300];
    size_t count = 9;
    const char *words[WORDS_MAX] = {r->server,     "--listen",     address,
                                    "--port-file", port_file,      "--log-level",
                                    "warning",     "--timeout-ms", timeout};

    number_text(timeout, (uint64_t)r->plan->timeout_ms);
    if (r->shape->tls) {
        const char *files[] = {"--tls-ca",   s->ca_file,  "--tls-cert",
                               s->cert_file, "--tls-key", s->key_file};

        memcpy(words + count, files, sizeof(files));
        count += sizeof(files) / sizeof(files[0]);
    }
    if (t->series->kind == PS_STATE) {
        server_path(r, t, k, "state", state, sizeof(state));
        words[count++] = "--state-dir";
        words[count++] = state;
        words[count++] = "--snapshot-every";
        words[count++] = "10";
    }
    return spawn_child(&t->children[t->started++], words, false, err);
}

/* PyTorch: servers and workers are ranks of one group, with a file as rendezvous. */
static enum status start_torch(struct case_run *r, struct series_run *t, size_t rank,
                               struct error *err)
{
    const struct ps_case *c = r->shape;
    const char *transport = t->series->transport == PS_SHM ? "shm" : "uv";
    char script[2048], meeting[300], texts[5][24];
    const char *words[] = {r->plan->python, script,      "--rank",      texts[0],  "--servers",
                           texts[1],        "--workers", texts[2],      "--bytes", texts[3],
                           "--timeout-ms",  texts[4],    "--transport", transport, "--meeting",
                           meeting,         NULL};
    uint64_t values[] = {rank, c->servers, c->workers, c->bytes, (uint64_t)r->plan->timeout_ms};
    enum status status =
        peer_script_find(r->plan->peer, "torch_parameter_server.py", script, sizeof(script), err);

    if (status != STATUS_OK)
        return status;
    for (size_t i = 0; i < 5; i++)
        number_text(texts[i], values[i]);
    server_path(r, t, 0, "meeting", meeting, sizeof(meeting));
    return spawn_child(&t->children[t->started++], words, true, err);
}

/* ---- starting a series ---- */

/* The number of children that are servers. */
static size_t server_count(const struct case_run *r, const struct series_run *t)
{
    return r->shape->servers * (t->series->kind == PS_REPLICA ? 2 : 1);
}

static enum status start_server(struct case_run *r, struct series_run *t, size_t k,
                                struct error *err)
{
    char address[300], port_file[300];

    if (t->series->kind == PS_TORCH_RPC)
        return start_torch(r, t, k, err);
    server_path(r, t, k, "port", port_file, sizeof(port_file));
    (void)snprintf(address, sizeof(address), "127.0.0.1:0");
    if (t->series->transport != PS_TCP) {
        (void)snprintf(address, sizeof(address), "unix:");
        server_path(r, t, k, "s", address + 5, sizeof(address) - 5);
    }
    if (t->series->kind == PS_EXCHANGE || t->series->kind == PS_REPLICA ||
        t->series->kind == PS_STATE)
        return start_sparring_server(r, t, k, address, port_file, err);
    return start_own(r, t, BENCH_PS_SERVER, k, address, port_file, err);
}

/* Wait for the port file, then add the address to the list. */
static enum status wait_for_address(struct case_run *r, struct series_run *t, size_t k,
                                    int64_t deadline_ns, struct error *err)
{
    struct timespec pause = {.tv_nsec = POLL_NS};
    char path[300], *text = NULL;
    size_t size;
    enum status status;

    server_path(r, t, k, "port", path, sizeof(path));
    while (access(path, R_OK) != 0) {
        if (waitpid(t->children[k].pid, NULL, WNOHANG) != 0) {
            t->children[k].pid = 0;
            return error_set(err, STATUS_INTERNAL, "a server of %s ended before it served",
                             ps_kind_names[t->series->kind]);
        }
        if (clock_now_ns() > deadline_ns)
            return error_set(err, STATUS_TIMEOUT, "a server of %s did not come up within %jd ms",
                             ps_kind_names[t->series->kind], (intmax_t)r->plan->timeout_ms);
        (void)nanosleep(&pause, NULL);
    }
    status = file_read(path, 300, &text, &size, err);
    if (status != STATUS_OK)
        return status;
    text[strcspn(text, "\n")] = '\0';
    strbuf_addf(&t->servers, "%s%s%s", k ? "," : "",
                strncmp(text, "unix:", 5) == 0 ? "" : "127.0.0.1:", text);
    free(text);
    return STATUS_OK;
}

/* Read a line from a child until the deadline; STATUS_PEER_LOST when it has ended. */
static enum status read_line(struct child *c, int64_t deadline_ns, struct error *err)
{
    c->length = 0;
    for (;;) {
        struct pollfd wait = {.fd = c->out, .events = POLLIN};
        ssize_t got;

        if (poll(&wait, 1, clock_left_ms(deadline_ns)) == 0)
            return error_set(err, STATUS_TIMEOUT, "a worker is silent");
        got = read(c->out, c->line + c->length, 1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return error_set(err, STATUS_PEER_LOST, "a worker ended early");
        if (c->line[c->length] == '\n') {
            c->line[c->length] = '\0';
            return STATUS_OK;
        }
        if (c->length < sizeof(c->line) - 1)
            c->length++;
    }
}

static void note_series(struct series_run *t, const char *text)
{
    (void)snprintf(t->series->note, sizeof(t->series->note), "%.255s", text);
}

/* A series whose worker is unavailable here gets a note; any other first line is an error. */
static enum status wait_until_ready(struct case_run *r, struct series_run *t, int64_t deadline_ns,
                                    struct error *err)
{
    static const char unavailable[] = "unavailable ";
    size_t first = t->series->kind == PS_TORCH_RPC ? 0 : server_count(r, t);

    for (size_t i = first; i < t->started; i++) {
        enum status status = read_line(&t->children[i], deadline_ns, err);

        if (status != STATUS_OK)
            return status;
        if (strncmp(t->children[i].line, unavailable, sizeof(unavailable) - 1) == 0) {
            note_series(t, t->children[i].line + sizeof(unavailable) - 1);
            return STATUS_OK;
        }
        if (strcmp(t->children[i].line, "ready") != 0)
            return error_set(err, STATUS_PROTOCOL,
                             "a worker of %s says '%.100s', not that it is "
                             "ready",
                             ps_kind_names[t->series->kind], t->children[i].line);
    }
    return STATUS_OK;
}

static enum status start_series_run(struct case_run *r, struct series_run *t, struct error *err)
{
    const struct ps_case *c = r->shape;
    bool torch = t->series->kind == PS_TORCH_RPC;
    int64_t deadline_ns = clock_deadline_ns(r->plan->timeout_ms);
    size_t servers = server_count(r, t);
    enum status status =
        mem_calloc(servers + c->workers, sizeof(*t->children), "processes", &t->children, err);

    for (size_t i = 0; status == STATUS_OK && i < servers + c->workers; i++)
        t->children[i].in = t->children[i].out = -1;
    for (size_t k = 0; status == STATUS_OK && k < servers; k++)
        status = start_server(r, t, k, err);
    for (size_t k = 0; status == STATUS_OK && !torch && k < servers; k++)
        status = wait_for_address(r, t, k, deadline_ns, err);
    for (size_t w = 0; status == STATUS_OK && w < c->workers; w++)
        status = torch ? start_torch(r, t, c->servers + w, err)
                       : start_own(r, t, BENCH_PS_WORKER, w, t->servers.text, "", err);
    if (status == STATUS_NOT_FOUND && torch) {
        note_series(t, err->text);
        return STATUS_OK;
    }
    return status == STATUS_OK ? wait_until_ready(r, t, deadline_ns, err) : status;
}

/* ---- turns ---- */

static double cpu_seconds(const struct case_run *r, const struct series_run *t)
{
    double sum = 0;

    for (size_t k = 0; k < server_count(r, t); k++) {
        struct timespec now;
        clockid_t clock;

        if (clock_getcpuclockid(t->children[k].pid, &clock) == 0 && clock_gettime(clock, &now) == 0)
            sum += (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
    }
    return sum;
}

static enum status parse_turn_result(const struct child *c, double *ret_seconds,
                                     uint64_t *ret_wrong, struct error *err)
{
    char seconds[LINE_SIZE];
    const char *space = strchr(c->line, ' ');

    (void)snprintf(seconds, sizeof(seconds), "%.*s", (int)strcspn(c->line, " "), c->line);
    if (!space || !parse_double(seconds, ret_seconds) || *ret_seconds <= 0 ||
        !parse_uint64(space + 1, ret_wrong))
        return error_set(err, STATUS_PROTOCOL, "a worker says '%.100s', not a time", c->line);
    return STATUS_OK;
}

/* All workers of a series do the iterations of a turn. */
static enum status run_turn(struct case_run *r, struct series_run *t, double *ret_seconds,
                            struct error *err)
{
    int64_t deadline_ns = clock_deadline_ns(r->plan->timeout_ms);
    size_t workers = server_count(r, t);
    char line[32];
    int length = snprintf(line, sizeof(line), "%zu\n", r->shape->iterations);
    enum status status = STATUS_OK;

    *ret_seconds = 0;
    if (stop_requested())
        return error_set(err, STATUS_CANCELLED, "stopped by a signal");
    for (size_t i = workers; status == STATUS_OK && i < t->started; i++)
        status = file_write_all(t->children[i].in, "a worker", line, (size_t)length, err);
    for (size_t i = workers; status == STATUS_OK && i < t->started; i++) {
        double seconds = 0;
        uint64_t wrong = 0;

        status = read_line(&t->children[i], deadline_ns, err);
        if (status == STATUS_OK)
            status = parse_turn_result(&t->children[i], &seconds, &wrong, err);
        *ret_seconds = seconds > *ret_seconds ? seconds : *ret_seconds;
        t->series->wrong += wrong;
    }
    if (status != STATUS_OK)
        (void)error_prefix(err, "%s over %s: ", ps_kind_names[t->series->kind],
                           ps_transport_names[t->series->transport]);
    return status;
}

static enum status run_round(struct case_run *r, size_t round, struct error *err)
{
    enum status status = STATUS_OK;

    for (size_t i = 0; status == STATUS_OK && i < r->length; i++) {
        struct series_run *t = &r->series_runs[(i + round) % r->length]; /* rotates the order */
        bool measured = round >= r->plan->warmup;
        double before, seconds;

        if (t->series->note[0] != '\0')
            continue;
        before = cpu_seconds(r, t);
        status = run_turn(r, t, &seconds, err);
        if (status != STATUS_OK || !measured)
            continue;
        t->series->seconds[round - r->plan->warmup] = seconds;
        t->series->server_cpu_seconds += cpu_seconds(r, t) - before;
    }
    return status;
}

/* Read the peak resident memory of the servers while they still run. */
static void read_rss(const struct case_run *r, struct series_run *t)
{
    for (size_t k = 0; k < server_count(r, t) && k < t->started && t->children[k].pid != 0; k++) {
        char path[64], *text, *found;
        size_t size;
        uint64_t kib;

        (void)snprintf(path, sizeof(path), "/proc/%d/status", (int)t->children[k].pid);
        if (file_read(path, 1 << 16, &text, &size, NULL) != STATUS_OK)
            continue;
        found = strstr(text, "VmHWM:");
        if (found) {
            found += strcspn(found, "0123456789");
            found[strspn(found, "0123456789")] = '\0';
            if (parse_uint64(found, &kib) && kib * 1024 > t->series->server_rss_bytes)
                t->series->server_rss_bytes = kib * 1024;
        }
        free(text);
    }
}

/* ---- the end ---- */

/* End all processes; err is filled when status was OK and a process ended with a failure. */
static enum status stop_series_run(struct case_run *r, struct series_run *t, enum status status,
                                   struct error *err)
{
    int64_t deadline_ns = clock_deadline_ns(STOP_MS);

    read_rss(r, t);
    for (size_t i = t->started; i-- > 0;) {
        bool server = i < server_count(r, t);
        bool lead = server && t->series->kind != PS_TORCH_RPC;
        struct error one = {0};
        enum status end;

        if (t->children[i].pid != 0 && (lead || status != STATUS_OK))
            (void)kill(t->children[i].pid, SIGTERM);
        /* PyTorch's ranks end together: close the stdin of all before waiting for one. */
        for (size_t j = 0; j < i; j++)
            if (t->series->kind == PS_TORCH_RPC)
                close_end(&t->children[j].in);
        end = wait_for_child_end(&t->children[i], server ? "a server" : "a worker", deadline_ns,
                                 &one);
        if (status == STATUS_OK && end != STATUS_OK && t->series->note[0] == '\0')
            status = error_set(err, end, "%s: %s", ps_kind_names[t->series->kind], one.text);
    }
    strbuf_release(&t->servers);
    free(t->children);
    return status;
}

static enum status prepare_case(struct case_run *r, struct ps_series *series, struct error *err)
{
    enum status status = find_programs(r, err);

    if (status == STATUS_OK)
        status = temporary_folder_make("bench", r->folder, sizeof(r->folder), err);
    if (status != STATUS_OK)
        return status;
    status = mem_calloc(r->length, sizeof(*r->series_runs), "series", &r->series_runs, err);
    for (size_t i = 0; status == STATUS_OK && i < r->length; i++)
        r->series_runs[i] =
            (struct series_run){.series = &series[i], .index = i, .servers = STRBUF_INIT};
    return status;
}

enum status ps_run(const struct ps_plan *plan, const struct ps_case *c, struct ps_series *series,
                   size_t length, struct error *err)
{
    struct case_run r = {.plan = plan, .shape = c, .length = length};
    enum status status = prepare_case(&r, series, err);

    for (size_t i = 0; status == STATUS_OK && i < length; i++)
        if (series[i].note[0] == '\0')
            status = start_series_run(&r, &r.series_runs[i], err);
    for (size_t round = 0; status == STATUS_OK && round < plan->warmup + plan->rounds; round++)
        status = run_round(&r, round, err);
    if (status != STATUS_OK && stop_requested()) /* ^C also stops the children, which then fail */
        status = error_set(err, STATUS_CANCELLED, "stopped by a signal");
    for (size_t i = 0; r.series_runs && i < length; i++)
        status = stop_series_run(&r, &r.series_runs[i], status, err);
    temporary_folder_remove(r.folder);
    free(r.series_runs);
    return status;
}
