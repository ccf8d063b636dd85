/*
 * sparring-worker: one rank of a job.  Reads the options and the launcher's environment, starts the
 * log, the signal handlers and the monitor of blocking waits, trains, and exits with the code of
 * the final status.
 */
#include "common/base/log.h"
#include "common/base/stop.h"
#include "common/base/wait.h"
#include "common/option/program.h"
#include "worker/options/options.h"
#include "worker/train/train.h"

#include <stdlib.h>

static const char *lookup_environment(const char *name)
{
    return getenv(name);
}

static enum status run_worker(const void *parsed, const struct option_result *origins,
                              struct error *err)
{
    const struct worker_options *options = parsed;
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
        status = wait_monitor_start(err);
    if (status == STATUS_OK)
        status = train_run(options, origins, &launch, err);
    wait_monitor_stop();
    return status;
}

int main(int argc, char **argv)
{
    static const struct program program = {
        .set = &worker_option_set,
        .options_size = sizeof(struct worker_options),
        .run = run_worker,
    };

    return program_main(&program, argc, argv);
}
