/*
 * serve: `sparring standby serve`, the daemon.  One loop has all tasks; the handlers of their calls
 * leave what they get in mailboxes and wake it.
 */
#include "experiments/standby/standby.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/base/notify.h"
#include "common/base/parse.h"
#include "common/base/stop.h"
#include "common/option/program.h"
#include "common/rpc/security_options.h"
#include "experiments/standby/job.h"
#include "experiments/standby/task.h"
#include "experiments/subprocess/subprocess.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#define TASKS_MAX     64
#define STOP_GRACE_NS (10 * INT64_C(1000000000))
#define SLOW_MS       2 /* until a client that takes no more is looked at again */

struct serve_options {
    char listen[OPTION_TEXT_MAX];
    char allow[OPTION_TEXT_MAX];
    bool insecure;
    struct security_options security;
};

#define AT(field) offsetof(struct serve_options, field)

static const struct option_spec specs[] = {
    {.name = "listen",
     .env = "SPARRING_STANDBY_LISTEN",
     .kind = OPTION_TEXT,
     .offset = AT(listen),
     .default_text = "127.0.0.1:" STANDBY_PORT,
     .metavar = "H:P",
     .help = "Where clients reach the daemon; port 0: any free one, which the log names."},
    {.name = "allow-dir",
     .env = "SPARRING_STANDBY_ALLOW_DIR",
     .kind = OPTION_TEXT,
     .offset = AT(allow),
     .metavar = "DIR,...",
     .help = "Folders that options of tasks may name, or what is in them: data, checkpoints, "
             "files of initial values."},
    {.name = "insecure",
     .env = "SPARRING_INSECURE",
     .kind = OPTION_BOOL,
     .offset = AT(insecure),
     .default_text = "false",
     .help = "Listen beyond loopback without TLS: everybody who reaches the port runs tasks."},
    {0},
};

static const struct option_set options_set = {
    .program = "sparring standby serve",
    .summary = "Wait for tasks of launch and compare (--on standby:H:P,...), of one user at a "
               "time, and run them on this host.  A task is sparring-worker or sparring-server "
               "with options that are checked; its run directory goes back to the user.",
    .usage = "[OPTION]...",
    .tables = {{specs, 0}, {security_specs, .base = AT(security)}},
};

struct standby {
    pthread_mutex_t lock; /* of the list and the mailboxes */
    struct task *tasks[TASKS_MAX];
    size_t length;
    int wake_fd;
    unsigned started; /* number of the last task */
    bool is_stopping;
    struct task_settings settings;
};

/* ---- handlers, on threads of gRPC */

static const struct error stopped = {.status = STATUS_UNAVAILABLE,
                                     .text = "the daemon is being stopped"};

static void wake(const struct standby *s)
{
    const uint64_t one = 1;

    (void)!write(s->wake_fd, &one, sizeof(one));
}

static void start_call(struct rpc_call *call, void *user)
{
    struct standby *s = user;
    struct task *t = NULL;
    struct error err = {0};
    enum status status = mem_calloc(1, sizeof(*t), "a task", &t, &err);

    rpc_call_set_user(call, NULL);
    (void)pthread_mutex_lock(&s->lock);
    if (status == STATUS_OK && s->length == TASKS_MAX)
        status = error_set(&err, STATUS_UNAVAILABLE, "the host has %d tasks", TASKS_MAX);
    if (status == STATUS_OK) {
        t->standby = s;
        t->call = call;
        rpc_call_ref(call);
        t->number = ++s->started;
        t->child.outputs[0].fd = t->child.outputs[1].fd = -1;
        t->mailbox.heard_ns = clock_now_ns();
        s->tasks[s->length++] = t;
        rpc_call_set_user(call, t);
    }
    (void)pthread_mutex_unlock(&s->lock);
    if (status == STATUS_OK) {
        rpc_call_receive(call);
        return;
    }
    free(t);
    rpc_call_finish(call, status, err.text);
}

