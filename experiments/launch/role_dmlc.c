/*
 * role_dmlc: the jobs of ps-lite and BytePS.  Every process knows the address of the scheduler, and
 * nothing of the others.  The scheduler serves the rendezvous store of the job, in which the others
 * find each other:
 *
 *   servers, workers   counters, for the numbers of those that have none
 *   server/I           "HOST:PORT" of server I
 *   worker/R           "HOST:PORT" of worker R; that of worker 0 becomes the address of rank 0
 *   ended              counter of the workers that ended well
 *   end                the job's exit code, of the first that failed, or "0" when all workers ended
 *   left/NAME          it has seen the end; then the scheduler ends
 *
 * A worker is a `launch` of its own, as a child: the node of a job whose number of nodes is that of
 * workers.  A server is a sparring-server.  Both are stopped when the job has an end, or the
 * scheduler is lost.  The store is asked four times a second.
 */
#include "experiments/launch/role.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/net.h"
#include "common/base/parse.h"
#include "common/base/strbuf.h"
#include "common/base/text_list.h"
#include "common/rpc/security_options.h"
#include "common/store/store.h"
#include "experiments/launch/child_set.h"
#include "experiments/launch/plan.h"
#include "experiments/launch/servers.h"
#include "experiments/subprocess/subprocess.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOOK_NS    250000000
#define LEAVE_MS   5000 /* for all to see the end */
#define FOREVER_MS ((int64_t)1 << 40)
#define START_MS   300000

struct member {
    const struct role *role;
    const struct plan_options *options;
    struct store *store;
    struct child_set children; /* one */
    char name[32];             /* "worker/0" */
    char address[300];         /* its own, "HOST:PORT" */
    int64_t index;
    int end; /* the job's exit code; -1: not yet */
};

struct security {
    struct security_options files;
    bool is_insecure;
};

static const struct option_spec insecure_specs[] = {
    {.name = "insecure",
     .env = "SPARRING_INSECURE",
     .kind = OPTION_BOOL,
     .offset = offsetof(struct security, is_insecure),
     .help = "Plaintext beyond this host."},
    {0}};

/* From the variables of the servers and the ranks; launch has no such options. */
static const struct option_set security_set = {
    .program = "sparring launch",
    .tables = {{security_specs, offsetof(struct security, files)}, {insecure_specs, 0}}};

static enum status open_store(struct member *m, struct error *err)
{
    char program[] = "sparring";
    char *words[] = {program, NULL};
    char address[320];
    struct security security = {.is_insecure = false};
    struct option_result result = {0};
    const bool is_scheduler = m->role->kind == ROLE_SCHEDULER;
    const struct launch_env launch = {.rank = is_scheduler ? 0 : 1,
                                      .world_size = 1 + m->role->workers + m->role->servers};
    struct store_config config = {
        .init_method = address, .launch = &launch, .group = "dmlc", .timeout_ms = START_MS};
    enum status status = option_parse(&security_set, 1, words, &security, &result, err);

    (void)snprintf(address, sizeof(address), "tcp://%s", m->role->scheduler);
    config.security = security_options_read(&security.files, security.is_insecure);
    if (status == STATUS_OK)
        status = store_open(&config, &m->store, err);
    option_result_release(&result);
    return status;
}

/* ---- the end */

static void set_end(struct member *m, int exit_code)
{
    char text[16];
    char *stored = NULL;

    (void)snprintf(text, sizeof(text), "%d", exit_code);
    if (store_compare_set(m->store, "end", "", text, &stored, NULL) == STATUS_OK)
        free(stored);
}

/* STATUS_TIMEOUT: the job goes on. */
static enum status look_for_end(struct member *m, int64_t timeout_ms, struct error *err)
{
    char *text = NULL;
    size_t size;
    int64_t code = 1;
    enum status status = store_get(m->store, "end", timeout_ms, &text, &size, err);

    if (status == STATUS_OK) {
        (void)parse_int64(text, &code);
        m->end = (int)code;
    }
    free(text);
    return status;
}

/* The event callback of the child set. */
static enum status watch_end(void *user, int64_t *ret_next_ns, struct error *err)
{
    struct member *m = user;
    enum status status = look_for_end(m, 0, NULL);

    *ret_next_ns = clock_now_ns() + LOOK_NS;
    if (status == STATUS_TIMEOUT)
        return STATUS_OK;
    *ret_next_ns = INT64_MAX;
    if (status != STATUS_OK)
        return error_set(err, status, "the scheduler at %s is lost", m->role->scheduler);
    child_set_stop(&m->children, 0, 1, SIGTERM);
    return STATUS_OK;
}

/* ---- members */

static const char *kind_of(const struct member *m)
{
    return m->role->kind == ROLE_SERVER ? "server" : "worker";
}

/* Wait for the scheduler; then this host, as the scheduler sees it, and a free port. */
static enum status find_address(struct member *m, struct error *err)
{
    const char *host = getenv("DMLC_NODE_HOST");
    struct endpoint own = {.port = 0}, scheduler;
    int fd;
    enum status status = endpoint_parse(m->role->scheduler, "DMLC_PS_ROOT_URI", &scheduler, err);

