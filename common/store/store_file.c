/*
 * The store in a shared file.  Every handle replays the file's log into its own table; an operation
 * takes the mutex and the file lock, catches up, changes the table, appends the change and unlocks.
 * A wait polls every few milliseconds: no notification works on every network file system.
 * Locking: `mutex` guards the log (threads of one handle), the file lock guards the file (handles).
 * Both are held only for the I/O of one operation; a file lock that is not released (a stopped
 * process) is an error at the deadline.
 */
#include "common/store/store_ops.h"

#include "common/base/clock.h"
#include "common/base/memory.h"
#include "common/base/stop.h"
#include "common/store/store_log.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { lock_pause_ns = 200000, poll_first_ns = 500000, poll_longest_ns = 10000000 };
enum { lock_minimum_ms = 1000 }; /* a holder needs microseconds, unless it was stopped */

struct store_file {
    pthread_mutex_t mutex; /* guards log */
    struct store_log log;
};

/* Sleep for `pause_ns`, not past the deadline. */
static void pause_for(int64_t pause_ns, int64_t deadline_ns)
{
    const int64_t left_ns = deadline_ns - clock_now_ns();
    struct timespec pause = {0};

    if (left_ns <= 0)
        return;
    pause.tv_nsec = (long)(left_ns < pause_ns ? left_ns : pause_ns);
    (void)nanosleep(&pause, NULL);
}

static void unlock_file(struct store_file *file)
{
    store_log_unlock(&file->log);
    (void)pthread_mutex_unlock(&file->mutex);
}

/* Take both locks and catch up, waiting for them at least lock_minimum_ms: an operation without a
 * time-out must not fail because another handle holds the lock for a moment. */
static enum status lock_and_catch_up(struct store_file *file, bool exclusive, int64_t deadline_ns,
                                     struct error *err)
{
    const int64_t start_ns = clock_now_ns();
    const int64_t minimum_ns = clock_deadline_ns(lock_minimum_ms);
    const int64_t until_ns = deadline_ns > minimum_ns ? deadline_ns : minimum_ns;
    bool locked = false;

    for (;;) {
        enum status status;

        (void)pthread_mutex_lock(&file->mutex);
        status = store_log_try_lock(&file->log, exclusive, &locked, err);
        if (locked) {
            status = store_log_catch_up(&file->log, err);
            if (status != STATUS_OK)
                unlock_file(file);
            return status;
        }
        (void)pthread_mutex_unlock(&file->mutex);
        if (status != STATUS_OK)
            return status;
        if (clock_now_ns() >= until_ns)
            return error_set(err, STATUS_UNREACHABLE,
                             "waited %.1f s for the lock on store file '%s', which another process "
                             "holds",
                             (double)(clock_now_ns() - start_ns) * 1e-9, file->log.path);
        pause_for(lock_pause_ns, until_ns);
    }
}

static enum status file_set(void *impl, const char *key, const void *value, size_t size,
                            int64_t deadline_ns, struct error *err)
{
    struct store_file *file = impl;
    enum status status = lock_and_catch_up(file, true, deadline_ns, err);

    if (status != STATUS_OK)
        return status;
    status = store_table_set(file->log.table, key, value, size, false, err);
    if (status == STATUS_OK)
        status = store_log_append(&file->log, STORE_PUT, key, value, size, err);
    unlock_file(file);
    return status;
}

static enum status file_add(void *impl, const char *key, int64_t delta, int64_t deadline_ns,
                            int64_t *ret_sum, struct error *err)
{
    struct store_file *file = impl;
    int64_t sum = 0;
    enum status status = lock_and_catch_up(file, true, deadline_ns, err);

    if (status != STATUS_OK)
        return status;
    status = store_table_add(file->log.table, key, delta, &sum, err);
    if (status == STATUS_OK) {
        char text[32];
        const int length = snprintf(text, sizeof(text), "%jd", (intmax_t)sum);

        status = store_log_append(&file->log, STORE_PUT_COUNTER, key, text, (size_t)length, err);
    }
    unlock_file(file);
    if (status == STATUS_OK)
        *ret_sum = sum;
    return status;
}

