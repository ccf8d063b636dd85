/*
 * watch_page: libmicrohttpd with a thread for each connection; that of an open page waits for
 * changes.
 */
#include "experiments/watch/watch_page.h"

#include "common/base/clock.h"
#include "common/base/memory.h"
#include "experiments/report/write.h"
#include "experiments/watch/page_files.h"
#include "experiments/watch/watch_json.h"

#include <fcntl.h>
#include <microhttpd.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CONNECTIONS_MAX 32u
#define TIMEOUT_S       30u
#define QUIET_MS        5000 /* then a comment shows that the page is still served */
#define BLOCK_BYTES     ((size_t)64 << 10)
#define PAGE_POLICY                                                                                \
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src "        \
    "'self'; "                                                                                     \
    "img-src data:"

struct watch_page {
    const struct watched *watched; /* (L) */
    struct MHD_Daemon *daemon;
    uint16_t port;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* CLOCK_MONOTONIC: a version, or is_closing */
    bool is_closing;        /* (L) */
};

/* An open page. */
struct event_stream {
    struct watch_page *page;
    uint64_t version; /* that it has */
    struct strbuf text;
    size_t sent;
};

/* ---- events */

/* Wait for a change; false: the page closes. */
static bool await_change(struct event_stream *s)
{
    struct watch_page *p = s->page;
    const int64_t deadline_ns = clock_deadline_ns(QUIET_MS);
    const struct timespec deadline = {.tv_sec = (time_t)(deadline_ns / 1000000000),
                                      .tv_nsec = (long)(deadline_ns % 1000000000)};
    bool is_open, in_time = true;

    (void)pthread_mutex_lock(&p->lock);
    while (!p->is_closing && p->watched->version == s->version && in_time)
        in_time = pthread_cond_timedwait(&p->changed, &p->lock, &deadline) == 0;
    is_open = !p->is_closing;
    strbuf_reset(&s->text);
    if (p->watched->version != s->version) {
        strbuf_add(&s->text, "data: ");
        watch_json(p->watched, s->version, &s->text);
        strbuf_add(&s->text, "\n\n");
        s->version = p->watched->version;
    } else {
        strbuf_add(&s->text, ":\n\n");
    }
    (void)pthread_mutex_unlock(&p->lock);
    s->sent = 0;
    return is_open && strbuf_ok(&s->text);
}

static ssize_t read_events(void *user, uint64_t position, char *buffer, size_t size)
{
    struct event_stream *s = user;
    size_t count;

    (void)position;
    if (s->sent == s->text.length && !await_change(s))
        return MHD_CONTENT_READER_END_OF_STREAM;
    count = s->text.length - s->sent < size ? s->text.length - s->sent : size;
    memcpy(buffer, s->text.text + s->sent, count);
    s->sent += count;
    return (ssize_t)count;
}

static void close_events(void *user)
{
    struct event_stream *s = user;

    strbuf_release(&s->text);
    free(s);
}

static struct MHD_Response *make_events(struct watch_page *p)
{
    struct event_stream *s;
    struct MHD_Response *response;

    if (mem_calloc(1, sizeof(*s), "events", &s, NULL) != STATUS_OK)
        return NULL;
    *s = (struct event_stream){.page = p, .text = STRBUF_INIT};
    response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES, read_events, s,
                                                 close_events);
    if (!response)
        close_events(s);
    return response;
}

/* ---- files */

/* "/cells/NAME/report.html" of a cell of this name: nothing else below the folder is served. */
static bool is_report(const struct watched *w, const char *path)
{
    for (size_t i = 0; i < w->cell_count; i++) {
        char report[sizeof(w->cells->folder) + 16];
        const char *folder = w->cells[i].folder;

        (void)snprintf(report, sizeof(report), "/%s%sreport.html", folder, folder[0] ? "/" : "");
        if (strcmp(report, path) == 0)
            return true;
    }
    return strcmp(path, "/index.html") == 0;
}

static struct MHD_Response *make_report(struct watch_page *p, const char *path)
{
    char file[8192];
    struct stat info;
    struct MHD_Response *response;
    bool is_known;
    int fd;

    (void)pthread_mutex_lock(&p->lock);
    is_known = is_report(p->watched, path);
    (void)snprintf(file, sizeof(file), "%s%s", p->watched->path, path);
    (void)pthread_mutex_unlock(&p->lock);
    fd = is_known ? open(file, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0 || fstat(fd, &info) != 0) {
        if (fd >= 0)
            (void)close(fd);
        return NULL;
    }
    response = MHD_create_response_from_fd((uint64_t)info.st_size, fd);
    if (!response)
        (void)close(fd);
    return response;
}

/* ---- requests */

struct resource {
    const char *path, *type;
    const char *text;
};

static const struct resource resources[] = {
    {"/", "text/html; charset=utf-8", page_watch_html},
    {"/watch.js", "text/javascript; charset=utf-8", page_watch_js},
    {"/style.css", "text/css; charset=utf-8", write_html_style},
};

static struct MHD_Response *make_response(struct watch_page *p, const char *path,
                                          const char **ret_type)
{
    for (size_t i = 0; i < sizeof(resources) / sizeof(resources[0]); i++)
        if (strcmp(resources[i].path, path) == 0) {
            *ret_type = resources[i].type;
            return MHD_create_response_from_buffer(strlen(resources[i].text),
                                                   (void *)(uintptr_t)resources[i].text,
                                                   MHD_RESPMEM_PERSISTENT);
        }
    *ret_type = strcmp(path, "/events") == 0 ? "text/event-stream" : "text/html; charset=utf-8";
    return strcmp(path, "/events") == 0 ? make_events(p) : make_report(p, path);
}

