/*
 * sparring-server: serves until a signal, then drains.  Exit code 0 after an orderly stop.
 */
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/stop.h"
#include "common/option/program.h"
#include "server/options.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

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

static void wait_for_signal(void)
{
    struct pollfd poll_stop = {.fd = stop_fd(), .events = POLLIN};

    while (!stop_requested())
        if (poll(&poll_stop, 1, -1) < 0 && errno != EINTR)
            return;
}

static enum status run(const void *parsed, const struct option_result *origins, struct error *err)
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
    if (status == STATUS_OK) {
        log_info("serving on %s", address);
        if (config.show_metrics)
            log_metrics(&config, service);
        wait_for_signal();
        log_info("%s: finishing the round under way", strsignal(stop_requested()));
    }
    service_close(service);
    return status;
}

int main(int argc, char **argv)
{
    static const struct program program = {
        .set = &server_option_set,
        .options_size = sizeof(struct server_options),
        .run = run,
    };

    return program_main(&program, argc, argv);
}
