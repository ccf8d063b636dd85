/*
 * Parses init method URLs.  The errors are those of PyTorch's rendezvous and quote the text.  Rank
 * and world size come from the launcher or from flags, never from the URL, so that they have one
 * source.  Under torchrun the launcher itself listens on MASTER_PORT
 * (TORCHELASTIC_USE_AGENT_STORE): our store then uses the next port, and `origin` states it.  No
 * state, no locks.
 */
#include "common/store/init_method.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static const char *skip_prefix(const char *text, const char *scheme)
{
    const size_t length = strlen(scheme);

    return strncmp(text, scheme, length) == 0 ? text + length : NULL;
}

static enum status parse_env_url(const char *rest, const struct launch_env *launch,
                                 struct init_method *ret, struct error *err)
{
    if (*rest != '\0')
        return error_set(err, STATUS_CONFIG,
                         "init method 'env://%.200s': nothing may follow 'env://'", rest);
    if (launch->agent_store && launch->master_port == UINT16_MAX)
        return error_set(err, STATUS_CONFIG,
                         "MASTER_PORT is %u and torchrun listens there itself: no next port is "
                         "left for the store",
                         launch->master_port);
    (void)snprintf(ret->endpoint.host, sizeof(ret->endpoint.host), "%s", launch->master_addr);
    ret->endpoint.port = (uint16_t)(launch->master_port + (launch->agent_store ? 1 : 0));
    (void)snprintf(ret->origin, sizeof(ret->origin), "%.24s and %.24s%s",
                   launch->master_addr_origin, launch->master_port_origin,
                   launch->agent_store ? " + 1, as torchrun listens on it" : "");
    return STATUS_OK;
}

/* True when the text after tcp:// has a host and no port: "host", "host:", "[v6]". */
static bool port_is_missing(const char *rest)
{
    const char *bracket = rest[0] == '[' ? strchr(rest, ']') : NULL;
    const char *colon = strchr(bracket ? bracket : rest, ':');

    return !colon || colon[1] == '\0';
}

static enum status parse_tcp_url(const char *text, const char *rest,
                                 const struct launch_env *launch, struct init_method *ret,
                                 struct error *err)
{
    enum status status;

    if (strchr(rest, '?'))
        return error_set(err, STATUS_CONFIG,
                         "init method '%.200s': rank and world size come from the launcher or from "
                         "--rank and --world-size, not from the URL",
                         text);
    if (port_is_missing(rest))
        return error_set(err, STATUS_CONFIG,
                         "init method '%.200s': port number missing, tcp://host:port is expected",
                         text);
    status = endpoint_parse(rest, "init method", &ret->endpoint, err);
    if (status != STATUS_OK)
        return status;
    if (ret->endpoint.port == 0 && launch->rank != 0)
        return error_set(err, STATUS_CONFIG,
                         "init method '%.200s': rank %u cannot find a store on port 0", text,
                         launch->rank);
    (void)snprintf(ret->origin, sizeof(ret->origin), "--init-method");
    return STATUS_OK;
}

static enum status parse_unix_url(const char *text, struct init_method *ret, struct error *err)
{
    (void)snprintf(ret->origin, sizeof(ret->origin), "--init-method");
    return endpoint_parse(text, "init method", &ret->endpoint, err);
}

static enum status check_folder(const char *path, struct error *err)
{
    char folder[4096];
    const char *slash = strrchr(path, '/');
    const size_t length = slash == path ? 1 : (size_t)(slash - path);
    struct stat info;

    memcpy(folder, path, length);
    folder[length] = '\0';
    if (stat(folder, &info) != 0)
        return error_set_errno(err, errno, "store file '%s': cannot use folder '%s'", path, folder);
    if (!S_ISDIR(info.st_mode))
        return error_set(err, STATUS_CONFIG, "store file '%s': '%s' is not a folder", path, folder);
    return STATUS_OK;
}

static enum status parse_file_url(const char *text, const char *path, struct init_method *ret,
                                  struct error *err)
{
    const size_t length = strlen(path);

    if (path[0] != '/')
        return error_set(
            err, STATUS_CONFIG,
            "init method '%.200s': the path must be absolute, file:///path is expected", text);
    if (length >= sizeof(ret->path))
        return error_set(err, STATUS_CONFIG,
                         "init method '%.200s...': the path has %zu bytes, "
                         "%zu allowed",
                         text, length, sizeof(ret->path) - 1);
    if (path[length - 1] == '/')
        return error_set(err, STATUS_CONFIG, "init method '%.200s' names a folder, not a file",
                         text);
    ret->is_file = true;
    memcpy(ret->path, path, length + 1);
    (void)snprintf(ret->origin, sizeof(ret->origin), "--init-method");
    return check_folder(path, err);
}

enum status init_method_parse(const char *text, const struct launch_env *launch,
                              struct init_method *ret, struct error *err)
{
    const char *rest;

    *ret = (struct init_method){0};
    rest = skip_prefix(text, "env://");
    if (rest)
        return parse_env_url(rest, launch, ret, err);
    rest = skip_prefix(text, "tcp://");
    if (rest)
        return parse_tcp_url(text, rest, launch, ret, err);
    if (skip_prefix(text, "unix:/"))
        return parse_unix_url(text, ret, err);
    rest = skip_prefix(text, "file://");
    if (rest)
        return parse_file_url(text, rest, ret, err);
    return error_set(err, STATUS_CONFIG,
                     "init method '%.200s' is none of env://, tcp://host:port, unix:///path and "
                     "file:///path",
                     text);
}
