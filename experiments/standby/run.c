/*
 * run: `sparring standby run`, which is to a standby daemon what the ssh command is to sshd.
 *
 * Output is written in pieces that a pipe with room takes at once, so that a slow reader never
 * keeps this process from its signs of life.
 */
#include "experiments/standby/standby.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/stop.h"
#include "common/option/program.h"
#include "common/rpc/security_options.h"
#include "experiments/standby/job.h"
#include "experiments/standby/link.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

extern char **environ;

struct run_options {
    char host[OPTION_TEXT_MAX];
    char holder[OPTION_TEXT_MAX];
    struct security_options security;
};

#define AT(field) offsetof(struct run_options, field)

static const struct option_spec specs[] = {
    {.name = "host",
     .kind = OPTION_TEXT,
     .offset = AT(host),
     .metavar = "H[:P]",
     .help = "The daemon; port " STANDBY_PORT " by default."},
    {.name = "holder",
     .env = "SPARRING_STANDBY_HOLDER",
     .kind = OPTION_TEXT,
     .offset = AT(holder),
     .metavar = "NAME",
     .help = "Who uses the host; tasks of one name share it."},
    {0},
};

static const struct option_set options_set = {
    .program = "sparring standby run",
    .summary = "Run sparring-worker or sparring-server on the host of a standby daemon, with this "
               "environment's variables of a job; its output and its run directory come here.  "
               "SIGTERM asks it to stop; it is killed when this command is.",
    .usage = "--host H:P --holder NAME -- PROGRAM [ARG]...",
    .tables = {{specs, 0}, {security_specs, .base = AT(security)}},
};

struct run {
    struct link link;
    const char *folder;         /* the run directory here; NULL: none */
    char path[PATH_MAX];        /* of the file that is being written */
    int fd;                     /* -1: none */
    struct standby_reply reply; /* kind 0: none */
    size_t written;             /* of the data of an output */
    bool has_ended;
};

/* ---- the request */

/* The task's run directory is its own folder; that of the words is for its files here. */
static void add_words(const char *const *words, size_t count, struct run *r,
                      struct standby_request *request)
{
    static const char option[] = "--run-dir";
    static const char with_value[] = "--run-dir=";

    for (size_t i = 0; i < count; i++) {
        if (strncmp(words[i], with_value, sizeof(with_value) - 1) == 0) {
            r->folder = words[i] + sizeof(with_value) - 1;
            text_list_addf(&request->words, "%s.", with_value);
        } else if (strcmp(words[i], option) == 0 && i + 1 < count) {
            r->folder = words[++i];
            text_list_addf(&request->words, "%s.", with_value);
        } else {
            text_list_addf(&request->words, "%s", words[i]);
        }
    }
}

static void add_variables(struct run *r, struct standby_request *request)
{
    static const char run_dir[] = "SPARRING_RUN_DIR=";

    for (char *const *variable = environ; *variable; variable++) {
        if (strncmp(*variable, run_dir, sizeof(run_dir) - 1) == 0) {
            r->folder = r->folder ? r->folder : *variable + sizeof(run_dir) - 1;
            text_list_addf(&request->variables, "%s.", run_dir);
        } else if (job_takes_variable(*variable)) {
            text_list_addf(&request->variables, "%s", *variable);
        }
    }
}

static enum status make_request(const struct run_options *o, const char *const *words, size_t count,
                                struct run *r, struct standby_request *request, struct error *err)
{
    const char *name;

    if (count == 0 || o->host[0] == '\0' || o->holder[0] == '\0')
        return error_set(err, STATUS_INVALID, "it takes --host, --holder and a program");
    name = strrchr(words[0], '/') ? strrchr(words[0], '/') + 1 : words[0];
    if (strlen(name) >= sizeof(request->program) || strlen(o->holder) >= sizeof(request->holder))
        return error_set(err, STATUS_INVALID, "the program or --holder is too long");
    (void)snprintf(request->program, sizeof(request->program), "%s", name);
    (void)snprintf(request->holder, sizeof(request->holder), "%s", o->holder);
    add_words(words + 1, count - 1, r, request);
    add_variables(r, request);
    return STATUS_OK;
}

/* ---- what comes back */

/* Names come from the other side of a network. */
static bool is_below_folder(const char *name)
{
    if (name[0] == '\0' || name[0] == '/')
        return false;
    for (const char *part = name; part; part = strchr(part, '/')) {
        part += *part == '/';
        if (part[strspn(part, ".")] == '/' || part[strspn(part, ".")] == '\0')
            return false;
    }
    return true;
}

static enum status open_file(struct run *r, const char *name, struct error *err)
{
    enum status status;
    char *slash;

