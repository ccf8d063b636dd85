/*
 * The public functions of the store: add the group prefix to keys, convert time-outs to deadlines,
 * and write the error texts of time-outs.  The implementations behind store_ops do the storage.
 * Limits: a key is printable ASCII, 1 to 1024 bytes with its prefix; a value has 16 MiB at most.
 * Locking: none here; a struct store does not change after store_open.
 */
#include "common/store/store.h"

#include "common/base/clock.h"
#include "common/base/memory.h"
#include "common/base/strbuf.h"
#include "common/store/store_ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum { default_timeout_ms = 300000, listed_keys_max = 16 };

/* ---- keys */

static enum status check_text(const char *what, const char *text, struct error *err)
{
    for (const char *p = text; *p; p++)
        if (*p < ' ' || *p > '~')
            return error_set(err, STATUS_INVALID,
                             "%s has a character (0x%02x at byte %zu) that is not printable ASCII",
                             what, (unsigned)(unsigned char)*p, (size_t)(p - text));
    return STATUS_OK;
}

/* "<prefix><key>" into full, which has STORE_KEY_MAX + 1 bytes. */
static enum status make_full_key(const struct store *store, const char *key, char *full,
                                 struct error *err)
{
    enum status status = check_text("a store key", key, err);
    int length;

    if (status != STATUS_OK)
        return status;
    if (key[0] == '\0')
        return error_set(err, STATUS_INVALID, "a store key must not be empty");
    length = snprintf(full, STORE_KEY_MAX + 1, "%s%s", store->prefix, key);
    if (length < 0 || length > (int)STORE_KEY_MAX)
        return error_set(err, STATUS_INVALID,
                         "store key '%.40s...' has %d bytes with its group, %u allowed", key,
                         length, STORE_KEY_MAX);
    return STATUS_OK;
}

static int64_t deadline_of(const struct store *store, int64_t timeout_ms)
{
    return clock_deadline_ns(timeout_ms < 0 ? store->timeout_ms : timeout_ms);
}

/* ---- open */

static enum status make_prefix(const char *group, char **ret, struct error *err)
{
    char prefix[STORE_KEY_MAX / 2 + 2] = "";
    enum status status;

    if (group && group[0] != '\0') {
        status = check_text("the group name of a store", group, err);
        if (status != STATUS_OK)
            return status;
        if (strlen(group) > STORE_KEY_MAX / 2)
            return error_set(err, STATUS_INVALID,
                             "the group name of a store has %zu bytes, %u allowed", strlen(group),
                             STORE_KEY_MAX / 2);
        (void)snprintf(prefix, sizeof(prefix), "%s/", group);
    }
    return mem_strdup(prefix, ret, err);
}

/* A text that identifies this handle uniquely. */
static enum status make_identity(char **ret, struct error *err)
{
    char host[256] = "";
    char identity[320];
    uint64_t nonce = 0;

    if (gethostname(host, sizeof(host) - 1) != 0 || host[0] == '\0')
        (void)snprintf(host, sizeof(host), "unknown-host");
    if (getrandom(&nonce, sizeof(nonce), 0) != (ssize_t)sizeof(nonce))
        nonce = (uint64_t)clock_now_ns();
    (void)snprintf(identity, sizeof(identity), "%ld %016jx %s", (long)getpid(), (uintmax_t)nonce,
                   host);
    return mem_strdup(identity, ret, err);
}

static void store_release(struct store *store)
{
    if (store->impl)
        store->ops->close(store->impl);
    free(store->prefix);
    free(store->identity);
    free(store);
}

static enum status open_impl(struct store *store, const struct store_config *config,
                             struct error *err)
{
    struct init_method method;
    enum status status = init_method_parse(config->init_method, config->launch, &method, err);

    if (status != STATUS_OK)
        return status;
    store->ops = method.is_file ? &store_file_ops : &store_grpc_ops;
    status =
        store->ops->open(config, &method, clock_deadline_ns(store->timeout_ms), &store->impl, err);
    if (status != STATUS_OK)
        return status;
    store->ops->address(store->impl, store->address, sizeof(store->address));
    (void)snprintf(store->origin, sizeof(store->origin), "%s", method.origin);
    return STATUS_OK;
}

enum status store_open(const struct store_config *config, struct store **ret_store,
                       struct error *err)
{
    struct store *store = NULL;
    enum status status = mem_calloc(1, sizeof(*store), "a store", &store, err);

    if (status != STATUS_OK)
        return status;
    store->rank = config->launch->rank;
    store->world_size = config->launch->world_size;
    store->timeout_ms = config->timeout_ms > 0 ? config->timeout_ms : default_timeout_ms;
    status = make_prefix(config->group, &store->prefix, err);
    if (status == STATUS_OK)
        status = make_identity(&store->identity, err);
    if (status == STATUS_OK)
        status = open_impl(store, config, err);
    if (status != STATUS_OK) {
        store_release(store);
        return status;
    }
    *ret_store = store;
    return STATUS_OK;
}

const char *store_address(const struct store *store)
{
    return store->address;
}

unsigned store_rank(const struct store *store)
{
    return store->rank;
}

unsigned store_world_size(const struct store *store)
{
    return store->world_size;
}

/* ---- operations */

enum status store_set(struct store *store, const char *key, const void *value, size_t size,
                      struct error *err)
{
    char full[STORE_KEY_MAX + 1];
    enum status status = make_full_key(store, key, full, err);

    if (status != STATUS_OK)
        return status;
    return store->ops->set(store->impl, full, value, size, deadline_of(store, -1), err);
}

