/*
 * servers: each server writes a port file into a private folder, which inotify watches; a file is
 * read once its line is complete.  The folder is removed before the ranks start, unless it holds
 * Unix sockets; then it is removed after the servers end.
 */
#include "experiments/launch/servers.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/net.h"
#include "common/base/parse.h"
#include "experiments/launch/placement.h"
#include "experiments/launch/step.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#define PATH_SIZE SERVERS_FOLDER_SIZE

struct server_start {
    struct child_set *child_set;
    const struct plan *plan;
    char folder[PATH_SIZE];
    size_t length; /* servers of this node */
    int inotify_fd;
    bool with_unix;
    bool listens[256];   /* it has written its port file */
    uint16_t ports[256]; /* valid once it listens; 0 for Unix sockets */
};

static void port_file(const struct server_start *s, size_t index, char *path, size_t size)
{
    (void)snprintf(path, size, "%.480s/port-%zu", s->folder, index);
}

static void socket_path(const char *folder, size_t index, char *path, size_t size)
{
    (void)snprintf(path, size, "%.480s/%zu", folder, index);
}

static enum status make_folder(struct server_start *s, struct error *err)
{
    const char *base = getenv("TMPDIR");

    (void)snprintf(s->folder, sizeof(s->folder), "%.400s/sparring-launch-XXXXXX",
                   base && *base ? base : "/tmp");
    if (!mkdtemp(s->folder)) {
        enum status status = error_set_errno(err, errno, "cannot make folder '%s'", s->folder);

        s->folder[0] = '\0';
        return status;
    }
    s->inotify_fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (s->inotify_fd < 0 ||
        inotify_add_watch(s->inotify_fd, s->folder, IN_CLOSE_WRITE | IN_MOVED_TO) < 0)
        return error_set_errno(err, errno, "cannot watch '%s'", s->folder);
    return child_set_watch_fd(s->child_set, s->inotify_fd, err);
}

/* Remove the port files, and the folder unless it holds Unix sockets. */
static void remove_folder(struct server_start *s)
{
    if (s->inotify_fd >= 0)
        (void)close(s->inotify_fd);
    s->child_set->wake_fd = -1;
    for (size_t i = 0; i < placement_own_count(s->plan) && s->folder[0] != '\0'; i++) {
        char path[PATH_SIZE];

        port_file(s, i, path, sizeof(path));
        (void)unlink(path);
    }
    if (s->folder[0] != '\0' && !s->with_unix)
        (void)rmdir(s->folder);
}

void servers_remove_folder(const struct plan *plan, const char *folder)
{
    for (size_t i = 0; folder[0] != '\0' && i < placement_own_count(plan); i++) {
        char path[PATH_SIZE];
        char lock[PATH_SIZE + 8];

        socket_path(folder, i, path, sizeof(path));
        (void)snprintf(lock, sizeof(lock), "%s.lock", path);
        (void)unlink(path);
        (void)unlink(lock);
    }
    if (folder[0] != '\0')
        (void)rmdir(folder);
}

/* With one node: where ranks reach this server. */
static void own_address(const struct plan *p, size_t index, char *text, size_t size)
{
    if (p->hosts.count > 0)
        placement_host_address(p, placement_server_host(p, (unsigned)index), text, size);
    else
        (void)snprintf(text, size, "127.0.0.1");
}

/* The value of a server's --listen. */
static void listen_text(const struct server_start *s, size_t index, char *text, size_t size)
{
    int64_t port = s->plan->options.server_port;
    char path[PATH_SIZE];
    char host[HOST_NAME_SIZE];

    if (s->with_unix) {
        socket_path(s->folder, index, path, sizeof(path));
        (void)snprintf(text, size, "unix:%s", path);
        return;
    }
    own_address(s->plan, index, host, sizeof(host));
    (void)snprintf(text, size, "%s:%jd", s->plan->nodes > 1 ? "0.0.0.0" : host,
                   port > 0 ? (intmax_t)port + placement_own(s->plan, (unsigned)index)
                            : s->ports[index]);
}

static bool is_replica(const struct plan *p, size_t index)
{
    return p->placement.replicas > 0 && index >= p->placement.replicas;
}

