/*
 * role: reads TF_CONFIG and the numbers of DMLC_*, and becomes the server of a TFJob.
 */
#include "experiments/launch/role.h"

#include "common/base/net.h"
#include "common/base/parse.h"
#include "common/base/strbuf.h"
#include "common/base/text_list.h"
#include "experiments/cluster/engine.h"
#include "experiments/launch/plan.h"
#include "experiments/launch/servers.h"
#include "experiments/subprocess/subprocess.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- TF_CONFIG */

static enum status set_variable(const char *name, const char *value, bool overwrite,
                                struct error *err)
{
    return setenv(name, value, overwrite) == 0 ? STATUS_OK
                                               : error_set_errno(err, errno, "cannot set %s", name);
}

/* Append the addresses of these tasks; *ret_count grows. */
static enum status add_addresses(const json_t *cluster, const char *type, struct strbuf *list,
                                 size_t *ret_count, struct error *err)
{
    const json_t *addresses = json_object_get(cluster, type);
    size_t i;
    const json_t *address;

    json_array_foreach(addresses, i, address)
    {
        struct endpoint endpoint;
        const char *text = json_string_value(address);
        enum status status = endpoint_parse(text ? text : "", "TF_CONFIG", &endpoint, err);

        if (status != STATUS_OK)
            return status;
        strbuf_addf(list, "%s%s", list->length > 0 ? "," : "", text);
    }
    *ret_count += json_array_size(addresses);
    return STATUS_OK;
}

/* Become node `index` of those whose first is at `master`. */
static enum status set_node(size_t index, size_t count, const struct endpoint *master,
                            const char *servers, struct error *err)
{
    char number[24];
    enum status status;

    (void)snprintf(number, sizeof(number), "%zu", count);
    status = set_variable("PET_NNODES", number, false, err);
    (void)snprintf(number, sizeof(number), "%zu", index);
    if (status == STATUS_OK)
        status = set_variable("PET_NODE_RANK", number, false, err);
    (void)snprintf(number, sizeof(number), "%u", master->port);
    if (status == STATUS_OK)
        status = set_variable("PET_MASTER_PORT", number, false, err);
    if (status == STATUS_OK)
        status = set_variable("PET_MASTER_ADDR", master->host, false, err);
    if (status == STATUS_OK && servers[0] != '\0')
        status = set_variable("SPARRING_SERVERS", servers, true, err);
    return status;
}

static enum status read_task(const json_t *cluster, const char *type, size_t index,
                             struct role *ret, struct error *err)
{
    static const char *const ranks[] = {"chief", "master", "worker"};
    struct strbuf nodes = STRBUF_INIT, servers = STRBUF_INIT;
    struct endpoint endpoint = {.port = 0};
    size_t node_count = 0, server_count = 0, node = SIZE_MAX;
    const bool is_server = strcmp(type, "ps") == 0;
    enum status status = add_addresses(cluster, "ps", &servers, &server_count, err);

    for (size_t i = 0; i < sizeof(ranks) / sizeof(ranks[0]) && status == STATUS_OK; i++) {
        if (strcmp(type, ranks[i]) == 0)
            node = node_count + index;
        status = add_addresses(cluster, ranks[i], &nodes, &node_count, err);
    }
    if (status == STATUS_OK && (index >= json_array_size(json_object_get(cluster, type)) ||
                                (!is_server && node == SIZE_MAX)))
        status = error_set(err, STATUS_CONFIG, "TF_CONFIG: the cluster has no %s %zu", type, index);
    if (status == STATUS_OK && (!strbuf_ok(&nodes) || !strbuf_ok(&servers)))
        status = error_set(err, STATUS_NO_MEMORY, "no memory for TF_CONFIG");
    if (status == STATUS_OK && is_server) {
        const char *own = json_string_value(json_array_get(json_object_get(cluster, "ps"), index));

        status = endpoint_parse(own, "TF_CONFIG", &endpoint, err);
        ret->kind = ROLE_PS;
        (void)snprintf(ret->listen, sizeof(ret->listen), "%s:%u",
                       endpoint_is_loopback(&endpoint) ? "127.0.0.1" : "0.0.0.0", endpoint.port);
    } else if (status == STATUS_OK) {
        nodes.text[strcspn(nodes.text, ",")] = '\0';
        status = endpoint_parse(nodes.text, "TF_CONFIG", &endpoint, err);
        if (status == STATUS_OK)
            status = set_node(node, node_count, &endpoint, servers.text, err);
    }
    strbuf_release(&nodes);
    strbuf_release(&servers);
    return status;
}

