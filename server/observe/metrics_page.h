/*
 * metrics_page: one page over HTTP/1.1, GET and HEAD of /metrics, for Prometheus and for curl.  The
 * caller's function writes the page for each request.  Called by: service.
 *
 * Plaintext and without authentication, so loopback only unless `insecure` is set.  Few
 * connections, each with little memory and a timeout, and one thread of its own: abuse of the page
 * can block the page only.  A build without libmicrohttpd has no page (metrics_page_none.c).
 */
#ifndef SPARRING_SERVER_OBSERVE_METRICS_PAGE_H
#define SPARRING_SERVER_OBSERVE_METRICS_PAGE_H

#include "common/base/error.h"
#include "common/base/net.h"
#include "common/base/strbuf.h"

#include <stdbool.h>
#include <stdint.h>

struct metrics_page_config {
    struct endpoint listen; /* port 0: any free one */
    const char *origin;     /* of the address, for messages: "--metrics-listen" */
    bool insecure;          /* allow an address that is not loopback */
    unsigned connections;   /* at a time, further ones wait; 0: 16 */
    unsigned timeout_s;     /* idle connections are closed after this time; 0: 10 */
    const char *type;       /* Content-Type; borrowed until close */
    /* Append the page.  Runs on the page's thread, one request at a time; must not take long. */
    enum status (*write)(void *user, struct strbuf *out, struct error *err);
    void *user;
};

struct metrics_page;

/* Bind and serve.  STATUS_UNSUPPORTED: built without libmicrohttpd; STATUS_INVALID: not loopback;
 * STATUS_EXISTS: the port is in use (the text names the process). */
enum status metrics_page_open(const struct metrics_page_config *config,
                              struct metrics_page **ret_page, struct error *err);

uint16_t metrics_page_port(const struct metrics_page *page);

/* Waits for the request in progress; NULL is allowed. */
void metrics_page_close(struct metrics_page *page);

#endif