    if (!is_below_folder(name))
        return error_set(err, STATUS_DATA, "the standby daemon at %s sent a file named '%s'",
                         r->link.address, name);
    status = file_join(r->path, sizeof(r->path), r->folder, name, err);
    if (status != STATUS_OK)
        return status;
    slash = strrchr(r->path, '/');
    *slash = '\0';
    status = file_make_folder(r->path, err);
    *slash = '/';
    if (status != STATUS_OK)
        return status;
    r->fd = open(r->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    return r->fd >= 0 ? STATUS_OK : error_set_errno(err, errno, "cannot write '%s'", r->path);
}

static enum status write_file(struct run *r, struct error *err)
{
    const struct standby_reply *reply = &r->reply;
    enum status status = STATUS_OK;

    if (!r->folder)
        return STATUS_OK;
    if (reply->crc != (uint32_t)crc32(0, reply->data, (uInt)reply->size))
        return error_set(err, STATUS_DATA, "'%s' arrived damaged from %s", reply->name,
                         r->link.address);
    if (reply->offset == 0) {
        if (r->fd >= 0)
            (void)close(r->fd);
        r->fd = -1;
        status = open_file(r, reply->name, err);
    }
    if (status == STATUS_OK && (r->fd < 0 || lseek(r->fd, 0, SEEK_CUR) != (off_t)reply->offset))
        status = error_set(err, STATUS_DATA, "the pieces of '%s' from %s are not in order",
                           reply->name, r->link.address);
    return status == STATUS_OK ? file_write_all(r->fd, r->path, reply->data, reply->size, err)
                               : status;
}

/* One piece of an output; its reader has room for it, or is gone. */
static void write_output(struct run *r, int fd)
{
    const size_t left = r->reply.size - r->written;
    const ssize_t put = write(fd, r->reply.data + r->written, left < PIPE_BUF ? left : PIPE_BUF);

    if (put >= 0)
        r->written += (size_t)put;
    else if (errno != EINTR && errno != EAGAIN)
        r->written = r->reply.size;
}

static int output_of(const struct standby_reply *reply)
{
    return reply->kind == STANDBY_OUTPUT   ? STDOUT_FILENO
           : reply->kind == STANDBY_ERRORS ? STDERR_FILENO
                                           : -1;
}

/* Deal with the reply, as far as that goes without waiting. */
static enum status use_reply(struct run *r, bool has_room, struct error *err)
{
    const int fd = output_of(&r->reply);
    enum status status = STATUS_OK;

    if (fd >= 0 && has_room)
        write_output(r, fd);
    if (fd >= 0 && r->written < r->reply.size)
        return STATUS_OK;
    if (r->reply.kind == STANDBY_FILE)
        status = write_file(r, err);
    r->has_ended = r->reply.kind == STANDBY_END;
    free(r->reply.data);
    r->reply.data = NULL;
    r->written = 0;
    if (!r->has_ended)
        r->reply.kind = 0;
    return status;
}

/* One wait, and what it brought. */
static enum status step(struct run *r, bool *stop_is_sent, struct error *err)
{
    struct pollfd fds[] = {{.fd = r->link.wake_fd, .events = POLLIN},
                           {.fd = *stop_is_sent ? -1 : stop_fd(), .events = POLLIN},
                           {.fd = output_of(&r->reply), .events = POLLOUT}};
    const bool has_reply = r->reply.kind != 0;
    enum status status = STATUS_OK;
    bool stop;

    if (has_reply)
        fds[0].fd = -1; /* one after the other */
    if (poll(fds, 3, clock_left_ms(r->link.beat_ns)) < 0 && errno != EINTR)
        return error_set_errno(err, errno, "cannot wait for the standby daemon");
    stop = stop_requested() != 0; /* looked at once: the signal may come at any time */
    link_tell(&r->link, stop && !*stop_is_sent);
    *stop_is_sent = stop;
    if (!has_reply)
        status = link_take(&r->link, &r->reply, err);
    if (status == STATUS_OK && r->reply.kind != 0)
        status = use_reply(r, fds[2].revents != 0, err);
    return status;
}

static enum status run_task(const void *parsed, const char *const *words, size_t count,
                            int *ret_exit_code, struct error *err)
{
    const struct run_options *o = parsed;
    const struct rpc_security security = security_options_read(&o->security, false);
    struct standby_request request = {0};
    struct run r = {.fd = -1, .link = {.wake_fd = -1}};
    bool stop_is_sent = false;
    enum status status = make_request(o, words, count, &r, &request, err);

    if (status != STATUS_OK)
        return status;
    status = stop_install(err);
    if (status == STATUS_OK)
        status = link_open(&r.link, o->host, &security, &request, err);
    while (status == STATUS_OK && !r.has_ended)
        status = step(&r, &stop_is_sent, err);
    if (status == STATUS_OK)
        *ret_exit_code = (int)r.reply.code;
    if (r.fd >= 0)
        (void)close(r.fd);
    free(r.reply.data);
    link_close(&r.link);
    wire_release_standby_request(&request);
    return status;
}

int standby_run_main(int argc, char **argv)
{
    static const struct program program = {
        .set = &options_set,
        .options_size = sizeof(struct run_options),
        .run_words = run_task,
    };

    return program_main(&program, argc, argv);
}
