/*
 * The processes of one measurement.  A server tells its port through a file in a temporary folder;
 * a worker tells its times through a pipe.  Whatever happens, all of them are waited for: servers
 * are asked to stop by SIGTERM, and killed when they do not within the time-out.
 */
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/memory.h"
#include "common/base/parse.h"
#include "common/base/strbuf.h"
#include "experiments/bench/bench_ps.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define POLL_NS      2000000 /* between looks at a port file or a process that ends */
#define STOP_MS      5000
#define WORDS_MAX    16
#define PROGRAM_NAME "sparring-server"

struct child {
    pid_t pid; /* 0: not running */
    int out;   /* read end of its stdout; -1 */
};

struct run {
    const struct bench_ps_config *config;
    int64_t deadline_ns; /* of the steps before the first iteration */
    char self[3072];     /* this program */
    char server[4096];   /* sparring-server, beside it */
    char folder[256];    /* temporary; "" when there is none */
    struct strbuf servers;
    struct child *children; /* owned; servers first, then workers */
    size_t length;
};

/* ------------------------------------------------------------------ processes */

/* Start argv[0] with its stdout going to *ret_out when that is given. */
static enum status start(struct child *c, const char *const *words, bool piped, struct error *err)
{
    posix_spawn_file_actions_t actions;
    char *argv[WORDS_MAX] = {NULL};
    int ends[2] = {-1, -1};
    int failed;

    if (piped && pipe2(ends, O_CLOEXEC) != 0)
        return error_set_errno(err, errno, "cannot make a pipe");
    for (size_t i = 0; words[i]; i++)
        memcpy(&argv[i], &words[i], sizeof(argv[i])); /* exec does not write to them */
    (void)posix_spawn_file_actions_init(&actions);
    if (piped)
        (void)posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    failed = posix_spawn(&c->pid, argv[0], &actions, NULL, argv, environ);
    (void)posix_spawn_file_actions_destroy(&actions);
    if (piped)
        (void)close(ends[1]);
    c->out = ends[0];
    if (failed) {
        c->pid = 0;
        return error_set_errno(err, failed, "cannot start '%s'", argv[0]);
    }
    return STATUS_OK;
}

/* Wait for a child's end; kill it at the deadline. */
static enum status finish(struct child *c, const char *what, int64_t deadline_ns, struct error *err)
{
    struct timespec pause = {.tv_nsec = POLL_NS};
    int state = 0;

    if (c->out >= 0)
        (void)close(c->out);
    c->out = -1;
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
    if (WIFEXITED(state) && WEXITSTATUS(state) == 0)
        return STATUS_OK;
    return error_set(err, STATUS_INTERNAL, "%s ended with %s %d", what,
                     WIFEXITED(state) ? "exit code" : "signal",
                     WIFEXITED(state) ? WEXITSTATUS(state) : WTERMSIG(state));
}

static enum status find_programs(struct run *r, struct error *err)
{
    ssize_t length = readlink("/proc/self/exe", r->self, sizeof(r->self) - 1);
    char *slash;

    if (length < 0)
        return error_set_errno(err, errno, "cannot find this program's path");
    r->self[length] = '\0';
    slash = strrchr(r->self, '/');
    (void)snprintf(r->server, sizeof(r->server), "%.*s/" PROGRAM_NAME, (int)(slash - r->self),
                   r->self);
    if (access(r->server, X_OK) != 0)
        return error_set_errno(err, errno, "cannot run '%s'", r->server);
    return STATUS_OK;
}

/* ------------------------------------------------------------------ servers */

static void port_path(const struct run *r, unsigned k, char *path, size_t size)
{
    (void)snprintf(path, size, "%s/port%u", r->folder, k);
}

static enum status start_server(struct run *r, unsigned k, struct error *err)
{
    char path[300], timeout[32];
    const char *const words[] = {r->server,     "--listen", "127.0.0.1:0",  "--port-file", path,
                                 "--log-level", "warning",  "--timeout-ms", timeout,       NULL};

    port_path(r, k, path, sizeof(path));
    (void)snprintf(timeout, sizeof(timeout), "%jd", (intmax_t)r->config->timeout_ms);
    return start(&r->children[r->length++], words, false, err);
}

/* Wait for the file, then add the address to the list. */
static enum status learn_port(struct run *r, unsigned k, struct error *err)
{
    struct timespec pause = {.tv_nsec = POLL_NS};
    char path[300], *text = NULL;
    uint64_t port;
    size_t size;
    enum status status;

    port_path(r, k, path, sizeof(path));
    while (access(path, R_OK) != 0) {
        if (waitpid(r->children[k].pid, NULL, WNOHANG) != 0) {
            r->children[k].pid = 0;
            return error_set(err, STATUS_INTERNAL, "server %u ended before it served", k);
        }
        if (clock_now_ns() > r->deadline_ns)
            return error_set(err, STATUS_TIMEOUT, "server %u did not come up within %jd ms", k,
                             (intmax_t)r->config->timeout_ms);
        (void)nanosleep(&pause, NULL);
    }
    status = file_read(path, 64, &text, &size, err);
    if (status != STATUS_OK)
        return status;
    text[strcspn(text, "\n")] = '\0';
    if (!parse_uint64(text, &port))
        status = error_set(err, STATUS_DATA, "'%s' holds no port", path);
    strbuf_addf(&r->servers, "%s127.0.0.1:%s", k ? "," : "", text);
    (void)unlink(path);
    free(text);
    return status;
}