static void take_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    struct task *t = user;
    struct standby_request request = {0};
    struct error err = {0};
    const uint8_t *head;
    size_t size;

    if (!t)
        return;
    if (!message) {
        (void)pthread_mutex_lock(&t->standby->lock);
        t->mailbox.is_left = true;
        (void)pthread_mutex_unlock(&t->standby->lock);
        wake(t->standby);
        return;
    }
    head = rpc_message_head(message, &size);
    if (wire_unpack_standby_request(head, size, &request, &err) != STATUS_OK) {
        rpc_call_finish(call, err.status, err.text);
        return;
    }
    (void)pthread_mutex_lock(&t->standby->lock);
    t->mailbox.heard_ns = clock_now_ns();
    t->mailbox.stop = t->mailbox.stop || request.stop;
    if (!t->mailbox.has_request) {
        t->mailbox.request = request;
        t->mailbox.has_request = true;
        request = (struct standby_request){0};
    }
    (void)pthread_mutex_unlock(&t->standby->lock);
    wire_release_standby_request(&request);
    wake(t->standby);
    rpc_call_receive(call);
}

static void take_end(struct rpc_call *call, const struct rpc_result *result, void *user)
{
    struct task *t = user;
    struct standby *s;

    (void)call;
    (void)result;
    if (!t)
        return;
    s = t->standby; /* the loop may free the task at once */
    (void)pthread_mutex_lock(&s->lock);
    t->mailbox.is_closed = true;
    wake(s);
    (void)pthread_mutex_unlock(&s->lock);
}

static const struct rpc_handler handler = {
    .start = start_call, .message = take_message, .closed = take_end};

/* ---- the loop */

/* NULL: there are no more.  Handlers add at the end; only the loop removes. */
static struct task *task_at(struct standby *s, size_t i)
{
    struct task *t;

    (void)pthread_mutex_lock(&s->lock);
    t = i < s->length ? s->tasks[i] : NULL;
    (void)pthread_mutex_unlock(&s->lock);
    return t;
}

static const struct task *find_other_user(struct standby *s, const struct task *t)
{
    const struct task *other;

    for (size_t i = 0; (other = task_at(s, i)); i++) {
        if (other->state != TASK_NEW && other->state != TASK_OVER &&
            strcmp(other->holder, t->holder) != 0)
            return other;
    }
    return NULL;
}

static enum status refuse_busy(const struct task *user, struct error *err)
{
    struct tm local;
    char since[32] = "";

    if (localtime_r(&user->since, &local))
        (void)strftime(since, sizeof(since), "%Y-%m-%d %H:%M:%S", &local);
    return error_set(err, STATUS_UNAVAILABLE, "the host is in use by %s since %s", user->holder,
                     since);
}

/* Begin with what the client asked for. */
static void accept_task(struct standby *s, struct task *t)
{
    const struct standby_request *request = &t->mailbox.request; /* no handler changes it now */
    const struct task *user;
    struct error err = {0};
    enum status status;

    (void)snprintf(t->holder, sizeof(t->holder), "%s", request->holder);
    t->since = time(NULL);
    user = find_other_user(s, t);
    status = s->is_stopping ? error_set(&err, stopped.status, "%s", stopped.text)
             : user         ? refuse_busy(user, &err)
                            : job_check(request, &s->settings.folders, &err);
    if (status == STATUS_OK && request->program[0] == '\0')
        t->state = TASK_HOLDS;
    else if (status == STATUS_OK)
        status = task_start(t, &s->settings, request, &err);
    if (status != STATUS_OK)
        task_refuse(t, &err);
    t->beat_ns = 0; /* the client waits for a word */
}

static void send_beat(struct task *t)
{
    const struct standby_reply reply = {.kind = STANDBY_ALIVE};

    task_send(t, &reply);
    t->beat_ns = clock_now_ns() + STANDBY_BEAT_NS;
}

/* What the handlers have left; the request stays there, it is not copied. */
static struct task_mailbox read_mailbox(struct standby *s, const struct task *t)
{
    struct task_mailbox mailbox;

    (void)pthread_mutex_lock(&s->lock);
    mailbox = t->mailbox;
    (void)pthread_mutex_unlock(&s->lock);
    return mailbox;
}

/* The client has left, or is lost. */
static void let_go(struct task *t, const struct task_mailbox *mailbox)
{
    const bool is_gone = mailbox->is_closed || mailbox->is_left;

    if (t->state == TASK_RUNS || t->state == TASK_SENDS || (t->state == TASK_HOLDS && !is_gone))
        log_warning("task %u of %s: its client %s", t->number, t->holder,
                    is_gone ? "is gone" : "has been silent for too long");
    task_kill(t);
    if (mailbox->is_left)
        rpc_call_finish(t->call, STATUS_OK, "");
    else
        rpc_call_cancel(t->call); /* a client that does not read would keep it open */
}