static enum status start_server(struct server_start *s, size_t index, const char *program,
                                struct error *err)
{
    char state[OPTION_TEXT_MAX + 64];
    char *variables[] = {state, NULL};
    char listen[PATH_SIZE + HOST_NAME_SIZE];
    char file[PATH_SIZE];
    char prefix[32];
    char name[] = "sparring-server";
    char listen_word[] = "--listen";
    char file_word[] = "--port-file";
    char dir_word[] = "--run-dir";
    char dir[OPTION_TEXT_MAX];
    char *argv[8] = {name, listen_word, listen};
    size_t words = 3;
    cpu_set_t processors;
    struct child_request request = {
        .kind = "server",
        .index = placement_own(s->plan, (unsigned)index),
        .file = program,
        .argv = argv,
        .variables = variables,
        .processors = placement_processors(s->plan, true, (unsigned)index, &processors),
        .host = s->plan->hosts.count > 0 ? placement_server_host(s->plan, (unsigned)index) : 0,
        .prefix = s->plan->options.tee ? prefix : NULL};

    if (is_replica(s->plan, index)) {
        request.kind = "replica";
        request.index -= s->plan->placement.replicas;
    }
    listen_text(s, index, listen, sizeof(listen));
    port_file(s, index, file, sizeof(file));
    (void)snprintf(prefix, sizeof(prefix), "[%s %u] ", request.kind, request.index);
    (void)snprintf(dir, sizeof(dir), "%s", s->plan->options.run_dir);
    if (s->inotify_fd >= 0) { /* absent at a restart: the port is known */
        argv[words++] = file_word;
        argv[words++] = file;
    }
    if (dir[0] != '\0') {
        argv[words++] = dir_word;
        argv[words++] = dir;
    }
    if (s->plan->options.state_dir[0] == '\0') /* unset: do not inherit ours */
        (void)snprintf(state, sizeof(state), "SPARRING_STATE_DIR");
    else
        (void)snprintf(state, sizeof(state), "SPARRING_STATE_DIR=%s/server-%u",
                       s->plan->options.state_dir, placement_own(s->plan, (unsigned)index));
    return s->plan->hosts.engine
               ? step_start(s->child_set, s->plan, index, request.host, 1, &request, err)
               : child_set_start(s->child_set, index, &request, err);
}

/* "4711\n", "127.0.0.1:4711\n" or "unix:/path\n"; nothing changes while the file is not there or
 * not whole. */
static enum status read_port(struct server_start *s, size_t index, struct error *err)
{
    char path[PATH_SIZE];
    char *text;
    size_t size;
    struct endpoint endpoint = {.port = 0};
    uint64_t port = 0;
    enum status status;

    port_file(s, index, path, sizeof(path));
    status = file_read(path, 512, &text, &size, err);
    if (status == STATUS_NOT_FOUND)
        return STATUS_OK;
    if (status != STATUS_OK)
        return status;
    if (size > 0 && text[size - 1] == '\n') {
        text[size - 1] = '\0';
        if (endpoint_parse(text, "port", &endpoint, NULL) == STATUS_OK)
            port = endpoint.port;
        else if (!parse_uint64(text, &port))
            port = 0;
        s->listens[index] =
            s->with_unix ? endpoint_unix_path(&endpoint) != NULL : port > 0 && port <= 65535;
        s->ports[index] = (uint16_t)port;
        if (!s->listens[index])
            status =
                error_set(err, STATUS_DATA, "server %zu wrote '%.60s' as its port", index, text);
    }
    free(text);
    return status;
}

static enum status read_ports(struct server_start *s, size_t *ret_missing, struct error *err)
{
    *ret_missing = s->length;
    for (size_t i = s->length; i-- > 0;) {
        enum status status = s->listens[i] ? STATUS_OK : read_port(s, i, err);

        if (status != STATUS_OK)
            return status;
        if (!s->listens[i])
            *ret_missing = i;
    }
    return STATUS_OK;
}

static enum status wait_for_ports(struct server_start *s, struct error *err)
{
    int64_t deadline_ns = clock_deadline_ns(s->plan->options.start_timeout_ms);
    enum status status = STATUS_OK;

