/*
 * Parses and formats end points.  Pure: resolves no names.  A bare IPv6 literal is an error,
 * because the end of the address in "::1:80" is ambiguous.
 */
#include "common/base/net.h"
#include "common/base/parse.h"
#include "common/base/unix_path.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define UNIX_SCHEME     "unix:"
#define PATH_CHARACTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+=@~"

/* "/path" after the scheme; NULL when the text is not a Unix socket. */
static const char *after_scheme(const char *text)
{
    const size_t length = sizeof(UNIX_SCHEME) - 1;

    return strncmp(text, UNIX_SCHEME "/", length + 1) == 0 ? text + length : NULL;
}

static enum status parse_path(const char *path, const char *what, struct endpoint *ret,
                              struct error *err)
{
    size_t length = strlen(path);
    size_t good = strspn(path, PATH_CHARACTERS);

    if (strncmp(path, "///", 3) == 0) /* "unix:///path", as a URL */
        return parse_path(path + 2, what, ret, err);
    if (path[1] == '/')
        return error_set(err, STATUS_CONFIG,
                         "%s: 'unix:%.200s': the path must be absolute, unix:/path is expected",
                         what, path);
    if (length >= UNIX_PATH_MAX)
        return error_set(err, STATUS_CONFIG,
                         "%s: the path of 'unix:%.200s' has %zu bytes, a Unix socket's may have %d",
                         what, path, length, UNIX_PATH_MAX - 1);
    if (good < length)
        return error_set(err, STATUS_CONFIG,
                         "%s: '%c' may not stand in the path of 'unix:%s': letters, digits and "
                         "/._-+=@~ may",
                         what, path[good], path);
    if (path[length - 1] == '/')
        return error_set(err, STATUS_CONFIG, "%s: 'unix:%s' names a folder, not a socket", what,
                         path);
    (void)snprintf(ret->host, sizeof(ret->host), UNIX_SCHEME "%s", path);
    ret->port = 0;
    return STATUS_OK;
}

const char *endpoint_unix_path(const struct endpoint *e)
{
    return after_scheme(e->host);
}

/* Split "host:port" or "[v6]:port" at its port; false when the text has neither form. */
static bool split_host_port(const char *text, const char **ret_host, size_t *ret_length,
                            const char **ret_port)
{
    const char *colon;

    if (text[0] == '[') {
        const char *bracket = strchr(text, ']');

        if (!bracket || bracket[1] != ':')
            return false;
        *ret_host = text + 1;
        *ret_length = (size_t)(bracket - *ret_host);
        *ret_port = bracket + 2;
        return true;
    }
    colon = strchr(text, ':');
    if (!colon || strchr(colon + 1, ':'))
        return false;
    *ret_host = text;
    *ret_length = (size_t)(colon - text);
    *ret_port = colon + 1;
    return true;
}

enum status endpoint_parse(const char *text, const char *what, struct endpoint *ret,
                           struct error *err)
{
    const char *host;
    const char *port_text;
    size_t length;
    uint64_t port;

    if (after_scheme(text))
        return parse_path(after_scheme(text), what, ret, err);
    if (!split_host_port(text, &host, &length, &port_text))
        return error_set(err, STATUS_CONFIG, "%s: '%s' is not host:port, [ipv6]:port or unix:/path",
                         what, text);
    if (length == 0)
        return error_set(err, STATUS_CONFIG, "%s: '%s' has no host", what, text);
    if (length >= sizeof(ret->host))
        return error_set(err, STATUS_CONFIG, "%s: the host of '%s' has %zu characters, %zu allowed",
                         what, text, length, sizeof(ret->host) - 1);
    if (!parse_uint64(port_text, &port) || port > UINT16_MAX)
        return error_set(err, STATUS_CONFIG, "%s: '%s' has no port between 0 and 65535", what,
                         text);
    memcpy(ret->host, host, length);
    ret->host[length] = '\0';
    ret->port = (uint16_t)port;
    return STATUS_OK;
}

void endpoint_format(const struct endpoint *e, char *text, size_t size)
{
    const bool bare_v6 = strchr(e->host, ':') != NULL;

    if (endpoint_unix_path(e))
        (void)snprintf(text, size, "%s", e->host);
    else
        (void)snprintf(text, size, "%s%s%s:%u", bare_v6 ? "[" : "", e->host, bare_v6 ? "]" : "",
                       (unsigned)e->port);
}

int endpoint_is_loopback(const struct endpoint *e)
{
    struct in_addr v4;
    struct in6_addr v6;

    if (strcasecmp(e->host, "localhost") == 0 || endpoint_unix_path(e) || e->host[0] == '/')
        return 1;
    if (inet_pton(AF_INET, e->host, &v4) == 1)
        return (ntohl(v4.s_addr) >> 24) == 127;
    if (inet_pton(AF_INET6, e->host, &v6) != 1)
        return 0;
    return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
}
