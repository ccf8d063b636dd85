/*
 * sparring-worker: reads who it is and what to do, trains, exits with a code that says how it went.
 */
#include "common/base/log.h"
#include "common/base/stop.h"
#include "common/base/strbuf.h"
#include "worker/options.h"
#include "worker/train.h"

#include <stdio.h>
#include <stdlib.h>

static const char *lookup_environment(const char *name)
{
    return getenv(name);
}

static enum status run(const struct worker_options *options, const struct option_result *origins,
                       struct error *err)
{
    struct launch_flags flags = {
        .rank = options->rank,
        .world_size = options->world_size,
        .local_rank = options->local_rank,
        .standalone = options->standalone,
    };
    struct launch_env launch;
    enum log_level level;
    enum status status = worker_options_check(options, err);

    if (status == STATUS_OK)
        status = launch_env_read(&flags, lookup_environment, &launch, err);
    if (status != STATUS_OK)
        return status;
    log_open("sparring-worker", (int)launch.rank);
    if (log_level_parse(options->log_level, &level))
        log_set_level(level);
    status = stop_install(err);
    if (status == STATUS_OK)
        status = train_run(options, origins, &launch, err);
    return status;
}

int main(int argc, char **argv)
{
    struct worker_options *options = calloc(1, sizeof(*options));
    struct option_result origins = {0};
    struct error err = {0};
    enum status status;

    log_open("sparring-worker", -1);
    if (!options)
        return status_exit_code(STATUS_NO_MEMORY);
    status = option_parse(&worker_option_set, argc, argv, options, &origins, &err);
    if (status == STATUS_OK && origins.first_positional < argc)
        status =
            error_set(&err, STATUS_INVALID, "unexpected word '%s'", argv[origins.first_positional]);
    if (status == STATUS_OK && origins.print_config) {
        struct strbuf text = STRBUF_INIT;

        option_print_config(&worker_option_set, options, &origins, &text);
        (void)fputs(text.text, stdout);
        strbuf_release(&text);
    } else if (status == STATUS_OK && !origins.exit_now) {
        status = run(options, &origins, &err);
    }
    option_result_release(&origins);
    free(options);
    return status == STATUS_OK ? 0 : log_failure(&err);
}
