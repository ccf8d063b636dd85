/*
 * stats: one call of sparring.v1.ParameterServer/Stats; prints the reply as JSON.
 */
#include "experiments/stats/stats.h"

#include "common/base/clock.h"
#include "common/base/net.h"
#include "common/option/program.h"
#include "common/rpc/security_options.h"
#include "common/wire/wire_stats.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#define STATS_PATH "/sparring.v1.ParameterServer/Stats"

struct stats_options {
    char server[OPTION_TEXT_MAX];
    int64_t timeout_ms;
    struct security_options security;
};

#define AT(field) offsetof(struct stats_options, field)

static const struct option_spec specs[] = {
    {.name = "server",
     .kind = OPTION_TEXT,
     .offset = AT(server),
     .default_text = "127.0.0.1:5757",
     .metavar = "H:P",
     .help = "The server, or unix:/path."},
    {.name = "timeout-ms",
     .kind = OPTION_INT,
     .offset = AT(timeout_ms),
     .default_text = "5000",
     .min = 1,
     .max = 86400000,
     .metavar = "N",
     .help = "How long to wait for it and for its answer."},
    {0},
};

static const struct option_set options_set = {
    .program = "sparring stats",
    .summary = "Print what a running parameter server says of itself as JSON: what it has counted, "
               "the job it serves and how far each rank lags.",
    .usage = "[OPTION]...",
    .tables = {{specs, 0}, {security_specs, .base = AT(security)}},
};

static enum status print_stats(const uint8_t *reply, size_t size, struct error *err)
{
    struct strbuf out = STRBUF_INIT;
    enum status status = wire_stats_to_json(reply, size, &out, err);

    if (status == STATUS_OK && (fputs(out.text, stdout) == EOF || fflush(stdout) != 0))
        status = error_set_errno(err, errno, "cannot write standard output");
    strbuf_release(&out);
    return status;
}

static enum status run_stats(const void *parsed, const struct option_result *origins,
                             struct error *err)
{
    const struct stats_options *o = parsed;
    struct rpc_client_config config = {.security = security_options_read(&o->security, false)};
    struct rpc_client *client = NULL;
    uint8_t *reply = NULL;
    size_t size = 0;
    enum status status = endpoint_parse(
        o->server, option_origin_text(&options_set, origins, "server"), &config.target, err);

    if (status == STATUS_OK)
        status = rpc_client_open(&config, &client, err);
    if (status == STATUS_OK)
        status = rpc_client_unary(client, STATS_PATH, (const uint8_t *)"", 0,
                                  clock_deadline_ns(o->timeout_ms), &reply, &size, err);
    if (status == STATUS_OK)
        status = print_stats(reply, size, err);
    free(reply);
    rpc_client_close(client);
    return status;
}

int stats_main(int argc, char **argv)
{
    static const struct program program = {
        .set = &options_set,
        .options_size = sizeof(struct stats_options),
        .run = run_stats,
    };

    return program_main(&program, argc, argv);
}
