/*
 * ps_open: from a list of addresses to joined servers with open streams.
 */
#include "common/base/clock.h"
#include "common/base/memory.h"
#include "worker/sync/ps.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "host:port,host:port" into links. */
static enum status parse_servers(struct sync_ps *s, const struct sync_config *config,
                                 struct error *err)
{
    const char *origin = config->servers_origin ? config->servers_origin : "servers";
    const char *text = config->servers ? config->servers : "";
    unsigned count = 1;
    enum status status;

    for (const char *c = text; *c; c++)
        count += *c == ',';
    status = mem_calloc(count, sizeof(*s->links), "server connections", &s->links, err);
    if (status == STATUS_OK)
        s->link_count = count;
    for (unsigned k = 0; status == STATUS_OK && k < s->link_count; k++) {
        struct ps_link *l = &s->links[k];
        size_t length = strcspn(text, ",");
        char entry[320];

        (void)snprintf(entry, sizeof(entry), "%.*s", (int)(length < 300 ? length : 300), text);
        status = endpoint_parse(entry, origin, &l->server, err);
        for (unsigned other = 0; status == STATUS_OK && other < k; other++)
            if (s->links[other].server.port == l->server.port &&
                strcmp(s->links[other].server.host, l->server.host) == 0)
                status = error_set(err, STATUS_CONFIG, "%s: '%s' is there twice", origin, entry);
        (void)snprintf(l->name, sizeof(l->name), "parameter server %.300s (%.60s)", entry, origin);
        l->rank = s->rank;
        l->take = ps_take_chunk;
        l->ended = ps_link_ended;
        l->user = s;
        text += length + (text[length] == ',');
    }
    return status;
}

/* The server cuts and places as we do. */
static enum status check_reply(const struct sync_ps *s, unsigned k, const struct join_reply *reply,
                               struct error *err)
{
    const uint32_t *partitions;
    size_t held = shard_map_held(&s->map, k, &partitions);

    if (reply->partition_count != s->map.length ||
        reply->element_count != s->map.server_elements[k] || reply->held != held ||
        memcmp(reply->partitions, partitions, held * sizeof(*partitions)) != 0)
        return error_set(err, STATUS_MISMATCH,
                         "rank %u, %s: it holds %zu of %" PRIu32
                         " partitions, this worker expects %zu of %zu (the server's version is %s)",
                         s->rank, s->links[k].name, reply->held, reply->partition_count, held,
                         s->map.length, reply->version);
    return STATUS_OK;
}

static enum status join(struct sync_ps *s, unsigned k, const struct sync_config *config,
                        int64_t deadline_ns, struct error *err)
{
    struct join_request request = {
        .rank = s->rank,
        .world_size = s->world_size,
        .server_index = k,
        .server_count = s->link_count,
        .element_count = s->count,
        .partition_bytes = config->partition_bytes,
        .update = config->update_on_server ? 0 : 1,
        .order = config->order == REDUCE_REPRODUCIBLE ? 1 : 0,
        .optimizer = config->optimizer,
        .consistency = config->consistency,
        .rules = config->rules,
        .rule_count = config->rule_count,
        .weights = s->weights,
        .weight_count = s->weights ? s->link_count : 0,
    };
    char no_manifest[1] = "";
    struct join_reply reply = {0};
    enum status status =
        mem_strdup(config->manifest ? config->manifest : no_manifest, &request.manifest, err);

    if (status != STATUS_OK)
        return status;
    memcpy(request.job, s->job, sizeof(request.job));
    status = ps_link_join(&s->links[k], &request, deadline_ns, &reply, err);
    if (status == STATUS_OK)
        status = check_reply(s, k, &reply, err);
    wire_release_join_reply(&reply);
    free(request.manifest);
    return status;
}

/* Every rank joins the servers in the same order, so the waits cannot cross. */
static enum status open_links(struct sync_ps *s, const struct sync_config *config,
                              struct error *err)
{
    int64_t deadline_ns = clock_deadline_ns(s->timeout_ms);
    enum status status = STATUS_OK;

    for (unsigned k = 0; status == STATUS_OK && k < s->link_count; k++) {
        if (s->map.server_elements[k] == 0)
            continue; /* more servers than partitions: nothing to say to this one */
        status = ps_link_open(&s->links[k], &config->security, err);
        if (status == STATUS_OK)
            status = join(s, k, config, deadline_ns, err);
    }
    for (unsigned k = 0; status == STATUS_OK && k < s->link_count; k++)
        if (s->links[k].joined)
            status = ps_link_start(&s->links[k], err);
    return status;
}

static enum status place(struct sync_ps *s, const struct sync_config *config, struct error *err)
{
    enum status status = STATUS_OK;

    if (config->server_weights) {
        status =
            mem_calloc(s->link_count, sizeof(*s->weights), "weights of servers", &s->weights, err);
        if (status != STATUS_OK)
            return status;
        memcpy(s->weights, config->server_weights, s->link_count * sizeof(*s->weights));
    }
    return shard_map_make_weighted(s->count, config->partition_bytes, s->link_count, s->weights,
                                   &s->map, err);
}

static enum status open_parts(struct sync_ps *s, const struct sync_config *config,
                              struct error *err)
{
    const char *job = config->job ? config->job : "default";
    enum status status = parse_servers(s, config, err);

    if (status != STATUS_OK)
        return status;
    if (strlen(job) >= sizeof(s->job))
        return error_set(err, STATUS_CONFIG, "the job's name has %zu characters, %zu are allowed",
                         strlen(job), sizeof(s->job) - 1);
    (void)snprintf(s->job, sizeof(s->job), "%s", job);
    status = place(s, config, err);
    if (status == STATUS_OK)
        status = mem_calloc(s->map.length, sizeof(*s->answered), "partitions", &s->answered, err);
    if (status == STATUS_OK)
        status = open_links(s, config, err);
    return status;
}

enum status ps_open(const struct sync_config *config, struct sync **ret_sync, struct error *err)
{
    struct sync_ps *s;
    pthread_condattr_t attributes;
    struct error failure = {0};
    enum status status = mem_calloc(1, sizeof(*s), "ps sync", &s, err);

    if (status != STATUS_OK)
        return status;
    s->base.ops = &sync_ps_ops;
    s->base.yields = config->update_on_server ? SYNC_YIELDS_PARAMETERS : SYNC_YIELDS_GRADIENTS;
    s->params = config->params;
    s->grads = config->grads;
    s->count = config->table->count;
    s->consistency = config->consistency;
    s->scale = (float)(1.0 / consistency_divisor(&s->consistency, config->world_size));
    s->rank = config->rank;
    s->world_size = config->world_size;
    s->timeout_ms = config->timeout_ms;
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&s->changed, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    (void)pthread_mutex_init(&s->lock, NULL);
    status = open_parts(s, config, &failure);
    if (status != STATUS_OK) {
        ps_close(&s->base, &failure);
        return error_set(err, status, "%s", failure.text);
    }
    *ret_sync = &s->base;
    return STATUS_OK;
}
