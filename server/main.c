/*
 * sparring-server: serves until a signal, then drains.  Exit code 0 after an orderly stop.
 *
 * Sends readiness, status and watchdog messages to a service manager (systemd).  Each watchdog
 * message follows a read of the statistics, which takes the service's lock: a server that hangs
 * with its lock held sends none.
 */
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/notify.h"
#include "common/base/stop.h"
#include "common/option/program.h"
#include "server/options.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STATUS_TICK_MS 5000  /* between two status messages */
#define STOP_MARGIN_MS 12000 /* to notify the ranks, close their calls and flush files */

static enum status write_port(const char *path, const struct endpoint *bound, struct error *err)
{
    char text[sizeof(bound->host) + 8];
    int length = endpoint_unix_path(bound)
                     ? snprintf(text, sizeof(text), "%s\n", bound->host)
                     : snprintf(text, sizeof(text), "%u\n", (unsigned)bound->port);

    return path[0] ? file_publish(path, text, (size_t)length, err) : STATUS_OK;
}

static void log_metrics(const struct service_config *config, const struct service *service)
{
    struct endpoint bound = config->metrics_listen;
    char address[300];

    bound.port = service_metrics_port(service);
    endpoint_format(&bound, address, sizeof(address));
    log_info("metrics on http://%s/metrics", address);
}

static void format_status(const struct server_stats *s, char *text, size_t size)
{
    const struct stats_job *j = &s->job;

    if (!s->has_job)
        (void)snprintf(text, size, "no job; %" PRIu64 " done, %" PRIu64 " failed", s->jobs_ok,
                       s->jobs_failed);
    else if (!j->runs)
        (void)snprintf(text, size, "job '%s' is %s: %" PRIu32 " of %" PRIu32 " ranks are in",
                       j->name, j->state, j->joined, j->world_size);
    else
        (void)snprintf(text, size, "job '%s': round %" PRIu64 ", %" PRIu32 " of %" PRIu32 " ranks",
                       j->name, j->round, j->joined, j->world_size);
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < ' ')
            *c = '?'; /* a newline would start another variable of the message */
}

/* Send the status, and a watchdog message if the manager requires them. */
static void notify_status(const struct notify *manager, struct service *service)
{
    struct server_stats *stats = NULL;
    char text[256] = "out of memory";

    if (!notify_is_enabled(manager))
        return;
    if (service_stats(service, &stats, NULL) == STATUS_OK)
        format_status(stats, text, sizeof(text));
    free(stats);
    notify_send(manager, "%sSTATUS=%s", manager->watchdog_ns > 0 ? "WATCHDOG=1\n" : "", text);
}

/* Extend the manager's deadlines: draining may take as long as a round, without watchdog
 * messages. */
static void notify_stopping(const struct notify *manager, int64_t timeout_ms)
{
    int64_t usec = (timeout_ms + STOP_MARGIN_MS) * 1000;

    notify_send(manager,
                "STOPPING=1\nSTATUS=finishing the round under way\nEXTEND_TIMEOUT_USEC=%" PRId64,
                usec);
    if (manager->watchdog_ns > 0)
        notify_send(manager, "WATCHDOG_USEC=%" PRId64, usec);
}

/* Time until the next message to the manager; -1: no limit. */
static int tick_ms(const struct notify *manager)
{
    int64_t half_ms = manager->watchdog_ns / 2000000;

    if (!notify_is_enabled(manager))
        return -1;
    if (half_ms <= 0)
        half_ms = manager->watchdog_ns > 0 ? 1 : STATUS_TICK_MS;
    return (int)(half_ms < STATUS_TICK_MS ? half_ms : STATUS_TICK_MS);
}

static void wait_for_signal(const struct notify *manager, struct service *service)
{
    struct pollfd poll_stop = {.fd = stop_fd(), .events = POLLIN};

    while (!stop_requested()) {
        notify_status(manager, service);
        if (poll(&poll_stop, 1, tick_ms(manager)) < 0 && errno != EINTR)
            return;
    }
}

/* The launcher ends servers by a signal when their job is done: log at info only if a job runs. */
static void log_stop(struct service *service)
{
    struct server_stats *stats = NULL;
    const char *name = strsignal(stop_requested());

    if (service_stats(service, &stats, NULL) != STATUS_OK || stats->has_job)
        log_info("%s: finishing the round under way", name);
    else
        log_debug("%s: no job is under way", name);
    free(stats);
}

/* Serve until a signal arrives. */
static void serve_until_signal(const struct service_config *config, struct service *service,
                               const char *address)
{
    struct notify manager;
    struct error err = {0};

    if (notify_open(&manager, &err) != STATUS_OK)
        log_warning("cannot notify the service manager: %s", err.text);
    log_info("serving on %s", address);
    if (config->show_metrics)
        log_metrics(config, service);
    notify_send(&manager, "READY=1\nSTATUS=serving on %s", address);
    wait_for_signal(&manager, service);
    log_stop(service);
    notify_stopping(&manager, config->timeout_ms);
    notify_close(&manager);
}

static enum status run_server(const void *parsed, const struct option_result *origins,
                              struct error *err)
{
    const struct server_options *options = parsed;
    struct service_config config;
    struct service *service = NULL;
    struct endpoint bound;
    char address[300];
    enum log_level level;
    enum status status;

    if (log_level_parse(options->log_level, &level))
        log_set_level(level);
    status = server_options_service(options, origins, &config, err);
    if (status == STATUS_OK)
        status = stop_install(err);
    if (status == STATUS_OK)
        status = service_open(&config, &service, err);
    if (status != STATUS_OK)
        return status;
    bound = config.listen;
    bound.port = service_port(service);
    endpoint_format(&bound, address, sizeof(address));
    status = write_port(options->port_file, &bound, err);
    if (status == STATUS_OK)
        serve_until_signal(&config, service, address);
    service_close(service);
    return status;
}

int main(int argc, char **argv)
{
    static const struct program program = {
        .set = &server_option_set,
        .options_size = sizeof(struct server_options),
        .run = run_server,
    };

    return program_main(&program, argc, argv);
}