static enum status start_servers(struct run *r, struct error *err)
{
    enum status status = STATUS_OK;

    for (unsigned k = 0; status == STATUS_OK && k < r->config->servers; k++)
        status = start_server(r, k, err);
    for (unsigned k = 0; status == STATUS_OK && k < r->config->servers; k++)
        status = learn_port(r, k, err);
    return status;
}

/* ------------------------------------------------------------------ workers */

static enum status start_workers(struct run *r, struct error *err)
{
    const struct bench_ps_config *c = r->config;
    size_t numbers[] = {0,         c->workers,           0,
                        c->bytes,  c->partition_bytes,   c->iterations,
                        c->warmup, (size_t)c->timeout_ms};
    char texts[8][32];
    const char *words[WORDS_MAX] = {r->self, "bench", "ps", BENCH_PS_WORKER};
    enum status status = STATUS_OK;

    for (unsigned rank = 0; status == STATUS_OK && rank < c->workers; rank++) {
        numbers[0] = rank;
        for (size_t i = 0; i < 8; i++) {
            (void)snprintf(texts[i], sizeof(texts[i]), "%zu", numbers[i]);
            words[4 + i] = i == 2 ? r->servers.text : texts[i];
        }
        status = start(&r->children[r->length++], words, true, err);
    }
    return status;
}

static enum status read_moments(struct run *r, unsigned rank, int64_t moments[2], struct error *err)
{
    struct pollfd wait = {.fd = r->children[r->config->servers + rank].out, .events = POLLIN};
    int ready = poll(&wait, 1, (int)(r->config->timeout_ms * 2));
    ssize_t got;

    if (ready == 0)
        return error_set(err, STATUS_TIMEOUT, "worker %u is silent", rank);
    got = read(wait.fd, moments, 2 * sizeof(moments[0])); /* one write each: pipes keep it whole */
    if (got != (ssize_t)(2 * sizeof(moments[0])))
        return error_set(err, STATUS_PEER_LOST, "worker %u ended early", rank);
    return STATUS_OK;
}

static enum status collect(struct run *r, double *seconds, struct error *err)
{
    for (size_t i = 0; i < r->config->iterations; i++) {
        int64_t begin_ns = INT64_MAX, end_ns = INT64_MIN;

        for (unsigned rank = 0; rank < r->config->workers; rank++) {
            int64_t moments[2];
            enum status status = read_moments(r, rank, moments, err);

            if (status != STATUS_OK)
                return status;
            begin_ns = moments[0] < begin_ns ? moments[0] : begin_ns;
            end_ns = moments[1] > end_ns ? moments[1] : end_ns;
        }
        seconds[i] = (double)(end_ns - begin_ns) * 1e-9;
    }
    return STATUS_OK;
}

/* ------------------------------------------------------------------ a measurement */

/* Everything ends; err is filled when it was all right so far and a process says otherwise. */
static enum status stop_all(struct run *r, enum status status, struct error *err)
{
    int64_t deadline_ns = clock_deadline_ns(STOP_MS);
    struct error *first = status == STATUS_OK ? err : NULL;

    for (size_t i = r->length; i-- > 0;) {
        bool is_server = i < r->config->servers;
        enum status end;

        if (r->children[i].pid != 0 && (is_server || status != STATUS_OK))
            (void)kill(r->children[i].pid, SIGTERM);
        end = finish(&r->children[i], is_server ? "a server" : "a worker", deadline_ns, first);
        if (status == STATUS_OK && end != STATUS_OK) {
            status = end;
            first = NULL;
        }
    }
    return status;
}

enum status bench_ps_measure(const struct bench_ps_config *config, double *seconds,
                             struct error *err)
{
    struct run r = {.config = config,
                    .deadline_ns = clock_deadline_ns(config->timeout_ms),
                    .servers = STRBUF_INIT};
    const char *base = getenv("TMPDIR");
    enum status status = find_programs(&r, err);

    if (status != STATUS_OK)
        return status;
    (void)snprintf(r.folder, sizeof(r.folder), "%.200s/sparring-bench-XXXXXX",
                   base && base[0] ? base : "/tmp");
    if (!mkdtemp(r.folder))
        return error_set_errno(err, errno, "cannot make a folder '%s'", r.folder);
    status = mem_calloc(config->servers + config->workers, sizeof(*r.children), "processes",
                        &r.children, err);
    for (size_t i = 0; status == STATUS_OK && i < config->servers + config->workers; i++)
        r.children[i].out = -1;
    if (status == STATUS_OK)
        status = start_servers(&r, err);
    if (status == STATUS_OK)
        status = start_workers(&r, err);
    if (status == STATUS_OK)
        status = collect(&r, seconds, err);
    status = stop_all(&r, status, err);
    for (unsigned k = 0; k < config->servers; k++) {
        char path[300];

        port_path(&r, k, path, sizeof(path));
        (void)unlink(path);
    }
    (void)rmdir(r.folder);
    strbuf_release(&r.servers);
    free(r.children);
    return status;
}
