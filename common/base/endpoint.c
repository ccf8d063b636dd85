/*
 * Text to end points and back.  Pure: no name is resolved here.  A bare IPv6 literal is refused,
 * because "::1:80" does not say where the address ends.
 */
#include "common/base/net.h"
#include "common/base/parse.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* Split "host:port" or "[v6]:port" at its port; false when the text has neither form. */
static bool split(const char *text, const char **ret_host, size_t *ret_length,
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

    if (!split(text, &host, &length, &port_text))
        return error_set(err, STATUS_CONFIG, "%s: '%s' is not host:port or [ipv6]:port", what,
                         text);
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

    (void)snprintf(text, size, "%s%s%s:%u", bare_v6 ? "[" : "", e->host, bare_v6 ? "]" : "",
                   (unsigned)e->port);
}

int endpoint_is_loopback(const struct endpoint *e)
{
    struct in_addr v4;
    struct in6_addr v6;

    if (strcasecmp(e->host, "localhost") == 0 || strncmp(e->host, "unix:", 5) == 0 ||
        e->host[0] == '/')
        return 1;
    if (inet_pton(AF_INET, e->host, &v4) == 1)
        return (ntohl(v4.s_addr) >> 24) == 127;
    if (inet_pton(AF_INET6, e->host, &v6) != 1)
        return 0;
    return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
}
