/*
 * Rendezvous: a small protocol over the store's own operations, so it works the same on every
 * implementation.  All keys start with "sparring/store/".
 *
 *   world_size   of the first rank; a rank with another one sets the verdict "mismatch" before it
 *                announces itself, so no rank can find the job complete
 *   rank/<r>     "<world size> <pid> <nonce> <host>", by compare_set: a process that finds another
 *                process's text there is a duplicate, and sets the verdict
 *   verdict      "complete", "mismatch" or "duplicate <text>": the key that all ranks wait for; the
 *                last rank to announce itself finds all ranks present and sets "complete"
 *
 * Texts from the store are bounded and made printable before they reach an error.  No locks.
 */
#include "common/store/store_ops.h"

#include "common/base/clock.h"
#include "common/base/memory.h"
#include "common/base/parse.h"
#include "common/base/strbuf.h"
#include "common/base/wait.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { mismatch_grace_ms = 2000, listed_ranges_max = 64, poll_ms = 2500, reply_ms = 30000 };

/* The parsed value of one rank's key. */
struct announcement {
    unsigned world_size;
    char process[320];  /* "pid 12 on host-a" */
    char identity[320]; /* as in struct store */
};

static void rank_key(const struct store *store, unsigned rank, char *full)
{
    char name[32];

    (void)snprintf(name, sizeof(name), "rank/%u", rank);
    store_reserved_key(store, name, full);
}

/* ---- announcements */

/* The three words of "<pid> <nonce> <host>" as "pid 12 on host-a". */
static bool format_process(const char *identity, char *text, size_t size)
{
    const char *nonce = strchr(identity, ' ');
    const char *host = nonce ? strchr(nonce + 1, ' ') : NULL;

    if (!host)
        return false;
    (void)snprintf(text, size, "pid %.*s on %.250s",
                   (int)(nonce - identity < 20 ? nonce - identity : 20), identity, host + 1);
    return true;
}

static enum status parse_announcement(char *value, unsigned rank, struct announcement *ret,
                                      struct error *err)
{
    char *identity = strchr(value, ' ');
    uint64_t world_size = 0;

    store_make_printable(value);
    if (identity)
        *identity++ = '\0';
    if (!identity || !parse_uint64(value, &world_size) || world_size == 0 ||
        world_size > INT32_MAX || !format_process(identity, ret->process, sizeof(ret->process)))
        return error_set(err, STATUS_DATA, "the announcement of rank %u in the store is malformed",
                         rank);
    ret->world_size = (unsigned)world_size;
    (void)snprintf(ret->identity, sizeof(ret->identity), "%s", identity);
    return STATUS_OK;
}

/* STATUS_TIMEOUT (without a text) when `rank` has not announced itself by the deadline. */
static enum status read_announcement(struct store *store, unsigned rank, int64_t deadline_ns,
                                     struct announcement *ret, struct error *err)
{
    char key[STORE_KEY_MAX + 1];
    char *value = NULL;
    size_t size;
    enum status status;

    rank_key(store, rank, key);
    status = store->ops->get(store->impl, key, deadline_ns, &value, &size, err);
    if (status != STATUS_OK)
        return status;
    status = parse_announcement(value, rank, ret, err);
    free(value);
    return status;
}

/* Set the verdict unless one is set already; the current value is not needed here. */
static enum status set_outcome(struct store *store, const char *outcome, int64_t deadline_ns,
                               struct error *err)
{
    char key[STORE_KEY_MAX + 1];
    char *value = NULL;
    enum status status;

    store_reserved_key(store, "verdict", key);
    status = store->ops->compare_set(store->impl, key, "", outcome, deadline_ns, &value, err);
    free(value);
    return status;
}

/* ---- mismatch and duplicates */

/* Read every announcement up to the largest world size found, with a short grace period for late
 * ranks, and list all world sizes that differ from ours. */
static enum status report_mismatch(struct store *store, int64_t deadline_ns, struct error *err)
{
    const int64_t grace_ns = clock_deadline_ns(mismatch_grace_ms);
    const int64_t until_ns = grace_ns < deadline_ns ? grace_ns : deadline_ns;
    const int64_t last_ns = until_ns + (int64_t)mismatch_grace_ms * 1000000;
    struct strbuf others = STRBUF_INIT;
    unsigned widest = store->world_size;
    enum status status = STATUS_OK;

    for (unsigned rank = 0; rank < widest && clock_now_ns() < last_ns; rank++) {
        struct announcement a = {0};

        status = read_announcement(store, rank, until_ns, &a, err);
        if (status == STATUS_TIMEOUT)
            continue;
        if (status != STATUS_OK)
            break;
        if (a.world_size > widest)
            widest = a.world_size;
        if (a.world_size != store->world_size)
            strbuf_addf(&others, "%srank %u has %u", others.length > 0 ? ", " : "", rank,
                        a.world_size);
    }
    if (status == STATUS_OK || status == STATUS_TIMEOUT)
        status =
            error_set(err, STATUS_MISMATCH, "world sizes differ at %s (%s): rank %u has %u, but %s",
                      store->address, store->origin, store->rank, store->world_size,
                      others.length > 0 ? others.text : "another rank has another");
    strbuf_release(&others);
    return status;
}

