/*
 * The metrics page over libmicrohttpd, with one thread of that library.
 *
 * The library replies to HEAD from the response to GET and closes idle connections.  The listening
 * socket is opened here, for the error messages of net_listen.  No locks: the configuration is
 * constant, and the write function runs on the library's thread only.
 */
#include "server/observe/metrics_page.h"

#include "common/base/memory.h"

#include <microhttpd.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATH                    "/metrics"
#define CONNECTIONS_DEFAULT     16u
#define TIMEOUT_DEFAULT_S       10u
#define CONNECTION_MEMORY_BYTES ((size_t)16 << 10)

struct metrics_page {
    struct metrics_page_config config; /* constant */
    struct MHD_Daemon *daemon;
    uint16_t port;
};

/* Takes the text's memory, which the library frees. */
static enum MHD_Result queue_response(struct MHD_Connection *connection, unsigned code,
                                      const char *type, struct strbuf *text)
{
    struct MHD_Response *response;
    enum MHD_Result result;

    if (!strbuf_ok(text) || text->capacity == 0) {
        strbuf_release(text);
        return MHD_NO; /* no memory: the connection is closed */
    }
    response = MHD_create_response_from_buffer(text->length, text->text, MHD_RESPMEM_MUST_FREE);
    if (!response) {
        strbuf_release(text);
        return MHD_NO;
    }
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    if (code == MHD_HTTP_METHOD_NOT_ALLOWED)
        (void)MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    result = MHD_queue_response(connection, code, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result queue_refusal(struct MHD_Connection *connection, unsigned code,
                                     const char *why)
{
    struct strbuf text = STRBUF_INIT;

    strbuf_addf(&text, "%s\n", why);
    return queue_response(connection, code, "text/plain; charset=utf-8", &text);
}

static enum MHD_Result handle_request(void *user, struct MHD_Connection *connection,
                                      const char *path, const char *method, const char *version,
                                      const char *upload, size_t *upload_bytes, void **header_seen)
{
    const struct metrics_page *page = user;
    struct strbuf text = STRBUF_INIT;
    struct error err = {0};

    (void)version;
    (void)upload;
    if (strcmp(path, PATH) != 0)
        return queue_refusal(connection, MHD_HTTP_NOT_FOUND, "not found; the metrics are at " PATH);
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
        return queue_refusal(connection, MHD_HTTP_METHOD_NOT_ALLOWED,
                             "only GET and HEAD are allowed");
    if (!*header_seen) {
        *header_seen = user; /* the header is complete; a body, if there is one, comes next */
        return MHD_YES;
    }
    if (*upload_bytes > 0) {
        *upload_bytes = 0; /* ignored */
        return MHD_YES;
    }
    if (page->config.write(page->config.user, &text, &err) != STATUS_OK) {
        strbuf_release(&text);
        return queue_refusal(connection, MHD_HTTP_INTERNAL_SERVER_ERROR, err.text);
    }
    return queue_response(connection, MHD_HTTP_OK, page->config.type, &text);
}

/* All signals are blocked on the library's thread.  The daemon closes the socket when it stops. */
static struct MHD_Daemon *start_daemon(struct metrics_page *page, int listen_fd)
{
    const struct metrics_page_config *c = &page->config;
    struct MHD_Daemon *daemon;
    sigset_t all, previous;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &previous);
    daemon = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD, 0, NULL, NULL, handle_request, page,
        MHD_OPTION_LISTEN_SOCKET, listen_fd, MHD_OPTION_CONNECTION_LIMIT,
        c->connections ? c->connections : CONNECTIONS_DEFAULT, MHD_OPTION_CONNECTION_TIMEOUT,
        c->timeout_s ? c->timeout_s : TIMEOUT_DEFAULT_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        CONNECTION_MEMORY_BYTES, MHD_OPTION_END);
    (void)pthread_sigmask(SIG_SETMASK, &previous, NULL);
    return daemon;
}

enum status metrics_page_open(const struct metrics_page_config *config,
                              struct metrics_page **ret_page, struct error *err)
{
    char address[sizeof(config->listen.host) + 16];
    struct metrics_page *page;
    int listen_fd;
    enum status status;

    endpoint_format(&config->listen, address, sizeof(address));
    if (endpoint_unix_path(&config->listen))
        return error_set(err, STATUS_INVALID, "%s: '%s' is not host:port", config->origin, address);
    if (!config->insecure && !endpoint_is_loopback(&config->listen))
        return error_set(err, STATUS_INVALID,
                         "refusing to show metrics on %s (from %s): the page has neither "
                         "encryption nor passwords; give --insecure to allow it",
                         address, config->origin);
    status = mem_calloc(1, sizeof(*page), "metrics page", &page, err);
    if (status != STATUS_OK)
        return status;
    page->config = *config;
    status = net_listen(&config->listen, config->origin, &listen_fd, &page->port, err);
    if (status == STATUS_OK) {
        page->daemon = start_daemon(page, listen_fd);
        if (!page->daemon) {
            (void)close(listen_fd);
            status = error_set(err, STATUS_IO, "cannot start the metrics page on %s", address);
        }
    }
    if (status != STATUS_OK) {
        free(page);
        return status;
    }
    *ret_page = page;
    return STATUS_OK;
}

uint16_t metrics_page_port(const struct metrics_page *page)
{
    return page->port;
}

void metrics_page_close(struct metrics_page *page)
{
    if (!page)
        return;
    MHD_stop_daemon(page->daemon);
    free(page);
}
