/*
 * watch_page without libmicrohttpd.
 */
#include "experiments/watch/watch_page.h"

enum status watch_page_open(const struct endpoint *listen, const char *origin,
                            const struct watched *w, struct watch_page **ret, struct error *err)
{
    (void)listen;
    (void)origin;
    (void)w;
    (void)ret;
    return error_set(err, STATUS_UNSUPPORTED,
                     "this program was built without libmicrohttpd, so it has no page; "
                     "'sparring status --watch' shows the same here");
}

uint16_t watch_page_port(const struct watch_page *p)
{
    (void)p;
    return 0;
}

void watch_page_lock(struct watch_page *p)
{
    (void)p;
}

void watch_page_unlock(struct watch_page *p)
{
    (void)p;
}

void watch_page_close(struct watch_page *p)
{
    (void)p;
}
