/*
 * store_log: the file of a file store, an append-only log that every handle replays.
 *
 * Data.  A header of 32 bytes: "sparring store 1", the committed size (u64), zero (u64).  Then
 * records: magic, kind, key bytes, value bytes, CRC-32 (u32 each), key, value.  Numbers are little
 * endian.  Bytes after the committed size come from a process that died while writing; the next
 * writer overwrites them.
 * Not the format of the server's journal (server/persistence/journal.h): here several processes
 * write in turn and read while others write, so a committed size is needed; the journal has one
 * writer, is read after its end, and finds a torn record by its CRC.
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
    uint64_t applied;          /* bytes of the file that `table` contains */
    struct store_table *table; /* owned; this handle's copy of the file */
    bool has_written;
};

/* Open or create the file at `path`; nothing is read or locked yet. */
enum status store_log_open(struct store_log *log, const char *path, struct error *err);
void store_log_release(struct store_log *log);

/* Take the file lock, shared or exclusive, if it is free (*ret_locked).  Never blocks. */
enum status store_log_try_lock(struct store_log *log, bool exclusive, bool *ret_locked,
                               struct error *err);
void store_log_unlock(struct store_log *log);

/* Under the lock: apply the records that others have appended.  STATUS_DATA: the file is truncated
 * or not a store file, STATUS_IO: it was removed after this handle wrote to it. */
enum status store_log_catch_up(struct store_log *log, struct error *err);

/* Under the exclusive lock, after store_log_catch_up: append a record that the table has applied
 * already.  After a failure the table is rebuilt from the file. */
enum status store_log_append(struct store_log *log, enum store_record kind, const char *key,
                             const void *value, size_t size, struct error *err);

/* Under the exclusive lock: remove the file; the next open of the path creates an empty store. */
enum status store_log_remove(struct store_log *log, struct error *err);

#endif