/* The processes of the tasks before are killed, but still there, perhaps with their ports. */
static bool has_dying_tasks(struct standby *s)
{
    const struct task *t;

    for (size_t i = 0; (t = task_at(s, i)); i++)
        if (t->state == TASK_OVER && child_is_active(&t->child))
            return true;
    return false;
}

static void step_task(struct standby *s, struct task *t)
{
    const struct task_mailbox mailbox = read_mailbox(s, t);
    const bool is_lost =
        mailbox.is_closed || mailbox.is_left || clock_now_ns() - mailbox.heard_ns > STANDBY_LOST_NS;

    if (t->state == TASK_NEW && mailbox.has_request && !is_lost && !has_dying_tasks(s))
        accept_task(s, t);
    if (!t->is_killed && is_lost)
        let_go(t, &mailbox);
    if (s->is_stopping && t->state == TASK_HOLDS)
        task_refuse(t, &stopped);
    if (mailbox.stop || s->is_stopping)
        task_stop(t);
    task_step(t, &s->settings);
    if (t->state != TASK_NEW && t->state != TASK_OVER && clock_now_ns() >= t->beat_ns &&
        !rpc_call_has_unsent(t->call))
        send_beat(t);
}

static bool is_done(struct standby *s, struct task *t)
{
    return !child_is_active(&t->child) && read_mailbox(s, t).is_closed;
}

static void step_tasks(struct standby *s)
{
    struct task *t;

    for (size_t i = 0; (t = task_at(s, i));) {
        step_task(s, t);
        if (!is_done(s, t)) {
            i++;
            continue;
        }
        (void)pthread_mutex_lock(&s->lock);
        memmove(&s->tasks[i], &s->tasks[i + 1], (--s->length - i) * sizeof(struct task *));
        (void)pthread_mutex_unlock(&s->lock);
        task_release(t);
        free(t);
    }
}

static void add_fd(struct pollfd *fds, nfds_t *count, int fd)
{
    if (fd >= 0)
        fds[(*count)++] = (struct pollfd){.fd = fd, .events = POLLIN};
}

static void wait_for_news(struct standby *s)
{
    struct pollfd fds[2 + 3 * TASKS_MAX];
    nfds_t count = 0;
    int limit_ms = (int)(STANDBY_BEAT_NS / 2000000);
    uint64_t number;

    add_fd(fds, &count, s->wake_fd);
    if (!s->is_stopping)
        add_fd(fds, &count, stop_fd());
    (void)pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < s->length; i++) {
        const struct child *c = &s->tasks[i]->child;
        const bool is_slow = rpc_call_has_unsent(s->tasks[i]->call);

        if (is_slow || s->tasks[i]->state == TASK_SENDS || c->state == CHILD_LEADER_ENDED)
            limit_ms = SLOW_MS;
        if (is_slow || !child_is_active(c))
            continue;
        add_fd(fds, &count, c->state == CHILD_RUNNING ? c->pidfd : -1);
        add_fd(fds, &count, c->outputs[0].fd);
        add_fd(fds, &count, c->outputs[1].fd);
    }
    (void)pthread_mutex_unlock(&s->lock);
    (void)poll(fds, count, limit_ms); /* also a failure is followed by a look at all tasks */
    (void)!read(s->wake_fd, &number, sizeof(number));
}

static void kill_all(struct standby *s)
{
    struct task *t;

    for (size_t i = 0; (t = task_at(s, i)); i++) {
        task_kill(t);
        rpc_call_cancel(t->call);
    }
}

/* Serve until a signal; tasks then get a request to stop, and some time. */
static void serve(struct standby *s, struct rpc_server *server)
{
    int64_t end_ns = INT64_MAX;

    while (!s->is_stopping || (task_at(s, 0) && clock_now_ns() < end_ns)) {
        wait_for_news(s);
        if (stop_requested() && !s->is_stopping) {
            s->is_stopping = true;
            end_ns = clock_now_ns() + STOP_GRACE_NS;
            log_info("%s: stopping the tasks", strsignal(stop_requested()));
            rpc_server_drain(server);
        }
        step_tasks(s);
    }
    kill_all(s);
    for (; task_at(s, 0); wait_for_news(s))
        step_tasks(s);
}

/* ---- what it needs */

