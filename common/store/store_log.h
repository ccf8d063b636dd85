/*
 * store_log: the file behind a file store, an append-only log that every process replays.
 *
 * Data.  A header of 32 bytes: "sparring store 1", the committed size (u64), zero (u64).  Then
 * records: magic, kind, key bytes, value bytes, CRC-32 (u32 each), key, value.  Numbers are little
 * endian.  What lies behind the committed size was written by a process that died on the way; the
 * next writer overwrites it.
 * Threads: one caller at a time; the lock is held between store_log_try_lock and store_log_unlock.
 */
#ifndef SPARRING_COMMON_STORE_STORE_LOG_H
#define SPARRING_COMMON_STORE_STORE_LOG_H

#include "common/base/error.h"
#include "common/store/store_table.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STORE_LOG_BYTES_MAX (1024u << 20)

enum store_record { STORE_PUT = 1, STORE_PUT_COUNTER = 2, STORE_DELETE = 3 };

struct store_log {
    char *path; /* owned */
    int fd;
    uint64_t applied;          /* bytes of the file that `table` holds */
    struct store_table *table; /* owned; this handle's copy of the file */
    bool wrote;
};

/* Open or create the file at `path`; nothing is read or locked yet. */
enum status store_log_open(struct store_log *log, const char *path, struct error *err);
void store_log_release(struct store_log *log);

/* Take the file lock, shared or exclusive, if it is free; *ret_locked tells.  Never blocks. */
enum status store_log_try_lock(struct store_log *log, bool exclusive, bool *ret_locked,
                               struct error *err);
void store_log_unlock(struct store_log *log);

/* Under the lock: apply what others have written.  STATUS_DATA for a file that is cut off or not
 * ours, STATUS_IO for one that was removed after this handle wrote to it. */
enum status store_log_catch_up(struct store_log *log, struct error *err);

/* Under the exclusive lock, behind store_log_catch_up: append a record that the table has applied
 * already.  After a failure the table is read again from the file. */
enum status store_log_append(struct store_log *log, enum store_record kind, const char *key,
                             const void *value, size_t size, struct error *err);

/* Under the exclusive lock: remove the file; who opens the path next starts an empty store. */
enum status store_log_remove(struct store_log *log, struct error *err);

#endif
