/*
 * watch_page: the page over HTTP, on loopback only: it has neither encryption nor passwords.
 *   /               the page; its script and style sheet
 *   /events         what it shows, as server-sent events (watch_json.h): all of it, then changes
 *   /index.html, /report.html, /cells/NAME/report.html   the reports that are there
 */
#ifndef SPARRING_EXPERIMENTS_WATCH_WATCH_PAGE_H
#define SPARRING_EXPERIMENTS_WATCH_WATCH_PAGE_H

#include "common/base/net.h"
#include "experiments/watch/watched.h"

struct watch_page;

/* `w` is borrowed, and changed and read under watch_page_lock from now on.  `origin` names the
 * address in errors.  Port 0: any. */
enum status watch_page_open(const struct endpoint *listen, const char *origin,
                            const struct watched *w, struct watch_page **ret, struct error *err);
uint16_t watch_page_port(const struct watch_page *p);

void watch_page_lock(struct watch_page *p);
void watch_page_unlock(struct watch_page *p); /* pages that are open get the changes */

/* Ends the connections. */
void watch_page_close(struct watch_page *p);

#endif
