/*
 * Failure notice and departure of ranks, over the store's own operations; keys start with
 * "sparring/store/":
 *
 *   failure       "<rank> <text>" of the first rank that failed, by compare_set
 *   goodbye/<r>   set by each rank as it leaves; the rank that serves the store waits for all
 *
 * Texts from the store are bounded and made printable before they reach an error.  No locks.
 */
#include "common/store/store_ops.h"

#include "common/base/clock.h"
#include "common/base/parse.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void store_reserved_key(const struct store *store, const char *name, char *full)
{
    (void)snprintf(full, STORE_KEY_MAX + 1, "%s" STORE_RESERVED "%s", store->prefix, name);
}

void store_make_printable(char *text)
{
    if (strlen(text) > STORE_TEXT_MAX)
        text[STORE_TEXT_MAX] = '\0';
    for (char *p = text; *p; p++)
        if (*p < ' ' || *p > '~')
            *p = '?';
}

/* ---- failure notice */

void store_report_failure(struct store *store, unsigned rank, const char *text)
{
    char notice[STORE_TEXT_MAX + 16];
    char key[STORE_KEY_MAX + 1];
    char *value = NULL;

    (void)snprintf(notice, sizeof(notice), "%u %.*s", rank, STORE_TEXT_MAX, text);
    store_reserved_key(store, "failure", key);
    (void)store->ops->compare_set(store->impl, key, "", notice, clock_now_ns(), &value, NULL);
    free(value);
}

bool store_find_failure(struct store *store, int64_t wait_ms, struct error *err)
{
    char key[STORE_KEY_MAX + 1];
    struct error lost = {0};
    char *value = NULL;
    char *text;
    size_t size;
    uint64_t rank = 0;
    enum status status;

    store_reserved_key(store, "failure", key);
    status = store->ops->get(store->impl, key, clock_deadline_ns(wait_ms), &value, &size, &lost);
    if (status == STATUS_PEER_LOST) {
        (void)error_set(err, STATUS_PEER_LOST, "rank 0 is lost: %.1500s", lost.text);
        return true;
    }
    if (status != STATUS_OK)
        return false;
    store_make_printable(value);
    text = strchr(value, ' ');
    if (text)
        *text++ = '\0';
    if (!text || !parse_uint64(value, &rank))
        text = NULL;
    if (text)
        (void)error_set(err, STATUS_PEER_LOST, "rank %" PRIu64 " failed: %s", rank, text);
    else
        (void)error_set(err, STATUS_PEER_LOST, "a rank failed; its notice is malformed");
    free(value);
    return true;
}

/* ---- departure */

static enum status announce_departure(struct store *store, unsigned rank)
{
    char key[STORE_KEY_MAX + 1];
    char name[32];

    (void)snprintf(name, sizeof(name), "goodbye/%u", rank);
    store_reserved_key(store, name, key);
    return store->ops->set(store->impl, key, "", 0, clock_now_ns(), NULL);
}

void store_mark_departed(struct store *store, unsigned rank)
{
    (void)announce_departure(store, rank);
}

void store_depart(struct store *store, int64_t deadline_ns)
{
    const int64_t now_ns = clock_now_ns(); /* the store adds its own reply time-out */
    const struct store_ops *ops = store->ops;

    if (store->duplicate) /* the other process with this rank announces the departure */
        return;
    if (announce_departure(store, store->rank) != STATUS_OK)
        return;
    /* The server may exit once it has our departure: send no further call without need. */
    if (!ops->is_server(store->impl) && !ops->remove_group)
        return;
    if (store_await_ranks(store, "goodbye", ops->is_server(store->impl) ? deadline_ns : now_ns,
                          now_ns, NULL, NULL) == STATUS_OK &&
        ops->remove_group)
        ops->remove_group(store->impl, store->prefix, now_ns);
}
