/*
 * hosts: counts, and a permutation.  Pure.
 */
#include "experiments/compare/hosts.h"

#include "common/base/memory.h"
#include "common/base/parse.h"
#include "common/base/random.h"

#include <stdlib.h>
#include <string.h>

size_t hosts_of_mode(const struct experiment *e, const struct experiment_mode *mode)
{
    const char *placement = experiment_option(e, mode, "server-placement");
    uint64_t per_host = 1;
    size_t workers, servers = strcmp(placement, "colocated") == 0 ? 0 : (size_t)mode->servers;

    if (!parse_uint64(experiment_option(e, mode, "ranks-per-host"), &per_host) || per_host == 0)
        per_host = 1;
    workers = ((size_t)mode->nproc + per_host - 1) / per_host;
    if (strcmp(experiment_option(e, mode, "replicas"), "true") == 0)
        servers += strcmp(placement, "dedicated") == 0 || placement[0] == '\0' ? servers
                                                                               : servers + workers;
    return workers + servers;
}

size_t hosts_needed(const struct experiment *e)
{
    size_t most = 0;

    for (size_t m = 0; m < e->mode_count; m++) {
        const size_t count = hosts_of_mode(e, &e->modes[m]);

        most = count > most ? count : most;
    }
    return most;
}

void hosts_draw(const struct experiment *e, const struct text_list *hosts, size_t block,
                size_t count, struct strbuf *text)
{
    struct random random;
    int64_t *order = NULL;

    if (mem_calloc(hosts->length, sizeof(*order), "an order", &order, NULL) != STATUS_OK) {
        text->failed = true;
        return;
    }
    random_seed(&random, (uint64_t)e->seed * 1000211 + block);
    random_permutation(&random, order, hosts->length);
    for (size_t i = 0; i < count && i < hosts->length; i++)
        strbuf_addf(text, "%s%s", i > 0 ? "," : "", hosts->texts[order[i]]);
    free(order);
}
