/*
 * The state folder: its lock, the terms of jobs, their folders.
 *
 * terms.json contains the bytes of the join request in hexadecimal, so that every field survives;
 * its other fields are for human readers.  A folder is created and removed under another name, so
 * that an interrupted process never leaves an incomplete folder under the job's.
 */
#include "server/persistence/state_dir.h"

#include "common/base/file.h"
#include "common/base/memory.h"
#include "common/base/strbuf.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#define TERMS_NAME      "terms.json"
#define TERMS_FORMAT    1
#define TERMS_BYTES_MAX ((size_t)4 << 20) /* above the hexadecimal digits of WIRE_CONTROL_MAX */
#define NAME_BYTES_MAX  200u              /* of a job's name in a path; longer ones are cut */
#define SUFFIX_FAILED   ".failed"
#define SUFFIX_NEW      ".new" /* being created; left by a process that died */
#define SUFFIX_OLD      ".old" /* being removed; likewise */

enum status state_dir_open(struct state_dir *d, const char *path, struct error *err)
{
    int length = snprintf(d->path, sizeof(d->path), "%s", path);
    enum status status;

    d->lock_fd = -1;
    if (length < 0 || (size_t)length >= sizeof(d->path) - 2 * NAME_BYTES_MAX)
        return error_set(err, STATUS_CONFIG, "the path of the state folder has %d bytes", length);
    status = file_make_folder(path, err);
    return status == STATUS_OK ? file_lock_folder(path, "server", &d->lock_fd, err) : status;
}

void state_dir_close(struct state_dir *d)
{
    if (!d || d->path[0] == '\0' || d->lock_fd < 0)
        return;
    (void)close(d->lock_fd);
    d->lock_fd = -1;
}

/* ------------------------------------------------------------------ terms */

static uint64_t terms_digest(const uint8_t *bytes, size_t size)
{
    return (uint64_t)size << 32 | (uint64_t)crc32(crc32(0, NULL, 0), bytes, (uInt)size);
}

static void add_hex(struct strbuf *out, const uint8_t *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        strbuf_addf(out, "%02x", bytes[i]);
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static enum status parse_hex(const char *name, const char *text, uint8_t **ret_bytes,
                             size_t *ret_size, struct error *err)
{
    size_t length = strlen(text);
    uint8_t *bytes;
    enum status status;

    if (length == 0 || length % 2 != 0 || length / 2 > WIRE_CONTROL_MAX)
        return error_set(err, STATUS_DATA, "'%s': %zu digits are no request", name, length);
    status = mem_calloc(length / 2, 1, "a join request", &bytes, err);
    if (status != STATUS_OK)
        return status;
    for (size_t i = 0; i < length / 2; i++) {
        int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);

        if (high < 0 || low < 0) {
            free(bytes);
            return error_set(err, STATUS_DATA, "'%s': digit %zu of the request is none", name,
                             2 * i);
        }
        bytes[i] = (uint8_t)(high << 4 | low);
    }
    *ret_bytes = bytes;
    *ret_size = length / 2;
    return STATUS_OK;
}

static enum status parse_request(const char *name, const json_t *root,
                                 struct join_request *ret_terms, uint64_t *ret_digest,
                                 struct error *err)
{
    const char *text = json_string_value(json_object_get(root, "request"));
    const char *digest = json_string_value(json_object_get(root, "digest"));
    const json_t *format = json_object_get(root, "format");
    char wanted[32];
    uint8_t *bytes = NULL;
    size_t size = 0;
    enum status status;

    if (!json_is_integer(format) || json_integer_value(format) != TERMS_FORMAT || !text || !digest)
        return error_set(err, STATUS_DATA, "'%s' has not the fields of format %d", name,
                         TERMS_FORMAT);
    status = parse_hex(name, text, &bytes, &size, err);
    if (status != STATUS_OK)
        return status;
    (void)snprintf(wanted, sizeof(wanted), "%016" PRIx64, terms_digest(bytes, size));
    if (strcmp(wanted, digest) != 0)
        status = error_set(err, STATUS_DATA, "'%s' is damaged: its digest is not %s", name, wanted);
    if (status == STATUS_OK)
        status = wire_unpack_join_request(bytes, size, ret_terms, err);
    if (status == STATUS_OK)
        *ret_digest = terms_digest(bytes, size);
    free(bytes);
    return status;
}

static enum status parse_terms(const char *name, const char *text, size_t size,
                               struct join_request *ret_terms, uint64_t *ret_digest,
                               struct error *err)
{
    json_error_t why;
    json_t *root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &why);
    enum status status;

    memset(ret_terms, 0, sizeof(*ret_terms));
    if (!root)
        return error_set(err, STATUS_DATA, "'%s' is not JSON: %s (byte %d)", name, why.text,
                         why.position);
    status = parse_request(name, root, ret_terms, ret_digest, err);
    json_decref(root);
    return status;
}