static enum status file_compare_set(void *impl, const char *key, const char *expected,
                                    const char *desired, int64_t deadline_ns, char **ret_value,
                                    struct error *err)
{
    struct store_file *file = impl;
    const size_t size = strlen(desired);
    char *value = NULL;
    size_t value_size;
    bool written = false;
    enum status status = lock_and_catch_up(file, true, deadline_ns, err);

    if (status != STATUS_OK)
        return status;
    status = store_table_compare_set(file->log.table, key, expected, strlen(expected), desired,
                                     size, &value, &value_size, &written, err);
    if (status == STATUS_OK && written)
        status = store_log_append(&file->log, STORE_PUT, key, desired, size, err);
    unlock_file(file);
    if (status == STATUS_OK)
        *ret_value = value;
    else
        free(value);
    return status;
}

static enum status file_remove(void *impl, const char *key, int64_t deadline_ns, bool *ret_found,
                               struct error *err)
{
    struct store_file *file = impl;
    bool found = false;
    enum status status = lock_and_catch_up(file, true, deadline_ns, err);

    if (status != STATUS_OK)
        return status;
    found = store_table_delete(file->log.table, key);
    if (found)
        status = store_log_append(&file->log, STORE_DELETE, key, "", 0, err);
    unlock_file(file);
    if (status == STATUS_OK)
        *ret_found = found;
    return status;
}

static enum status file_num_keys(void *impl, int64_t deadline_ns, int64_t *ret_count,
                                 struct error *err)
{
    struct store_file *file = impl;
    enum status status = lock_and_catch_up(file, false, deadline_ns, err);

    if (status != STATUS_OK)
        return status;
    *ret_count = (int64_t)store_table_count(file->log.table);
    unlock_file(file);
    return STATUS_OK;
}

/* Check once; STATUS_TIMEOUT when a key is missing. */
static enum status check_keys(struct store_file *file, const char *const *keys, size_t count,
                              bool *missing, int64_t lock_deadline_ns, struct error *err)
{
    enum status status = lock_and_catch_up(file, false, lock_deadline_ns, err);

    if (status != STATUS_OK)
        return status;
    for (size_t i = 0; i < count; i++) {
        missing[i] = !store_table_has(file->log.table, keys[i]);
        if (missing[i])
            status = STATUS_TIMEOUT;
    }
    unlock_file(file);
    return status;
}

/* Under the mutex, without the file lock: the table is that of the last check, or newer. */
static enum status copy_value(struct store_file *file, const char *key, char **ret_value,
                              size_t *ret_size, struct error *err)
{
    enum status status;

    (void)pthread_mutex_lock(&file->mutex);
    status = store_table_get(file->log.table, key, ret_value, ret_size, err);
    (void)pthread_mutex_unlock(&file->mutex);
    return status;
}

static enum status file_wait(void *impl, const char *const *keys, size_t count, int64_t deadline_ns,
                             int64_t reply_deadline_ns, bool *ret_missing, struct error *err)
{
    const int64_t lock_deadline_ns =
        reply_deadline_ns > deadline_ns ? reply_deadline_ns : deadline_ns;
    int64_t pause_ns = poll_first_ns;

    for (;;) {
        const bool late = clock_now_ns() >= deadline_ns;
        enum status status = check_keys(impl, keys, count, ret_missing, lock_deadline_ns, err);

        if (status != STATUS_TIMEOUT || late)
            return status;
        if (stop_ends_waits())
            return error_set(err, STATUS_CANCELLED, "stopped by signal %d while a key was missing",
                             stop_requested());
        pause_for(pause_ns, deadline_ns);
        pause_ns = pause_ns * 2 < poll_longest_ns ? pause_ns * 2 : poll_longest_ns;
    }
}