/* Another process holds our rank: set the verdict, which all ranks receive. */
static enum status report_duplicate(struct store *store, const struct announcement *first,
                                    int64_t deadline_ns, struct error *err)
{
    char outcome[STORE_TEXT_MAX];
    char second[320] = "";
    const char *hint = "";

    store->duplicate = true;
    (void)format_process(store->identity, second, sizeof(second));
    if (strncmp(store->address, "file:", 5) == 0)
        hint = "; if the first belongs to an earlier job, remove the file";
    (void)snprintf(outcome, sizeof(outcome), "duplicate two processes claim rank %u: %s and %s",
                   store->rank, first->process, second);
    (void)set_outcome(store, outcome, deadline_ns, NULL);
    return error_set(err, STATUS_MISMATCH, "%s (at %s, %s%s)", strchr(outcome, ' ') + 1,
                     store->address, store->origin, hint);
}

/* ---- rendezvous */

/* Compare our world size with the one that the first rank stored; *ret_differs. */
static enum status compare_world_sizes(struct store *store, int64_t deadline_ns, bool *ret_differs,
                                       struct error *err)
{
    char key[STORE_KEY_MAX + 1];
    char ours[16];
    char *value = NULL;
    enum status status;

    (void)snprintf(ours, sizeof(ours), "%u", store->world_size);
    store_reserved_key(store, "world_size", key);
    status = store->ops->compare_set(store->impl, key, "", ours, deadline_ns, &value, err);
    if (status != STATUS_OK)
        return status;
    *ret_differs = strcmp(value, ours) != 0;
    free(value);
    return *ret_differs ? set_outcome(store, "mismatch", deadline_ns, err) : STATUS_OK;
}

static enum status announce_rank(struct store *store, int64_t deadline_ns, struct error *err)
{
    char key[STORE_KEY_MAX + 1];
    char ours[400];
    char *value = NULL;
    struct announcement first;
    enum status status;

    (void)snprintf(ours, sizeof(ours), "%u %s", store->world_size, store->identity);
    rank_key(store, store->rank, key);
    status = store->ops->compare_set(store->impl, key, "", ours, deadline_ns, &value, err);
    if (status == STATUS_OK && strcmp(value, ours) != 0) {
        status = parse_announcement(value, store->rank, &first, err);
        if (status == STATUS_OK)
            status = report_duplicate(store, &first, deadline_ns, err);
    }
    free(value);
    return status;
}

enum status store_await_ranks(struct store *store, const char *what, int64_t deadline_ns,
                              int64_t reply_deadline_ns, bool **ret_missing, struct error *err)
{
    const size_t count = store->world_size;
    const size_t key_size = strlen(store->prefix) + sizeof(STORE_RESERVED) + strlen(what) + 24;
    const char **keys = NULL;
    char *text = NULL;
    bool *missing = NULL;
    enum status status = mem_calloc(count, key_size, "keys of the ranks", &text, err);

    if (status == STATUS_OK)
        status = mem_calloc(count, sizeof(*keys), "keys of the ranks", &keys, err);
    if (status == STATUS_OK)
        status = mem_calloc(count, sizeof(*missing), "keys of the ranks", &missing, err);
    for (size_t rank = 0; status == STATUS_OK && rank < count; rank++) {
        char *key = text + rank * key_size;

        (void)snprintf(key, key_size, "%s" STORE_RESERVED "%s/%zu", store->prefix, what, rank);
        keys[rank] = key;
    }
    if (status == STATUS_OK)
        status = store->ops->wait(store->impl, keys, count, deadline_ns, reply_deadline_ns, missing,
                                  err);
    free(text);
    free(keys);
    if (status == STATUS_TIMEOUT && ret_missing)
        *ret_missing = missing;
    else
        free(missing);
    return status;
}

/* "rank 2 is missing", "ranks 1, 4-7 are missing". */
static size_t list_missing(const bool *missing, unsigned size, struct strbuf *names)
{
    size_t count = 0;
    unsigned ranges = 0;

    for (unsigned rank = 0; rank < size; rank++) {
        const unsigned first = rank;

        if (!missing[rank])
            continue;
        while (rank + 1 < size && missing[rank + 1])
            rank++;
        count += rank - first + 1;
        if (ranges++ >= listed_ranges_max)
            continue;
        strbuf_addf(names, "%s%u", ranges > 1 ? ", " : "", first);
        if (rank > first)
            strbuf_addf(names, "-%u", rank);
    }
    if (ranges > listed_ranges_max)
        strbuf_add(names, ", ...");
    return count;
}

static enum status report_missing(struct store *store, int64_t start_ns, struct error *err)
{
    struct strbuf names = STRBUF_INIT;
    bool *missing = NULL;
    size_t count;
    const int64_t now_ns = clock_now_ns();
    enum status status = store_await_ranks(store, "rank", now_ns, now_ns, &missing, err);