enum status store_get(struct store *store, const char *key, int64_t timeout_ms, char **ret_value,
                      size_t *ret_size, struct error *err)
{
    const int64_t start_ns = clock_now_ns();
    char full[STORE_KEY_MAX + 1];
    enum status status = make_full_key(store, key, full, err);

    if (status != STATUS_OK)
        return status;
    status = store->ops->get(store->impl, full, deadline_of(store, timeout_ms), ret_value, ret_size,
                             err);
    if (status == STATUS_TIMEOUT)
        return error_set(err, status, "waited %.1f s for store key '%s' at %s (%s)",
                         (double)(clock_now_ns() - start_ns) * 1e-9, key, store->address,
                         store->origin);
    return status;
}

enum status store_add(struct store *store, const char *key, int64_t delta, int64_t *ret_sum,
                      struct error *err)
{
    char full[STORE_KEY_MAX + 1];
    enum status status = make_full_key(store, key, full, err);

    if (status != STATUS_OK)
        return status;
    return store->ops->add(store->impl, full, delta, deadline_of(store, -1), ret_sum, err);
}

enum status store_compare_set(struct store *store, const char *key, const char *expected,
                              const char *desired, char **ret_value, struct error *err)
{
    char full[STORE_KEY_MAX + 1];
    enum status status = make_full_key(store, key, full, err);

    if (status != STATUS_OK)
        return status;
    return store->ops->compare_set(store->impl, full, expected, desired, deadline_of(store, -1),
                                   ret_value, err);
}

enum status store_delete(struct store *store, const char *key, bool *ret_found, struct error *err)
{
    char full[STORE_KEY_MAX + 1];
    enum status status = make_full_key(store, key, full, err);

    if (status != STATUS_OK)
        return status;
    return store->ops->remove(store->impl, full, deadline_of(store, -1), ret_found, err);
}

enum status store_num_keys(struct store *store, int64_t *ret_count, struct error *err)
{
    return store->ops->num_keys(store->impl, deadline_of(store, -1), ret_count, err);
}

/* ---- wait */

/* The keys of one wait with their prefixes, in one block. */
struct key_list {
    char *text;
    const char **keys;
    bool *missing;
};

static void key_list_release(struct key_list *list)
{
    free(list->text);
    free(list->keys);
    free(list->missing);
}

static enum status key_list_init(const struct store *store, const char *const *keys, size_t count,
                                 struct key_list *list, struct error *err)
{
    const size_t prefix_size = strlen(store->prefix);
    size_t bytes = 0;
    char *next;
    enum status status = STATUS_OK;

    if (count > STORE_KEYS_MAX)
        return error_set(err, STATUS_INVALID, "cannot wait for %zu store keys, %u are allowed",
                         count, STORE_KEYS_MAX);
    for (size_t i = 0; i < count; i++)
        bytes += prefix_size + strlen(keys[i]) + 1;
    status = mem_calloc(bytes, 1, "the keys to wait for", &list->text, err);
    if (status == STATUS_OK)
        status = mem_calloc(count, sizeof(*list->keys), "the keys to wait for", &list->keys, err);
    if (status == STATUS_OK)
        status =
            mem_calloc(count, sizeof(*list->missing), "the keys to wait for", &list->missing, err);
    next = list->text;
    for (size_t i = 0; i < count && status == STATUS_OK; i++) {
        char full[STORE_KEY_MAX + 1];

        status = make_full_key(store, keys[i], full, err);
        if (status != STATUS_OK)
            break;
        memcpy(next, full, strlen(full) + 1);
        list->keys[i] = next;
        next += strlen(full) + 1;
    }
    return status;
}

static enum status report_missing(const struct store *store, const char *const *keys,
                                  const bool *missing, size_t count, int64_t start_ns,
                                  struct error *err)
{
    struct strbuf names = STRBUF_INIT;
    size_t missing_count = 0;
    enum status status;

    for (size_t i = 0; i < count; i++) {
        if (!missing[i] || missing_count++ >= listed_keys_max)
            continue;
        strbuf_addf(&names, "%s'%.100s'", missing_count > 1 ? ", " : "", keys[i]);
    }
    if (missing_count > listed_keys_max)
        strbuf_addf(&names, " and %zu more", missing_count - listed_keys_max);
    status = error_set(err, STATUS_TIMEOUT,
                       "waited %.1f s for %zu of %zu store keys at %s (%s): "
                       "%s missing",
                       (double)(clock_now_ns() - start_ns) * 1e-9, missing_count, count,
                       store->address, store->origin, names.text);
    strbuf_release(&names);
    return status;
}

enum status store_wait(struct store *store, const char *const *keys, size_t count,
                       int64_t timeout_ms, struct error *err)
{
    const int64_t start_ns = clock_now_ns();
    const int64_t deadline_ns = deadline_of(store, timeout_ms);
    struct key_list list = {0};
    enum status status = key_list_init(store, keys, count, &list, err);

    if (status == STATUS_OK)
        status = store->ops->wait(store->impl, list.keys, count, deadline_ns, deadline_ns,
                                  list.missing, err);
    if (status == STATUS_TIMEOUT && list.missing)
        status = report_missing(store, keys, list.missing, count, start_ns, err);
    key_list_release(&list);
    return status;
}

/* ---- close */

void store_close(struct store *store, int64_t departure_timeout_ms)
{
    if (!store)
        return;
    if (departure_timeout_ms >= 0)
        store_depart(store, clock_deadline_ns(departure_timeout_ms));
    store_release(store);
}