    while (status == STATUS_OK && !s->child_set->first_failed && !s->child_set->stopping) {
        size_t missing;

        status = read_ports(s, &missing, err);
        if (status != STATUS_OK || missing == s->length)
            return status;
        if (clock_left_ms(deadline_ns) == 0)
            return error_set(err, STATUS_TIMEOUT,
                             "server %zu does not listen after %jd ms (--start-timeout-ms)",
                             missing, (intmax_t)s->plan->options.start_timeout_ms);
        status = child_set_step(s->child_set, deadline_ns, err);
    }
    return status;
}

static void add_started_address(const struct server_start *s, size_t index,
                                struct strbuf *addresses)
{
    char text[PATH_SIZE + 8];
    char host[HOST_NAME_SIZE];

    own_address(s->plan, index, host, sizeof(host));
    (void)snprintf(text, sizeof(text), "%s:%u", host, s->ports[index]);
    if (s->with_unix)
        listen_text(s, index, text, sizeof(text));
    strbuf_addf(addresses, "%s%s", addresses->length > 0 ? "," : "", text);
}

enum status servers_start(struct child_set *child_set, const struct plan *plan, const char *program,
                          struct strbuf *addresses, struct strbuf *replicas, char *folder,
                          struct error *err)
{
    struct server_start start = {.child_set = child_set,
                                 .plan = plan,
                                 .length = placement_own_count(plan),
                                 .inotify_fd = -1,
                                 .with_unix = strcmp(plan->options.server_transport, "unix") == 0};
    enum status status = STATUS_OK;

    for (size_t i = 0; i < start.length && plan->hosts.engine; i++)
        start.ports[i] = (uint16_t)(plan->options.server_port + (int64_t)i);
    if (!plan->hosts.engine) /* whose hosts need not see our folder, and whose ports are given */
        status = make_folder(&start, err);
    (void)snprintf(folder, SERVERS_FOLDER_SIZE, "%s", start.with_unix ? start.folder : "");
    for (size_t i = 0; i < start.length && status == STATUS_OK; i++)
        status = start_server(&start, i, program, err);
    if (status == STATUS_OK && !plan->hosts.engine)
        status = wait_for_ports(&start, err);
    for (size_t i = 0; i < start.length && plan->nodes == 1; i++)
        add_started_address(&start, i, is_replica(plan, i) ? replicas : addresses);
    remove_folder(&start);
    return status;
}

/* The port of entry `index` of "127.0.0.1:4711,127.0.0.1:4712". */
static uint16_t started_port(const char *addresses, size_t index)
{
    struct endpoint endpoint = {.port = 0};
    char entry[320];

    for (; index > 0 && *addresses; index--) {
        addresses += strcspn(addresses, ",");
        addresses += *addresses == ',';
    }
    (void)snprintf(entry, sizeof(entry), "%.*s", (int)strcspn(addresses, ","), addresses);
    return endpoint_parse(entry, "servers", &endpoint, NULL) == STATUS_OK ? endpoint.port : 0;
}

enum status servers_restart(struct child_set *child_set, const struct plan *plan,
                            const char *program, const char *addresses, const char *replicas,
                            const char *folder, size_t index, struct error *err)
{
    struct server_start start = {.child_set = child_set,
                                 .plan = plan,
                                 .inotify_fd = -1,
                                 .with_unix = strcmp(plan->options.server_transport, "unix") == 0};

    (void)snprintf(start.folder, sizeof(start.folder), "%s", folder);
    if (plan->nodes == 1 && !start.with_unix)
        start.ports[index] = is_replica(plan, index)
                                 ? started_port(replicas, index - plan->placement.replicas)
                                 : started_port(addresses, index);
    return start_server(&start, index, program, err);
}

void servers_add_words(const char *program, const char *listen, const char *run_dir,
                       struct text_list *words)
{
    text_list_addf(words, "%s", program);
    text_list_addf(words, "--listen=%s", listen);
    if (run_dir[0] != '\0')
        text_list_addf(words, "--run-dir=%s", run_dir);
}

void servers_addresses(const struct plan *plan, struct strbuf *addresses)
{
    const struct placement *m = &plan->placement;

    for (unsigned i = 0; i < m->colocated + m->dedicated && plan->nodes > 1; i++)
        placement_address(plan, i, addresses);
    if (m->given > 0)
        strbuf_addf(addresses, "%s%s", addresses->length > 0 ? "," : "",
                    plan->options.server_addresses);
}