    if (status == STATUS_OK) /* the last rank arrived after the deadline */
        return error_set(err, STATUS_TIMEOUT, "waited %.1f s for all %u ranks at %s (%s)",
                         (double)(clock_now_ns() - start_ns) * 1e-9, store->world_size,
                         store->address, store->origin);
    if (!missing) /* the query failed */
        return status;
    count = list_missing(missing, store->world_size, &names);
    status = error_set(
        err, STATUS_TIMEOUT, "waited %.1f s for %zu of %u ranks at %s (%s): rank%s %s %s missing",
        (double)(clock_now_ns() - start_ns) * 1e-9, count, store->world_size, store->address,
        store->origin, count == 1 ? "" : "s", names.text, count == 1 ? "is" : "are");
    strbuf_release(&names);
    free(missing);
    return status;
}

/* Of a query that waits wait_ms: rank 0 may reply reply_ms late, as its host may be busy starting
 * ranks. */
static int64_t reply_deadline_ns(int64_t wait_ms, int64_t deadline_ns)
{
    const int64_t reply_ns = clock_deadline_ns(wait_ms + reply_ms);

    return reply_ns < deadline_ns ? reply_ns : deadline_ns;
}

/* Show the missing ranks in the wait's line. */
static void note_missing(struct store *store, int64_t deadline_ns, struct wait *wait)
{
    struct strbuf names = STRBUF_INIT;
    bool *missing = NULL;

    if (store_await_ranks(store, "rank", clock_now_ns(), reply_deadline_ns(0, deadline_ns),
                          &missing, NULL) == STATUS_TIMEOUT &&
        missing) {
        size_t count = list_missing(missing, store->world_size, &names);

        wait_note(wait, "rank%s %s %s missing", count == 1 ? "" : "s", names.text,
                  count == 1 ? "is" : "are");
    }
    strbuf_release(&names);
    free(missing);
}

/* Get, updating the wait's line with the missing ranks every poll_ms. */
static enum status get_with_progress(struct store *store, const char *key, int64_t deadline_ns,
                                     struct wait *wait, char **ret_value, size_t *ret_size,
                                     struct error *err)
{
    for (;;) {
        int64_t poll_ns = clock_deadline_ns(poll_ms);
        bool is_last = poll_ns >= deadline_ns, is_missing;
        enum status status =
            store->ops->wait(store->impl, &key, 1, is_last ? deadline_ns : poll_ns,
                             reply_deadline_ns(poll_ms, deadline_ns), &is_missing, err);

        if (status == STATUS_OK)
            return store->ops->get(store->impl, key, deadline_ns, ret_value, ret_size, err);
        if (status != STATUS_TIMEOUT || is_last)
            return status;
        note_missing(store, deadline_ns, wait);
    }
}

static enum status await_outcome(struct store *store, int64_t start_ns, int64_t deadline_ns,
                                 struct wait *wait, struct error *err)
{
    char key[STORE_KEY_MAX + 1];
    char *value = NULL;
    size_t size;
    enum status status;

    store_reserved_key(store, "verdict", key);
    status = get_with_progress(store, key, deadline_ns, wait, &value, &size, err);
    if (status == STATUS_TIMEOUT)
        return report_missing(store, start_ns, err);
    if (status != STATUS_OK)
        return status;
    store_make_printable(value);
    if (strcmp(value, "mismatch") == 0)
        status = report_mismatch(store, deadline_ns, err);
    else if (strncmp(value, "duplicate ", 10) == 0)
        status = error_set(err, STATUS_MISMATCH, "%s (at %s, %s)", value + 10, store->address,
                           store->origin);
    else if (strcmp(value, "complete") != 0)
        status = error_set(err, STATUS_DATA, "the verdict '%.100s' in the store at %s is malformed",
                           value, store->address);
    free(value);
    return status;
}

static enum status run_rendezvous(struct store *store, int64_t start_ns, int64_t deadline_ns,
                                  struct wait *wait, struct error *err)
{
    bool differs = false;
    enum status status = compare_world_sizes(store, deadline_ns, &differs, err);

    if (status == STATUS_OK)
        status = announce_rank(store, deadline_ns, err);
    if (status != STATUS_OK)
        return status;
    if (differs)
        return report_mismatch(store, deadline_ns, err);
    /* Query once which ranks are present; rank 0 may reply late while its host starts many ranks.
     */
    status = store_await_ranks(store, "rank", clock_now_ns(), deadline_ns, NULL, err);
    if (status == STATUS_OK)
        status = set_outcome(store, "complete", deadline_ns, err);
    if (status != STATUS_OK && status != STATUS_TIMEOUT)
        return status;
    return await_outcome(store, start_ns, deadline_ns, wait, err);
}

enum status store_rendezvous(struct store *store, struct error *err)
{
    const int64_t start_ns = clock_now_ns();
    const int64_t deadline_ns = clock_deadline_ns(store->timeout_ms);
    struct wait wait;
    enum status status;

    wait_begin(&wait, deadline_ns, "all %u ranks at %s", store->world_size, store->address);
    status = run_rendezvous(store, start_ns, deadline_ns, &wait, err);
    wait_end(&wait);
    return status;
}