static enum status read_tf_config(const char *text, struct role *ret, struct error *err)
{
    json_error_t problem;
    json_t *config = json_loads(text, 0, &problem);
    const json_t *cluster = json_object_get(config, "cluster");
    const json_t *task = json_object_get(config, "task");
    const char *type = json_string_value(json_object_get(task, "type"));
    const json_int_t index = json_integer_value(json_object_get(task, "index"));
    enum status status = STATUS_OK;

    if (!config)
        status = error_set(err, STATUS_CONFIG, "TF_CONFIG is not JSON: line %d: %s", problem.line,
                           problem.text);
    else if (json_object_size(cluster) > 0 && (!type || index < 0))
        status = error_set(err, STATUS_CONFIG, "TF_CONFIG has no task with a type and an index");
    else if (json_object_size(cluster) > 0) /* without one it is a process alone */
        status = read_task(cluster, type, (size_t)index, ret, err);
    json_decref(config);
    return status;
}

/* ---- DMLC_* */

static enum status read_number(const char *name, int64_t lowest, int64_t *ret, struct error *err)
{
    const char *text = getenv(name);

    if (!text || !parse_int64(text, ret) || *ret < lowest || *ret > INT_MAX)
        return error_set(err, STATUS_CONFIG,
                         "DMLC_ROLE is set, and %s is '%s', not a number from %jd", name,
                         text ? text : "", (intmax_t)lowest);
    return STATUS_OK;
}

static enum status read_dmlc(const char *name, struct role *ret, struct error *err)
{
    const char *host = getenv("DMLC_PS_ROOT_URI");
    int64_t workers = 0, servers = 0, port = 0;
    enum status status = read_number("DMLC_NUM_WORKER", 1, &workers, err);

    if (status == STATUS_OK && getenv("DMLC_NUM_SERVER"))
        status = read_number("DMLC_NUM_SERVER", 0, &servers, err);
    if (status != STATUS_OK)
        return status;
    ret->worker_id = -1;
    if (strcmp(name, "scheduler") == 0)
        ret->kind = ROLE_SCHEDULER;
    else if (strcmp(name, "server") == 0)
        ret->kind = ROLE_SERVER;
    else if (strcmp(name, "worker") == 0)
        ret->kind = ROLE_WORKER;
    else
        return error_set(err, STATUS_CONFIG,
                         "DMLC_ROLE is '%s', neither scheduler nor server nor worker", name);
    if (ret->kind == ROLE_WORKER && workers == 1 && servers == 0 && !host) {
        ret->kind = ROLE_NONE; /* BytePS on one host */
        return STATUS_OK;
    }
    if (!host || host[0] == '\0')
        return error_set(err, STATUS_CONFIG, "DMLC_ROLE is set, and DMLC_PS_ROOT_URI is not");
    status = read_number("DMLC_PS_ROOT_PORT", 1, &port, err);
    if (status == STATUS_OK && ret->kind == ROLE_WORKER && getenv("DMLC_WORKER_ID"))
        status = read_number("DMLC_WORKER_ID", 0, &ret->worker_id, err);
    if (status == STATUS_OK && ret->worker_id >= workers)
        status = error_set(err, STATUS_CONFIG, "DMLC_WORKER_ID is %jd, and DMLC_NUM_WORKER %jd",
                           (intmax_t)ret->worker_id, (intmax_t)workers);
    ret->workers = (unsigned)workers;
    ret->servers = (unsigned)servers;
    (void)snprintf(ret->scheduler, sizeof(ret->scheduler),
                   strchr(host, ':') ? "[%.250s]:%jd" : "%.250s:%jd", host, (intmax_t)port);
    return status;
}

/* ---- */

enum status role_read(struct role *ret, struct error *err)
{
    const char *dmlc = getenv("DMLC_ROLE");
    const char *tensorflow = getenv("TF_CONFIG");

    *ret = (struct role){.kind = ROLE_NONE};
    if (dmlc && dmlc[0] != '\0')
        return read_dmlc(dmlc, ret, err);
    if (tensorflow && tensorflow[0] != '\0')
        return read_tf_config(tensorflow, ret, err);
    return STATUS_OK;
}

enum status role_run(const struct role *role, const struct plan_options *options, char *const *argv,
                     int *ret_exit_code, struct error *err)
{
    char folder[4096], program[4400];
    struct text_list words = {0};
    enum status status;

    if (role->kind != ROLE_PS)
        return role_run_dmlc(role, options, argv, ret_exit_code, err);
    status = subprocess_program_folder(folder, sizeof(folder), err);
    if (status != STATUS_OK)
        return status;
    (void)snprintf(program, sizeof(program), "%s/sparring-server", folder);
    servers_add_words(program, role->listen, options->run_dir, &words);
    return engine_exec(&words, err);
}