static enum status file_get(void *impl, const char *key, int64_t deadline_ns, char **ret_value,
                            size_t *ret_size, struct error *err)
{
    for (;;) {
        bool missing;
        enum status status = file_wait(impl, &key, 1, deadline_ns, deadline_ns, &missing, err);

        if (status == STATUS_OK)
            status = copy_value(impl, key, ret_value, ret_size, err);
        if (status != STATUS_NOT_FOUND)
            return status;
        /* Deleted between the two: wait again. */
    }
}

/* ---- the end of a group */

struct group_scan {
    const char *prefix;
    bool has_foreign_keys; /* keys that are not of the group */
    char key[STORE_KEY_MAX + 1];
};

static bool is_in_group(const char *key, const char *prefix)
{
    if (prefix[0] == '\0') /* the unnamed group: without the reserved keys of other groups */
        return !strstr(key, "/" STORE_RESERVED);
    return strncmp(key, prefix, strlen(prefix)) == 0;
}

static bool find_foreign_key(const char *key, void *user)
{
    struct group_scan *scan = user;

    scan->has_foreign_keys = !is_in_group(key, scan->prefix);
    return !scan->has_foreign_keys;
}

static bool find_group_key(const char *key, void *user)
{
    struct group_scan *scan = user;

    if (!is_in_group(key, scan->prefix))
        return true;
    (void)snprintf(scan->key, sizeof(scan->key), "%s", key);
    return false;
}

/* Remove the file, or only the group's keys when other groups use the file. */
static void file_remove_group(void *impl, const char *prefix, int64_t deadline_ns)
{
    struct store_file *file = impl;
    struct group_scan scan = {.prefix = prefix};

    if (lock_and_catch_up(file, true, deadline_ns, NULL) != STATUS_OK)
        return;
    store_table_each_key(file->log.table, find_foreign_key, &scan);
    if (!scan.has_foreign_keys) {
        (void)store_log_remove(&file->log, NULL);
    } else if (prefix[0] != '\0') {
        do {
            scan.key[0] = '\0';
            store_table_each_key(file->log.table, find_group_key, &scan);
        } while (scan.key[0] != '\0' && store_table_delete(file->log.table, scan.key) &&
                 store_log_append(&file->log, STORE_DELETE, scan.key, "", 0, NULL) == STATUS_OK);
    }
    unlock_file(file);
}

/* ---- open and close */

static void file_close(void *impl)
{
    struct store_file *file = impl;

    store_log_release(&file->log);
    (void)pthread_mutex_destroy(&file->mutex);
    free(file);
}

static enum status file_open(const struct store_config *config, const struct init_method *method,
                             int64_t deadline_ns, void **ret_impl, struct error *err)
{
    struct store_file *file = NULL;
    enum status status = mem_calloc(1, sizeof(*file), "a file store", &file, err);

    (void)config;
    if (status != STATUS_OK)
        return status;
    status = store_log_open(&file->log, method->path, err);
    if (status != STATUS_OK) {
        free(file);
        return status;
    }
    (void)pthread_mutex_init(&file->mutex, NULL);
    status = lock_and_catch_up(file, false, deadline_ns, err);
    if (status != STATUS_OK) {
        file_close(file);
        return status;
    }
    unlock_file(file);
    *ret_impl = file;
    return STATUS_OK;
}

static void file_address(const void *impl, char *text, size_t size)
{
    const struct store_file *file = impl;

    (void)snprintf(text, size, "file://%s", file->log.path);
}

static bool file_is_server(const void *impl)
{
    (void)impl;
    return false;
}

const struct store_ops store_file_ops = {
    .open = file_open,
    .set = file_set,
    .get = file_get,
    .add = file_add,
    .compare_set = file_compare_set,
    .wait = file_wait,
    .remove = file_remove,
    .num_keys = file_num_keys,
    .remove_group = file_remove_group,
    .address = file_address,
    .is_server = file_is_server,
    .close = file_close,
};