    if (status == STATUS_OK)
        status = net_connect(&scheduler, clock_deadline_ns(START_MS), &fd, err);
    if (status != STATUS_OK)
        return status;
    status = net_local_host(fd, own.host, sizeof(own.host), err);
    (void)close(fd);
    if (host && host[0] != '\0')
        (void)snprintf(own.host, sizeof(own.host), "%s", host);
    if (status == STATUS_OK)
        status = net_listen(&own, "DMLC_NODE_HOST", &fd, &own.port, err);
    if (status == STATUS_OK)
        (void)close(fd);
    endpoint_format(&own, m->address, sizeof(m->address));
    return status;
}

/* Take a number, and announce the address under it. */
static enum status join(struct member *m, struct error *err)
{
    const unsigned count = m->role->kind == ROLE_SERVER ? m->role->servers : m->role->workers;
    char counter[32];
    char *stored = NULL;
    enum status status = STATUS_OK;

    m->index = m->role->worker_id;
    (void)snprintf(counter, sizeof(counter), "%ss", kind_of(m));
    if (m->index < 0) {
        status = store_add(m->store, counter, 1, &m->index, err);
        m->index--;
    }
    if (status == STATUS_OK && m->index >= count)
        status = error_set(err, STATUS_CONFIG, "there are %u %ss already (DMLC_NUM_%s)", count,
                           kind_of(m), m->role->kind == ROLE_SERVER ? "SERVER" : "WORKER");
    (void)snprintf(m->name, sizeof(m->name), "%s/%jd", kind_of(m), (intmax_t)m->index);
    if (status == STATUS_OK)
        status = store_compare_set(m->store, m->name, "", m->address, &stored, err);
    if (status == STATUS_OK && strcmp(stored, m->address) != 0)
        status = error_set(err, STATUS_MISMATCH, "%s is at %s already (DMLC_WORKER_ID)", m->name,
                           stored);
    free(stored);
    return status;
}

static enum status read_address(struct member *m, const char *kind, unsigned index,
                                struct strbuf *list, struct error *err)
{
    char key[32];
    char *text = NULL;
    size_t size;
    const int64_t deadline_ns = clock_deadline_ns(START_MS);
    bool is_told = false;
    enum status status;

    (void)snprintf(key, sizeof(key), "%s/%u", kind, index);
    while ((status = store_get(m->store, key, 0, &text, &size, err)) == STATUS_TIMEOUT) {
        if (m->children.stopping || look_for_end(m, 0, NULL) == STATUS_OK)
            return error_set(err, STATUS_CANCELLED, "%s before %s %u came",
                             m->children.stopping ? "stopped" : "the job ended", kind, index);
        if (clock_left_ms(deadline_ns) == 0)
            return error_set(err, STATUS_TIMEOUT, "waited %d s for %s %u", START_MS / 1000, kind,
                             index);
        if (!is_told)
            log_info("waiting for %s %u", kind, index);
        is_told = true;
        status = child_set_step(&m->children, clock_now_ns() + LOOK_NS, err);
        if (status != STATUS_OK)
            return status;
    }
    if (status == STATUS_OK)
        strbuf_addf(list, "%s%s", list->length > 0 ? "," : "", text);
    free(text);
    return status;
}

/* The variables of a worker's launch. */
static enum status read_job(struct member *m, struct text_list *variables, struct error *err)
{
    struct strbuf servers = STRBUF_INIT, first = STRBUF_INIT;
    struct endpoint master = {.port = 0};
    enum status status = read_address(m, "worker", 0, &first, err);

    for (unsigned i = 0; i < m->role->servers && status == STATUS_OK; i++)
        status = read_address(m, "server", i, &servers, err);
    if (status == STATUS_OK)
        status = endpoint_parse(first.text, "worker 0", &master, err);
    text_list_addf(variables, "DMLC_ROLE");
    text_list_addf(variables, "TF_CONFIG");
    text_list_addf(variables, "PET_NNODES=%u", m->role->workers);
    text_list_addf(variables, "PET_NODE_RANK=%jd", (intmax_t)m->index);
    text_list_addf(variables, "PET_MASTER_ADDR=%s", master.host);
    text_list_addf(variables, "PET_MASTER_PORT=%u", master.port);
    if (m->role->servers > 0)
        text_list_addf(variables, "SPARRING_SERVERS=%s", servers.text);
    if (status == STATUS_OK && (!strbuf_ok(&servers) || !text_list_words(variables)))
        status = error_set(err, STATUS_NO_MEMORY, "no memory for the variables of a worker");
    strbuf_release(&servers);
    strbuf_release(&first);
    return status;
}