static enum status write_terms(const char *folder, const struct join_request *t,
                               uint64_t *ret_digest, struct error *err)
{
    struct strbuf text = STRBUF_INIT;
    char path[STATE_PATH_MAX];
    uint8_t *bytes;
    size_t size;
    enum status status = wire_pack_join_request(t, &bytes, &size, err);

    if (status != STATUS_OK)
        return status;
    *ret_digest = terms_digest(bytes, size);
    strbuf_addf(&text, "{\"format\": %d,\n \"job\": ", TERMS_FORMAT);
    strbuf_add_json(&text, t->job);
    strbuf_addf(&text,
                ",\n \"server\": %" PRIu32 ", \"servers\": %" PRIu32 ", \"world_size\": %" PRIu32
                ",\n \"elements\": %" PRIu64 ", \"update\": \"%s\", \"consistency\": \"%s\",\n "
                "\"digest\": \"%016" PRIx64 "\",\n \"request\": \"",
                t->server_index, t->server_count, t->world_size, t->element_count,
                t->update == 0 ? "server" : "worker", consistency_name(t->consistency.mode),
                *ret_digest);
    add_hex(&text, bytes, size);
    strbuf_add(&text, "\"}\n");
    free(bytes);
    status = file_join(path, sizeof(path), folder, TERMS_NAME, err);
    if (status == STATUS_OK)
        status = file_write_text(path, &text, err);
    strbuf_release(&text);
    return status;
}

static enum status read_terms(const char *folder, struct join_request *ret_terms,
                              uint64_t *ret_digest, struct error *err)
{
    char path[STATE_PATH_MAX], *text;
    size_t size;
    enum status status = file_join(path, sizeof(path), folder, TERMS_NAME, err);

    if (status == STATUS_OK)
        status = file_read(path, TERMS_BYTES_MAX, &text, &size, err);
    if (status != STATUS_OK)
        return status;
    status = parse_terms(path, text, size, ret_terms, ret_digest, err);
    free(text);
    return status;
}

/* ------------------------------------------------------------------ folders */

/* Append a job's name as part of a path: all but letters, digits and "-_+=@,." is escaped, and so
 * is a leading dot.  A long name is cut, and the checksum of all of it appended. */
static void add_escaped_name(struct strbuf *out, const char *job)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_+=@,.";

    for (const char *c = job; *c; c++) {
        if (strchr(plain, *c) && !(c == job && *c == '.'))
            strbuf_addf(out, "%c", *c);
        else
            strbuf_addf(out, "%%%02X", (unsigned)(unsigned char)*c);
        if (out->length > NAME_BYTES_MAX) {
            strbuf_addf(out, "-%08lx",
                        crc32(crc32(0, NULL, 0), (const Bytef *)job, (uInt)strlen(job)));
            return;
        }
    }
}

static enum status job_folder_path(const struct state_dir *d, const struct join_request *terms,
                                   char *ret_folder, struct error *err)
{
    struct strbuf name = STRBUF_INIT;
    enum status status = STATUS_OK;

    add_escaped_name(&name, terms->job);
    strbuf_addf(&name, ".%" PRIu32, terms->server_index);
    if (!strbuf_ok(&name))
        status = error_set(err, STATUS_NO_MEMORY, "no memory for the name of a folder");
    if (status == STATUS_OK)
        status = file_join(ret_folder, STATE_PATH_MAX, d->path, name.text, err);
    strbuf_release(&name);
    return status;
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), wanted = strlen(end);

    return length >= wanted && strcmp(text + length - wanted, end) == 0;
}

/* Is this the folder of an unfinished job? */
static enum status holds_job(const char *folder, bool *ret_holds, struct error *err)
{
    char path[STATE_PATH_MAX];
    enum status status = file_join(path, sizeof(path), folder, TERMS_NAME, err);

    if (status == STATUS_OK)
        *ret_holds = !ends_with(folder, SUFFIX_FAILED) && !ends_with(folder, SUFFIX_NEW) &&
                     !ends_with(folder, SUFFIX_OLD) && access(path, F_OK) == 0;
    return status;
}

static bool is_job_file(const char *name)
{
    static const char *const beginnings[] = {TERMS_NAME, "snapshot-", "journal-"};

    for (size_t i = 0; i < sizeof(beginnings) / sizeof(beginnings[0]); i++)
        if (strncmp(name, beginnings[i], strlen(beginnings[i])) == 0)
            return true;
    return false;
}

/* Remove the folder and the files of its job; fails when it contains others. */
static enum status remove_folder(const char *folder, struct error *err)
{
    DIR *entries = opendir(folder);
    const struct dirent *entry;
    int failed = 0;

    if (!entries)
        return error_set_errno(err, errno, "cannot open '%s'", folder);
    while (!failed && (entry = readdir(entries)))
        if (is_job_file(entry->d_name) && unlinkat(dirfd(entries), entry->d_name, 0) != 0 &&
            errno != ENOENT)
            failed = errno;
    (void)closedir(entries);
    if (!failed && rmdir(folder) != 0)
        failed = errno;
    return failed ? error_set_errno(err, failed, "cannot remove '%s'", folder) : STATUS_OK;
}

