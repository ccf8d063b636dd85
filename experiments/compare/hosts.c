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
    const size_t given = (size_t)mode->servers;
    const bool is_colocated = strcmp(placement, "colocated") == 0;
    size_t workers, servers = is_colocated ? 0 : given;
    bool has_replicas = false;

    if (!parse_uint64(experiment_option(e, mode, "ranks-per-host"), &per_host) || per_host == 0)
        per_host = 1;
    workers = ((size_t)mode->nproc + per_host - 1) / per_host;
    (void)parse_bool(experiment_option(e, mode, "replicas"), &has_replicas);
    if (has_replicas && is_colocated) /* on hosts of their own */
        servers += given > 0 ? given : workers;
    else if (has_replicas)
        servers += given + (strcmp(placement, "mixed") == 0 && given < workers ? workers : 0);
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