static enum status run_child(struct member *m, char *const *argv, int *ret_exit_code,
                             struct error *err)
{
    struct text_list words = {0}, variables = {0};
    char file[4400], folder[4096];
    const bool is_server = m->role->kind == ROLE_SERVER;
    struct child_request request = {.kind = kind_of(m), .index = (unsigned)m->index, .file = file};
    enum status status = subprocess_program_folder(folder, sizeof(folder), err);

    (void)snprintf(file, sizeof(file), "%s/%s", folder, is_server ? "sparring-server" : "sparring");
    if (is_server)
        servers_add_words("sparring-server", m->address, m->options->run_dir, &words);
    else
        text_list_addf(&words, "sparring");
    for (; *argv && !is_server; argv++)
        text_list_addf(&words, "%s", *argv);
    if (status == STATUS_OK && !is_server)
        status = read_job(m, &variables, err);
    request.argv = text_list_words(&words);
    request.variables = text_list_words(&variables);
    if (status == STATUS_OK && (!request.argv || !request.variables))
        status = error_set(err, STATUS_NO_MEMORY, "no memory for a command line");
    m->children.servers_may_end = true;
    m->children.event = watch_end;
    m->children.user = m;
    if (status == STATUS_OK && !m->children.stopping)
        status = child_set_start(&m->children, 0, &request, err);
    if (status == STATUS_OK)
        status = child_set_wait(&m->children, 0, 1, err);
    if (status == STATUS_OK)
        *ret_exit_code = child_exit_code(&m->children.children[0]);
    text_list_release(&words);
    text_list_release(&variables);
    return status;
}

/* A server that was stopped for the end of the job has that as its exit code. */
static void tell_end(struct member *m, int *exit_code)
{
    int64_t ended = 0;

    if (m->end >= 0)
        *exit_code = m->end;
    else if (m->role->kind == ROLE_SERVER || *exit_code != 0)
        set_end(m, *exit_code != 0 ? *exit_code : 1);
    else if (store_add(m->store, "ended", 1, &ended, NULL) == STATUS_OK &&
             ended == m->role->workers)
        set_end(m, 0);
}

static void leave(struct member *m)
{
    char key[48];

    (void)snprintf(key, sizeof(key), "left/%s", m->name);
    (void)store_set(m->store, key, "", 0, NULL);
}

static enum status run_member(struct member *m, char *const *argv, int *ret_exit_code,
                              struct error *err)
{
    enum status status = join(m, err);

    if (status != STATUS_OK) /* the job is that of others */
        return status;
    status = run_child(m, argv, ret_exit_code, err);
    if (status != STATUS_OK)
        set_end(m, status_exit_code(status));
    else
        tell_end(m, ret_exit_code);
    if (status == STATUS_OK && m->role->kind == ROLE_SERVER && *ret_exit_code == 0)
        log_info("the job has ended");
    leave(m);
    return status;
}

/* ---- the scheduler: a signal ends it as usual, and then the others */

static void wait_for_leaving(struct member *m)
{
    const int64_t deadline_ns = clock_deadline_ns(LEAVE_MS);
    const unsigned count = m->role->workers + m->role->servers;

    for (unsigned i = 0; i < count; i++) {
        char name[32], key[48];
        const char *has_come[] = {name}, *has_left[] = {key};
        const bool is_worker = i < m->role->workers;

        (void)snprintf(name, sizeof(name), "%s/%u", is_worker ? "worker" : "server",
                       is_worker ? i : i - m->role->workers);
        (void)snprintf(key, sizeof(key), "left/%s", name);
        if (store_wait(m->store, has_come, 1, 0, NULL) == STATUS_OK)
            (void)store_wait(m->store, has_left, 1, clock_left_ms(deadline_ns), NULL);
    }
}

static enum status run_scheduler(struct member *m, int *ret_exit_code, struct error *err)
{
    enum status status;

    log_info("scheduler at %s, for %u workers and %u servers", m->role->scheduler, m->role->workers,
             m->role->servers);
    status = look_for_end(m, FOREVER_MS, err);
    if (status != STATUS_OK)
        return status;
    wait_for_leaving(m);
    *ret_exit_code = m->end;
    return STATUS_OK;
}

enum status role_run_dmlc(const struct role *role, const struct plan_options *options,
                          char *const *argv, int *ret_exit_code, struct error *err)
{
    struct member m = {.role = role, .options = options, .end = -1};
    const bool is_scheduler = role->kind == ROLE_SCHEDULER;
    enum status status = STATUS_OK;

    if (is_scheduler) {
        status = open_store(&m, err);
        if (status == STATUS_OK)
            status = run_scheduler(&m, ret_exit_code, err);
    } else {
        status = find_address(&m, err);
        if (status == STATUS_OK) /* before gRPC has threads: they are to leave signals to it */
            status = child_set_open(&m.children, 1, 0, options->grace_ms, 0, err);
        if (status == STATUS_OK)
            status = open_store(&m, err);
        if (status == STATUS_OK)
            status = run_member(&m, argv, ret_exit_code, err);
        child_set_close(&m.children);
    }
    if (m.store)
        store_close(m.store, -1);
    return status;
}