static enum status resolve_folders(const char *list, struct text_list *ret, struct error *err)
{
    while (*list) {
        char path[PATH_MAX], resolved[PATH_MAX];

        list = parse_list_next(list, path, sizeof(path));
        if (!realpath(path, resolved))
            return error_set_errno(err, errno, "--allow-dir: '%s'", path);
        text_list_addf(ret, "%s", resolved[1] == '\0' ? "" : resolved); /* "/" is above all */
    }
    return ret->failed ? error_set(err, STATUS_NO_MEMORY, "no memory for folders") : STATUS_OK;
}

static void add_key(struct text_list *keys, const char *name, const char *value)
{
    char path[PATH_MAX];

    if (value[0] != '\0')
        text_list_addf(keys, "%s=%s", name, realpath(value, path) ? path : value);
}

static enum status open_settings(struct task_settings *s, const struct serve_options *o,
                                 struct error *err)
{
    enum status status = resolve_folders(o->allow, &s->folders, err);
    sigset_t all;

    add_key(&s->keys, "SPARRING_TLS_CA", o->security.ca);
    add_key(&s->keys, "SPARRING_TLS_CERT", o->security.cert);
    add_key(&s->keys, "SPARRING_TLS_KEY", o->security.key);
    add_key(&s->keys, "SPARRING_TOKEN_FILE", o->security.token_file);
    s->orphan_reaper.fd = -1;
    if (status == STATUS_OK && s->keys.failed)
        status = error_set(err, STATUS_NO_MEMORY, "no memory for names of keys");
    if (status == STATUS_OK && prctl(PR_SET_CHILD_SUBREAPER, 1) != 0)
        status = error_set_errno(err, errno, "cannot become a subreaper");
    (void)sigfillset(&all); /* the reaper outlives signals to all of this process's group */
    (void)pthread_sigmask(SIG_BLOCK, &all, &s->mask);
    if (status == STATUS_OK)
        status = orphan_reaper_open(&s->orphan_reaper, TASKS_MAX, err);
    (void)pthread_sigmask(SIG_SETMASK, &s->mask, NULL);
    return status;
}

static void announce(struct endpoint listen, const struct rpc_server *server)
{
    struct notify manager;
    char address[300];

    listen.port = rpc_server_port(server);
    endpoint_format(&listen, address, sizeof(address));
    log_info("serving on %s", address);
    if (notify_open(&manager, NULL) == STATUS_OK)
        notify_send(&manager, "READY=1\nSTATUS=waiting for tasks on %s", address);
    notify_close(&manager);
}

static enum status run_serve(const void *parsed, const struct option_result *origins,
                             struct error *err)
{
    const struct serve_options *o = parsed;
    char programs[PATH_MAX];
    struct standby s = {.lock = PTHREAD_MUTEX_INITIALIZER,
                        .wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
                        .settings = {.programs = programs}};
    const struct rpc_method method = {.path = STANDBY_PATH,
                                      .handler = &handler,
                                      .user = &s,
                                      .max_head_bytes = WIRE_STANDBY_MAX,
                                      .max_payload_bytes = RPC_NO_PAYLOAD};
    struct rpc_server_config config = {.listen_origin =
                                           option_origin_text(&options_set, origins, "listen"),
                                       .security = security_options_read(&o->security, o->insecure),
                                       .threads = 1,
                                       .max_calls = TASKS_MAX + 1,
                                       .methods = &method,
                                       .method_count = 1};
    struct rpc_server *server = NULL;
    enum status status = endpoint_parse(o->listen, config.listen_origin, &config.listen, err);

    if (status == STATUS_OK)
        status = subprocess_program_folder(programs, sizeof(programs), err);
    if (status == STATUS_OK)
        status = open_settings(&s.settings, o, err);
    if (status == STATUS_OK)
        status = stop_install(err);
    if (status == STATUS_OK)
        status = rpc_server_open(&config, &server, err);
    if (status == STATUS_OK) {
        announce(config.listen, server);
        serve(&s, server);
    }
    rpc_server_close(server, 0);
    orphan_reaper_close(&s.settings.orphan_reaper);
    text_list_release(&s.settings.folders);
    text_list_release(&s.settings.keys);
    (void)close(s.wake_fd);
    return status;
}

int standby_serve_main(int argc, char **argv)
{
    static const struct program program = {
        .set = &options_set,
        .options_size = sizeof(struct serve_options),
        .run = run_serve,
    };

    return program_main(&program, argc, argv);
}
