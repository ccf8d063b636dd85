/*
 * listen: binds a gRPC server to one address and explains a failure.
 *
 * The host is resolved here, to one literal address: core would bind "localhost" to as many
 * addresses as it can and report success.  Core does not report why a bind failed, so it is
 * repeated with a plain socket to get the errno.
 *
 * A Unix path is claimed first (unix_path), because core removes any socket at the path.  The
 * socket is created for this user only, by the umask, since core has no hook between bind and
 * listen.  The umask is process-wide, hence the lock.
 */
#include "common/rpc/rpc_internal.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static pthread_mutex_t umask_lock = PTHREAD_MUTEX_INITIALIZER;

struct binding {
    const struct rpc_server_config *config;
    const char *path; /* of a Unix socket; NULL for host and port */
    struct sockaddr_storage address;
    socklen_t length;
    struct endpoint literal;
    char text[sizeof(struct endpoint) + 8]; /* "127.0.0.1:4711" */
    bool tls;
};

static const char *listen_origin_text(const struct binding *b)
{
    return b->config->listen_origin ? b->config->listen_origin : "default";
}

static enum status resolve_error(const struct binding *b, int failed, struct error *err)
{
    return error_set(err, STATUS_INVALID, "cannot listen on '%s' (from %s): %s",
                     b->config->listen.host, listen_origin_text(b), gai_strerror(failed));
}

static void set_unix_address(struct binding *b)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%.107s", b->path);
    memcpy(&b->address, &address, sizeof(address));
    b->length = sizeof(address);
    b->literal = b->config->listen;
    endpoint_format(&b->literal, b->text, sizeof(b->text));
}

/* The host's first address, IPv4 if it has one: what other programs use for "localhost". */
static enum status resolve_listen_address(struct binding *b, struct error *err)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    const struct addrinfo *use = NULL;
    char port[8];
    int failed;

    (void)snprintf(port, sizeof(port), "%u", b->config->listen.port);
    failed = getaddrinfo(b->config->listen.host, port, &hints, &found);
    if (failed)
        return resolve_error(b, failed, err);
    for (const struct addrinfo *a = found; a; a = a->ai_next)
        if (!use || (a->ai_family == AF_INET && use->ai_family != AF_INET))
            use = a;
    if (use && use->ai_addrlen <= sizeof(b->address)) {
        b->length = use->ai_addrlen;
        memcpy(&b->address, use->ai_addr, use->ai_addrlen);
    }
    freeaddrinfo(found);
    failed = getnameinfo((const struct sockaddr *)&b->address, b->length, b->literal.host,
                         sizeof(b->literal.host), NULL, 0, NI_NUMERICHOST);
    if (failed)
        return resolve_error(b, failed, err);
    b->literal.port = b->config->listen.port;
    endpoint_format(&b->literal, b->text, sizeof(b->text));
    return STATUS_OK;
}

static enum status check_security(struct binding *b, struct error *err)
{
    enum status status = rpc_security_check(&b->config->security, &b->tls, err);

    if (status == STATUS_OK && !b->tls && !b->config->security.insecure &&
        !endpoint_is_loopback(&b->literal))
        status = error_set(err, STATUS_INVALID,
                           "refusing to listen on %s (from %s) without encryption: give TLS files, "
                           "or --insecure to allow it",
                           b->text, listen_origin_text(b));
    return status;
}

/* The errno of a plain bind to the address; 0 on success. */
static int try_bind(const struct binding *b)
{
    int on = 1;
    int number = 0;
    int fd = socket(b->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return errno;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)); /* as core does */
    if (bind(fd, (const struct sockaddr *)&b->address, b->length) != 0)
        number = errno;
    else if (b->path)
        (void)unlink(b->path);
    (void)close(fd);
    return number;
}

static enum status bind_failure_error(const struct binding *b, struct error *err)
{
    const struct rpc_security *security = &b->config->security;
    char holder[256];
    int number = try_bind(b);

    if (number == EADDRINUSE) {
        net_port_holder(b->config->listen.port, holder, sizeof(holder));
        return error_set(err, STATUS_IO, "cannot listen on %s (from %s): the port is in use by %s",
                         b->text, listen_origin_text(b), holder);
    }
    if (number)
        return error_set_errno(err, number, "cannot listen on %s (from %s)", b->text,
                               listen_origin_text(b));
    if (b->tls)
        return error_set(err, STATUS_INVALID,
                         "cannot listen on %s: the certificate '%s', its key '%s' and the "
                         "authority '%s' do not work together",
                         b->text, security->cert_file, security->key_file, security->ca_file);
    return error_set(err, STATUS_IO, "cannot listen on %s (from %s)", b->text,
                     listen_origin_text(b));
}

/* Bind with a umask that gives access to this user only. */
static int add_unix_port(grpc_server *server, const char *text,
                         grpc_server_credentials *credentials)
{
    mode_t before;
    int port;

    (void)pthread_mutex_lock(&umask_lock);
    before = umask(077);
    port = grpc_server_add_http2_port(server, text, credentials);
    (void)umask(before);
    (void)pthread_mutex_unlock(&umask_lock);
    return port;
}

static enum status bind_address(struct binding *b, grpc_server *server, uint16_t *ret_port,
                                struct error *err)
{
    grpc_server_credentials *credentials = NULL;
    enum status status = check_security(b, err);
    int port;

    if (status == STATUS_OK)
        status = rpc_server_credentials(&b->config->security, &credentials, err);
    if (status != STATUS_OK)
        return status;
    port = b->path ? add_unix_port(server, b->text, credentials)
                   : grpc_server_add_http2_port(server, b->text, credentials);
    grpc_server_credentials_release(credentials);
    if (port <= 0)
        return bind_failure_error(b, err);
    *ret_port = b->path ? 0 : (uint16_t)port; /* core returns 1 for a path */
    return STATUS_OK;
}

enum status rpc_listen(grpc_server *server, const struct rpc_server_config *config,
                       struct unix_path *ret_claim, uint16_t *ret_port, struct error *err)
{
    struct binding b = {.config = config, .path = endpoint_unix_path(&config->listen)};
    enum status status;

    if (!b.path) {
        status = resolve_listen_address(&b, err);
        return status == STATUS_OK ? bind_address(&b, server, ret_port, err) : status;
    }
    set_unix_address(&b);
    status = unix_path_claim(b.path, listen_origin_text(&b), ret_claim, err);
    if (status != STATUS_OK)
        return status;
    status = bind_address(&b, server, ret_port, err);
    if (status != STATUS_OK)
        unix_path_release(ret_claim);
    return status;
}
