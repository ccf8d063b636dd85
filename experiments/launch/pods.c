/*
 * pods: derives the command lines of the pods from the plan.  A worker's pod is a node of a job of
 * several nodes (--nnodes), whose number it has as PET_NODE_RANK.
 */
#include "experiments/launch/pods.h"

#include "experiments/cluster/kubernetes.h"
#include "experiments/launch/servers.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define WORKERS "workers"
#define SERVERS "servers"

struct pods {
    const struct plan *plan;
    struct kubernetes_job job;
    struct strbuf workers; /* "HOST,..." */
    struct strbuf servers; /* of those that stand alone, "HOST:PORT,..." */
};

static enum status check_plan(const struct plan *p, struct error *err)
{
    const struct plan_options *o = &p->options;
    const char *rival = o->hosts[0] != '\0'       ? "--hosts"
                        : o->state_dir[0] != '\0' ? "--state-dir"
                        : o->replicas             ? "--replicas"
                        : o->max_restarts > 0     ? "--max-restarts"
                                                  : NULL;
    const unsigned per_host = (unsigned)o->ranks_per_host;

    if (rival)
        return error_set(err, STATUS_UNSUPPORTED, "--on kubernetes and %s exclude each other",
                         rival);
    if (p->ranks > per_host && p->ranks % per_host != 0)
        return error_set(err, STATUS_INVALID,
                         "%u ranks are not the same number for each pod, with --ranks-per-host %u",
                         p->ranks, per_host);
    if (p->placement.colocated != 0 && p->placement.colocated != p->hosts.workers)
        return error_set(err, STATUS_UNSUPPORTED,
                         "%u colocated servers: with --on kubernetes each of %u pods has one",
                         p->placement.colocated, p->hosts.workers);
    if (o->run_dir[0] != '\0' && o->kubernetes.claim[0] == '\0')
        return error_set(err, STATUS_INVALID,
                         "--run-dir needs --pod-claim: what pods write elsewhere goes with them");
    return STATUS_OK;
}

static enum status add_addresses(struct pods *pods, struct error *err)
{
    const struct plan *p = pods->plan;
    const char *name = p->options.kubernetes.job_name;

    for (unsigned i = 0; i < p->hosts.workers; i++) {
        strbuf_add(&pods->workers, i > 0 ? "," : "");
        kubernetes_add_host(name, WORKERS, i, &pods->workers);
    }
    for (unsigned i = 0; i < p->placement.dedicated; i++) {
        strbuf_add(&pods->servers, i > 0 ? "," : "");
        kubernetes_add_host(name, SERVERS, i, &pods->servers);
        strbuf_addf(&pods->servers, ":%jd", (intmax_t)p->options.server_port);
    }
    if (!strbuf_ok(&pods->workers) || !strbuf_ok(&pods->servers))
        return error_set(err, STATUS_NO_MEMORY, "no memory for the names of pods");
    if ((p->placement.colocated > 0 && pods->workers.length >= OPTION_TEXT_MAX) ||
        pods->servers.length >= OPTION_TEXT_MAX)
        return error_set(err, STATUS_UNSUPPORTED,
                         "the addresses of the servers take more than %d bytes; a shorter "
                         "--job-name helps",
                         OPTION_TEXT_MAX - 1);
    return STATUS_OK;
}

static void add_text_option(struct text_list *words, const char *name, const char *value)
{
    if (value[0] != '\0')
        text_list_addf(words, "--%s=%s", name, value);
}

static void add_server_words(const struct pods *pods, struct text_list *words)
{
    const struct plan *p = pods->plan;

    add_text_option(words, "server-addresses", pods->servers.text);
    if (p->placement.colocated == 0)
        return;
    text_list_addf(words, "--server-placement=%s", p->options.server_placement);
    text_list_addf(words, "--server-port=%jd", (intmax_t)p->options.server_port);
    if (p->hosts.workers > 1)
        text_list_addf(words, "--node-addresses=%s", pods->workers.text);
    else
        text_list_addf(words, "--servers=1");
}

static struct kubernetes_pods make_workers(const struct pods *pods)
{
    const struct plan *p = pods->plan;
    const struct plan_options *o = &p->options;
    struct kubernetes_pods made = {
        .name = WORKERS, .count = p->hosts.workers, .has_host = true, .is_awaited = true};
    struct text_list *words = &made.words;

    text_list_addf(words, "sparring");
    text_list_addf(words, "launch");
    text_list_addf(words, "--nnodes=%u", p->hosts.workers);
    text_list_addf(words, "--nproc-per-node=%u", p->ranks / p->hosts.workers);
    text_list_addf(words, "--master-addr=%.*s", (int)strcspn(pods->workers.text, ","),
                   pods->workers.text);
    text_list_addf(words, "--master-port=%u", p->master_port);
    add_server_words(pods, words);
    add_text_option(words, "run-dir", o->run_dir);
    add_text_option(words, "backend", o->backend);
    add_text_option(words, "interface", o->interface);
    text_list_addf(words, "--timeout-ms=%jd", (intmax_t)o->timeout_ms);
    text_list_addf(words, "--start-timeout-ms=%jd", (intmax_t)o->start_timeout_ms);
    text_list_addf(words, "--grace-ms=%jd", (intmax_t)o->grace_ms);
    if (o->tee)
        text_list_addf(words, "--tee");
    text_list_addf(words, "--");
    for (char *const *word = p->program; *word; word++)
        text_list_addf(words, "%s", *word);
    return made;
}

static struct kubernetes_pods make_servers(const struct pods *pods)
{
    const struct plan *p = pods->plan;
    struct kubernetes_pods made = {.name = SERVERS,
                                   .count = p->placement.dedicated,
                                   .port = (uint16_t)p->options.server_port,
                                   .has_health = true,
                                   .has_host = true};
    char listen[32];

    (void)snprintf(listen, sizeof(listen), "0.0.0.0:%jd", (intmax_t)p->options.server_port);
    servers_add_words("sparring-server", listen, p->options.run_dir, &made.words);
    return made;
}

enum status pods_print(const struct plan *plan, struct error *err)
{
    struct pods pods = {.plan = plan,
                        .job = {.options = &plan->options.kubernetes, .on = plan->options.on},
                        .workers = STRBUF_INIT,
                        .servers = STRBUF_INIT};
    struct strbuf text = STRBUF_INIT;
    enum status status = check_plan(plan, err);

    if (status == STATUS_OK)
        status = add_addresses(&pods, err);
    if (status == STATUS_OK && plan->placement.dedicated > 0)
        pods.job.pods[pods.job.length++] = make_servers(&pods);
    if (status == STATUS_OK)
        pods.job.pods[pods.job.length++] = make_workers(&pods);
    if (status == STATUS_OK)
        status = kubernetes_add_manifests(&pods.job, &text, err);
    if (status == STATUS_OK && (fputs(text.text, stdout) == EOF || fflush(stdout) != 0))
        status = error_set_errno(err, errno, "cannot write standard output");
    strbuf_release(&text);
    strbuf_release(&pods.workers);
    strbuf_release(&pods.servers);
    kubernetes_release(&pods.job);
    return status;
}
