/*
 * job: a value is taken for a path if it has a '/', whichever option it belongs to, so no option is
 * forgotten.
 */
#include "experiments/standby/job.h"

#include "experiments/cluster/engine.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool begins_with(const char *text, const char *const *beginnings)
{
    for (; *beginnings; beginnings++)
        if (strncmp(text, *beginnings, strlen(*beginnings)) == 0)
            return true;
    return false;
}

bool job_takes_variable(const char *variable)
{
    static const char *const taken[] = {"SPARRING_",
                                        "MASTER_",
                                        "RANK=",
                                        "WORLD_SIZE=",
                                        "LOCAL_RANK=",
                                        "GROUP_RANK=",
                                        "LOCAL_WORLD_SIZE=",
                                        "GROUP_WORLD_SIZE=",
                                        "NCCL_",
                                        "GLOO_",
                                        "OMP_",
                                        "GOMP_",
                                        "KMP_",
                                        "DNNL_",
                                        "ONEDNN_",
                                        "CUDA_VISIBLE_",
                                        "ASAN_",
                                        "TSAN_",
                                        "UBSAN_",
                                        NULL};
    static const char *const refused[] = {"SPARRING_TLS_",
                                          "SPARRING_TOKEN_",
                                          "SPARRING_STANDBY_",
                                          "SPARRING_PROGRAMS=",
                                          "SPARRING_CUDA_MODULE=",
                                          "SPARRING_MPI_MODULE=",
                                          NULL};

    return strchr(variable, '=') && begins_with(variable, taken) && !begins_with(variable, refused);
}

/* Without symbolic links; of a file that does not exist yet, its folder's. */
static bool resolve(const char *path, char *resolved)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');

    if (realpath(path, resolved))
        return true;
    (void)snprintf(folder, sizeof(folder), "%.*s", slash == path ? 1 : (int)(slash - path), path);
    return slash[1] != '\0' && strlen(path) < sizeof(folder) && realpath(folder, resolved);
}

static bool is_below(const char *path, const struct text_list *folders)
{
    char resolved[PATH_MAX];

    if (!resolve(path, resolved))
        return false;
    for (size_t i = 0; i < folders->length; i++) {
        const size_t length = strlen(folders->texts[i]);

        if (strncmp(resolved, folders->texts[i], length) == 0 &&
            (resolved[length] == '\0' || resolved[length] == '/'))
            return true;
    }
    return false;
}

static enum status check_value(const char *text, const struct text_list *folders, struct error *err)
{
    static const char address[] = "tcp://";
    const char *slash = strchr(text, '/');

    if (strstr(text, ".."))
        return error_set(err, STATUS_DENIED, "'%s': a value with '..' is not accepted", text);
    if (!slash || (strncmp(text, address, sizeof(address) - 1) == 0 &&
                   !strchr(text + sizeof(address) - 1, '/')))
        return STATUS_OK;
    if (slash != text && !strchr(":=", slash[-1]))
        return error_set(err, STATUS_DENIED, "'%s': a relative path means nothing on another host",
                         text);
    if (!is_below(slash, folders))
        return error_set(err, STATUS_DENIED,
                         "'%s' is not in a folder that the daemon's --allow-dir names, or does "
                         "not exist",
                         text);
    return STATUS_OK;
}

/* Options that would replace the daemon's own keys, with dashes or underscores, or whose file sets
 * options that were not checked. */
static enum status check_option(const char *word, struct error *err)
{
    char name[16];

    (void)snprintf(name, sizeof(name), "%s", word);
    for (char *c = name; *c; c++)
        *c = *c == '_' ? '-' : *c;
    if (strncmp(name, "--tls-", 6) == 0 || strncmp(name, "--token-file", 12) == 0)
        return error_set(err, STATUS_DENIED, "'%s': a task has the daemon's keys", word);
    if (strncmp(name, "--config", 8) == 0)
        return error_set(err, STATUS_DENIED, "'%s': a task's options have to be in its words",
                         word);
    return STATUS_OK;
}

/* The variables of libraries name libraries to load, too (NCCL_NET_PLUGIN, OMP_TOOL_LIBRARIES). */
static enum status check_variable(const char *variable, struct error *err)
{
    if (!job_takes_variable(variable))
        return error_set(err, STATUS_DENIED, "the variable '%s' is not a job's", variable);
    if (strncmp(variable, "SPARRING_", 9) != 0 && strchr(variable, '/'))
        return error_set(err, STATUS_DENIED, "'%s': a library's variable must not hold a path",
                         variable);
    return STATUS_OK;
}

enum status job_check(const struct standby_request *r, const struct text_list *folders,
                      struct error *err)
{
    enum status status = STATUS_OK;

    if (r->holder[0] == '\0')
        return error_set(err, STATUS_DENIED, "the client does not say who it is");
    if (r->program[0] != '\0' && strcmp(r->program, ENGINE_PROBE) != 0 &&
        strcmp(r->program, "sparring-worker") != 0 && strcmp(r->program, "sparring-server") != 0)
        return error_set(err, STATUS_DENIED,
                         "'%s' is not a program that runs here: sparring-worker, sparring-server",
                         r->program);
    for (size_t i = 0; i < r->words.length && status == STATUS_OK; i++) {
        status = check_value(r->words.texts[i], folders, err);
        if (status == STATUS_OK)
            status = check_option(r->words.texts[i], err);
    }
    for (size_t i = 0; i < r->variables.length && status == STATUS_OK; i++) {
        status = check_value(r->variables.texts[i], folders, err);
        if (status == STATUS_OK)
            status = check_variable(r->variables.texts[i], err);
    }
    return status;
}

void job_command(const struct standby_request *r, const char *programs, const char *folder,
                 const struct text_list *own, struct text_list *words)
{
    text_list_addf(words, "env");
    text_list_addf(words, "--chdir=%s", folder);
    for (size_t i = 0; i < r->variables.length; i++)
        text_list_addf(words, "%s", r->variables.texts[i]);
    for (size_t i = 0; i < own->length; i++)
        text_list_addf(words, "%s", own->texts[i]);
    if (strcmp(r->program, ENGINE_PROBE) == 0) {
        text_list_addf(words, "sh");
        text_list_addf(words, "-c");
        text_list_addf(words, "%s", ENGINE_PROBE_SCRIPT);
        text_list_addf(words, "%s", programs);
        return;
    }
    text_list_addf(words, "%s/%s", programs, r->program);
    for (size_t i = 0; i < r->words.length; i++)
        text_list_addf(words, "%s", r->words.texts[i]);
}