static enum status append_suffix(const char *folder, const char *suffix, char *ret,
                                 struct error *err)
{
    int length = snprintf(ret, STATE_PATH_MAX, "%s%s", folder, suffix);

    if (length < 0 || length >= STATE_PATH_MAX)
        return error_set(err, STATUS_CONFIG, "the path '%s' is too long", folder);
    return STATUS_OK;
}

/* Rename `from` to `to`, after removing what has that name. */
static enum status replace_folder(const char *from, const char *to, struct error *err)
{
    enum status status = access(to, F_OK) == 0 ? remove_folder(to, err) : STATUS_OK;

    if (status == STATUS_OK && rename(from, to) != 0)
        status = error_set_errno(err, errno, "cannot rename '%s' to '%s'", from, to);
    return status;
}

static enum status find_job_folder(const struct state_dir *d, DIR *entries, char *ret_folder,
                                   struct error *err)
{
    const struct dirent *entry;

    while ((entry = readdir(entries))) {
        char folder[STATE_PATH_MAX];
        bool holds;
        enum status status;

        if (entry->d_name[0] == '.')
            continue;
        status = file_join(folder, sizeof(folder), d->path, entry->d_name, err);
        if (status == STATUS_OK && (ends_with(folder, SUFFIX_NEW) || ends_with(folder, SUFFIX_OLD)))
            (void)remove_folder(folder, NULL); /* harmless if it stays */
        if (status == STATUS_OK)
            status = holds_job(folder, &holds, err);
        if (status != STATUS_OK)
            return status;
        if (!holds)
            continue;
        if (ret_folder[0] != '\0')
            return error_set(err, STATUS_EXISTS,
                             "'%s' and '%s' both hold a job that was not finished: remove one of "
                             "them, or add '%s' to its name",
                             ret_folder, folder, SUFFIX_FAILED);
        memcpy(ret_folder, folder, sizeof(folder));
    }
    return STATUS_OK;
}

enum status state_dir_find(const struct state_dir *d, char *ret_folder,
                           struct join_request *ret_terms, uint64_t *ret_digest, struct error *err)
{
    DIR *entries = opendir(d->path);
    enum status status;

    ret_folder[0] = '\0';
    if (!entries)
        return error_set_errno(err, errno, "cannot open the state folder '%s'", d->path);
    status = find_job_folder(d, entries, ret_folder, err);
    (void)closedir(entries);
    if (status == STATUS_OK && ret_folder[0] != '\0')
        status = read_terms(ret_folder, ret_terms, ret_digest, err);
    return status;
}

/* Create it under another name, so that no job's folder is without terms. */
static enum status create_job_folder(const char *folder, const struct join_request *terms,
                                     uint64_t *ret_digest, struct error *err)
{
    char new[STATE_PATH_MAX];
    enum status status = append_suffix(folder, SUFFIX_NEW, new, err);

    if (status == STATUS_OK && access(new, F_OK) == 0)
        status = remove_folder(new, err);
    if (status == STATUS_OK && mkdir(new, 0700) != 0)
        status = error_set_errno(err, errno, "cannot make folder '%s'", new);
    if (status != STATUS_OK)
        return status;
    status = write_terms(new, terms, ret_digest, err);
    if (status == STATUS_OK && rename(new, folder) != 0)
        status = error_set_errno(err, errno, "cannot rename '%s' to '%s'", new, folder);
    if (status != STATUS_OK)
        (void)remove_folder(new, NULL);
    return status;
}

enum status state_dir_add(const struct state_dir *d, const struct join_request *terms,
                          char *ret_folder, uint64_t *ret_digest, struct error *err)
{
    bool holds = false;
    enum status status = job_folder_path(d, terms, ret_folder, err);

    if (status == STATUS_OK)
        status = holds_job(ret_folder, &holds, err);
    if (status == STATUS_OK && holds)
        return error_set(err, STATUS_EXISTS,
                         "'%s' holds an earlier job of that name, which was not finished",
                         ret_folder);
    if (status == STATUS_OK)
        status = create_job_folder(ret_folder, terms, ret_digest, err);
    return status;
}

enum status state_dir_remove(const char *folder, struct error *err)
{
    char old[STATE_PATH_MAX];
    enum status status = append_suffix(folder, SUFFIX_OLD, old, err);

    if (status == STATUS_OK)
        status = replace_folder(folder, old, err);
    return status == STATUS_OK ? remove_folder(old, err) : status;
}

enum status state_dir_put_aside(const char *folder, char *ret_path, struct error *err)
{
    enum status status = append_suffix(folder, SUFFIX_FAILED, ret_path, err);

    return status == STATUS_OK ? replace_folder(folder, ret_path, err) : status;
}
