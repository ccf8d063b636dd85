/*
 * options: the options of `sparring-server` in one struct, and their table.  Called by main.
 */
#ifndef SPARRING_SERVER_OPTIONS_H
#define SPARRING_SERVER_OPTIONS_H

#include "common/option/option.h"
#include "common/rpc/security_options.h"
#include "server/service/service.h"

#include <stdbool.h>
#include <stdint.h>

struct server_options {
    char listen[OPTION_TEXT_MAX];
    char port_file[OPTION_TEXT_MAX];
    int64_t threads;
    int64_t timeout_ms;
    struct security_options security;
    bool bind_ranks;
    bool share_memory;
    bool insecure;
    char metrics_listen[OPTION_TEXT_MAX];
    char run_dir[OPTION_TEXT_MAX];
    char state_dir[OPTION_TEXT_MAX];
    int64_t snapshot_every, journal_mib;
    char log_level[OPTION_TEXT_MAX];
};

extern const struct option_set server_option_set;

/* Convert the options to the service's configuration; its texts are borrowed from o and origins.
 * STATUS_CONFIG as endpoint_parse. */
enum status server_options_service(const struct server_options *o,
                                   const struct option_result *origins, struct service_config *ret,
                                   struct error *err);

#endif
