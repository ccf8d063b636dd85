/*
 * hold: `sparring standby hold`, the allocation of an experiment: a call without a program to each
 * daemon for as long as a command runs, so that nobody else's task comes between its runs.
 */
#include "experiments/standby/standby.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/base/parse.h"
#include "common/base/stop.h"
#include "common/option/program.h"
#include "common/rpc/security_options.h"
#include "experiments/standby/link.h"
#include "experiments/subprocess/subprocess.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct hold_options {
    char hosts[OPTION_TEXT_MAX];
    char holder[OPTION_TEXT_MAX];
    struct security_options security;
};

#define AT(field) offsetof(struct hold_options, field)

static const struct option_spec specs[] = {
    {.name = "hosts",
     .kind = OPTION_TEXT,
     .offset = AT(hosts),
     .metavar = "H[:P],...",
     .help = "The daemons; port " STANDBY_PORT " by default."},
    {.name = "holder",
     .kind = OPTION_TEXT,
     .offset = AT(holder),
     .metavar = "NAME",
     .help = "Who uses them, for those who find them busy."},
    {0},
};

static const struct option_set options_set = {
    .program = "sparring standby hold",
    .summary = "Hold the hosts of standby daemons while a command runs, which has "
               "SPARRING_STANDBY_HOLDER in its environment.  `compare --on standby:...` does so.",
    .usage = "--hosts H:P,... --holder NAME -- COMMAND [ARG]...",
    .tables = {{specs, 0}, {security_specs, .base = AT(security)}},
};

struct hold {
    struct link *links; /* owned */
    struct pollfd *fds; /* owned; of the links, then of the command and of stops */
    size_t length;
    struct subprocess_child command;
};

/* Signs of life, and news: a daemon that is lost is not an end, the runs there will fail. */
static enum status look_after(struct hold *h, bool is_opening, struct error *err)
{
    struct standby_reply reply;
    struct error why = {0};

    for (size_t i = 0; i < h->length; i++) {
        if (h->fds[i].fd < 0)
            continue;
        link_tell(&h->links[i], false);
        if (link_take(&h->links[i], &reply, &why) == STATUS_OK) {
            free(reply.data);
            continue;
        }
        if (is_opening)
            return error_set(err, why.status, "%s", why.text);
        log_warning("%s; its host is not held any more", why.text);
        h->fds[i].fd = -1;
    }
    return STATUS_OK;
}

static enum status wait_once(struct hold *h, struct error *err)
{
    if (poll(h->fds, h->length + 2, (int)(STANDBY_BEAT_NS / 2000000)) < 0 && errno != EINTR)
        return error_set_errno(err, errno, "cannot wait for standby daemons");
    return STATUS_OK;
}

static enum status open_links(struct hold *h, const struct hold_options *o, struct error *err)
{
    const struct rpc_security security = security_options_read(&o->security, false);
    struct standby_request request = {0};
    bool all = false;
    enum status status = STATUS_OK;

    if (strlen(o->holder) >= sizeof(request.holder))
        return error_set(err, STATUS_INVALID, "--holder is too long");
    (void)snprintf(request.holder, sizeof(request.holder), "%s", o->holder);
    for (const char *host = o->hosts; *host && status == STATUS_OK;) {
        char address[300];

        host = parse_list_next(host, address, sizeof(address));
        status = link_open(&h->links[h->length], address, &security, &request, err);
        h->fds[h->length] = (struct pollfd){.fd = h->links[h->length].wake_fd, .events = POLLIN};
        h->length++;
    }
    h->fds[h->length] = (struct pollfd){.fd = -1};
    h->fds[h->length + 1] = (struct pollfd){.fd = stop_fd(), .events = POLLIN};
    while (status == STATUS_OK && !all) {
        all = true;
        for (size_t i = 0; i < h->length; i++)
            all = all && link_is_accepted(&h->links[i]);
        if (!all)
            status = wait_once(h, err);
        if (status == STATUS_OK)
            status = look_after(h, true, err);
        if (status == STATUS_OK && stop_requested())
            status = error_set(err, STATUS_CANCELLED, "stopped before the hosts were there");
    }
    return status;
}

/* The command's exit code, as a shell has it. */
static enum status wait_for_command(struct hold *h, int *ret_exit_code, struct error *err)
{
    enum status status = STATUS_OK;

    while (status == STATUS_OK && !subprocess_has_ended(&h->command, ret_exit_code)) {
        status = wait_once(h, err);
        if (status == STATUS_OK)
            status = look_after(h, false, err);
        if (stop_requested() && h->fds[h->length + 1].fd >= 0) {
            subprocess_pass_on(&h->command, stop_requested());
            h->fds[h->length + 1].fd = -1;
        }
    }
    return status;
}

static enum status run_hold(const void *parsed, const char *const *words, size_t count,
                            int *ret_exit_code, struct error *err)
{
    const struct hold_options *o = parsed;
    struct hold h = {0};
    const size_t hosts = parse_list_length(o->hosts);
    enum status status;

    if (count == 0 || o->hosts[0] == '\0' || o->holder[0] == '\0')
        return error_set(err, STATUS_INVALID, "it takes --hosts, --holder and a command");
    status = mem_calloc(hosts, sizeof(*h.links), "links", &h.links, err);
    if (status == STATUS_OK)
        status = mem_calloc(hosts + 2, sizeof(*h.fds), "links", &h.fds, err);
    if (status == STATUS_OK)
        status = stop_install(err);
    if (status == STATUS_OK)
        status = open_links(&h, o, err);
    if (status == STATUS_OK && setenv("SPARRING_STANDBY_HOLDER", o->holder, 1) != 0)
        status = error_set_errno(err, errno, "cannot set SPARRING_STANDBY_HOLDER");
    if (status == STATUS_OK)
        status = subprocess_start(words, &h.command, err);
    if (status == STATUS_OK) {
        h.fds[h.length] = (struct pollfd){.fd = h.command.fd, .events = POLLIN};
        status = wait_for_command(&h, ret_exit_code, err);
    }
    for (size_t i = 0; i < h.length; i++)
        link_close(&h.links[i]);
    free(h.links);
    free(h.fds);
    return status;
}

int standby_hold_main(int argc, char **argv)
{
    static const struct program program = {
        .set = &options_set,
        .options_size = sizeof(struct hold_options),
        .run_words = run_hold,
    };

    return program_main(&program, argc, argv);
}