static enum MHD_Result refuse(struct MHD_Connection *connection, unsigned code, const char *why)
{
    struct MHD_Response *response = MHD_create_response_from_buffer(
        strlen(why), (void *)(uintptr_t)why, MHD_RESPMEM_PERSISTENT);
    enum MHD_Result result;

    if (!response)
        return MHD_NO;
    result = MHD_queue_response(connection, code, response);
    MHD_destroy_response(response);
    return result;
}

/* A page of another site whose name was made to lead here has that name in its requests. */
static bool is_for_loopback(struct MHD_Connection *connection)
{
    const char *host = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Host");
    static const char *const names[] = {"localhost", "127.0.0.1", "[::1]"};

    for (size_t i = 0; host && i < sizeof(names) / sizeof(names[0]); i++) {
        const size_t length = strlen(names[i]);

        if (strncmp(host, names[i], length) == 0 && (host[length] == ':' || host[length] == '\0'))
            return true;
    }
    return false;
}

static enum MHD_Result handle_request(void *user, struct MHD_Connection *connection,
                                      const char *path, const char *method, const char *version,
                                      const char *upload, size_t *upload_bytes, void **seen)
{
    const char *type = NULL;
    struct MHD_Response *response;
    enum MHD_Result result;

    (void)version;
    (void)upload;
    if (!is_for_loopback(connection))
        return refuse(connection, MHD_HTTP_FORBIDDEN, "this page is for its own host\n");
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0)
        return refuse(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET is allowed\n");
    if (!*seen) {
        *seen = user; /* the header is complete; a body, if there is one, comes next */
        return MHD_YES;
    }
    if (*upload_bytes > 0) {
        *upload_bytes = 0; /* ignored */
        return MHD_YES;
    }
    response = make_response(user, path, &type);
    if (!response)
        return refuse(connection, MHD_HTTP_NOT_FOUND, "not found; the page is at /\n");
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    (void)MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    if (strcmp(path, "/") == 0)
        (void)MHD_add_response_header(response, "Content-Security-Policy", PAGE_POLICY);
    result = MHD_queue_response(connection, MHD_HTTP_OK, response);
    MHD_destroy_response(response);
    return result;
}

/* ---- open, close */

/* All signals are blocked on the library's threads. */
static struct MHD_Daemon *start_daemon(struct watch_page *p, int listen_fd)
{
    struct MHD_Daemon *daemon;
    sigset_t all, previous;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &previous);
    daemon = MHD_start_daemon(
        MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL, 0, NULL,
        NULL, handle_request, p, MHD_OPTION_LISTEN_SOCKET, listen_fd, MHD_OPTION_CONNECTION_LIMIT,
        CONNECTIONS_MAX, MHD_OPTION_CONNECTION_TIMEOUT, TIMEOUT_S, MHD_OPTION_END);
    (void)pthread_sigmask(SIG_SETMASK, &previous, NULL);
    return daemon;
}

static void init_locks(struct watch_page *p)
{
    pthread_condattr_t attributes;

    (void)pthread_mutex_init(&p->lock, NULL);
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&p->changed, &attributes);
    (void)pthread_condattr_destroy(&attributes);
}

enum status watch_page_open(const struct endpoint *listen, const char *origin,
                            const struct watched *w, struct watch_page **ret, struct error *err)
{
    char address[sizeof(listen->host) + 16];
    struct watch_page *p;
    int listen_fd = -1;
    enum status status;

    endpoint_format(listen, address, sizeof(address));
    if (endpoint_unix_path(listen) || !endpoint_is_loopback(listen))
        return error_set(err, STATUS_INVALID,
                         "%s: the page has neither encryption nor passwords, so it is shown on "
                         "loopback only, not on '%s'; from elsewhere use ssh -L",
                         origin, address);
    status = mem_calloc(1, sizeof(*p), "a page", &p, err);
    if (status != STATUS_OK)
        return status;
    p->watched = w;
    init_locks(p);
    status = net_listen(listen, origin, &listen_fd, &p->port, err);
    if (status == STATUS_OK) {
        p->daemon = start_daemon(p, listen_fd);
        if (!p->daemon) {
            (void)close(listen_fd);
            status = error_set(err, STATUS_IO, "cannot start the page on %s", address);
        }
    }
    if (status != STATUS_OK) {
        watch_page_close(p);
        return status;
    }
    *ret = p;
    return STATUS_OK;
}

uint16_t watch_page_port(const struct watch_page *p)
{
    return p->port;
}

void watch_page_lock(struct watch_page *p)
{
    (void)pthread_mutex_lock(&p->lock);
}

void watch_page_unlock(struct watch_page *p)
{
    (void)pthread_cond_broadcast(&p->changed);
    (void)pthread_mutex_unlock(&p->lock);
}

void watch_page_close(struct watch_page *p)
{
    if (!p)
        return;
    (void)pthread_mutex_lock(&p->lock);
    p->is_closing = true;
    (void)pthread_cond_broadcast(&p->changed);
    (void)pthread_mutex_unlock(&p->lock);
    if (p->daemon)
        MHD_stop_daemon(p->daemon);
    (void)pthread_cond_destroy(&p->changed);
    (void)pthread_mutex_destroy(&p->lock);
    free(p);
}
