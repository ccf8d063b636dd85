/*
 * The facts are one table of fields, which drives writing, reading, range checks and comparison.
 * Numbers are written so that they read back as the same bits.  After a checkpoint has been added,
 * the folder is read, and older checkpoints and stale temporary files of crashed writers are
 * removed.  No locks: one writer per folder.
 */
#include "common/checkpoint/checkpoint.h"

#include "common/base/file.h"
#include "common/base/memory.h"
#include "common/base/parse.h"
#include "common/base/strbuf.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FORMAT        "sparring-checkpoint-1"
#define PREFIX        "step-"
#define SUFFIX        ".safetensors"
#define FILE_NAME_MAX 64
#define STEPS_MAX     ((uint64_t)1 << 53) /* a double counts exactly up to here */
#define SAMPLES_MAX   ((uint64_t)1 << 40)
#define POSITIVE_MAX  1e300
#define SCALE_MAX     1e38

enum field_kind { TEXT, WHOLE, REAL };

struct field {
    const char *name;
    enum field_kind field_kind;
    size_t offset;
    size_t size; /* TEXT: of the array */
    uint64_t least, most;
    enum checkpoint_agreement weight;
    const char *missing; /* its value when the file lacks it; NULL: required */
};

#define FIELD(member) .name = #member, .offset = offsetof(struct checkpoint_facts, member)
#define TEXT_FIELD(member, weight_)                                                                \
    {                                                                                              \
        FIELD(member), .field_kind = TEXT,                                                         \
                       .size = sizeof(((struct checkpoint_facts *)NULL)->member),                  \
                       .weight = (weight_)                                                         \
    }
#define WHOLE_FIELD(member, least_, most_, weight_)                                                \
    {                                                                                              \
        FIELD(member), .field_kind = WHOLE, .least = (least_), .most = (most_),                    \
                       .weight = (weight_)                                                         \
    }
#define REAL_FIELD(member)                                                                         \
    {                                                                                              \
        FIELD(member), .field_kind = REAL, .weight = CHECKPOINT_MAY_DIFFER                         \
    }

static const struct field fields[] = {
    TEXT_FIELD(version, CHECKPOINT_PROGRESS),
    TEXT_FIELD(model, CHECKPOINT_MUST_AGREE),
    TEXT_FIELD(optimizer, CHECKPOINT_MUST_AGREE),
    {FIELD(precision), .field_kind = TEXT,
     .size = sizeof(((struct checkpoint_facts *)NULL)->precision), .weight = CHECKPOINT_MAY_DIFFER,
     .missing = "float32"},
    TEXT_FIELD(data, CHECKPOINT_MAY_DIFFER),
    TEXT_FIELD(rest, CHECKPOINT_MAY_DIFFER),
    TEXT_FIELD(sync, CHECKPOINT_PROGRESS),
    WHOLE_FIELD(step, 0, STEPS_MAX, CHECKPOINT_PROGRESS),
    WHOLE_FIELD(optimizer_step, 0, STEPS_MAX, CHECKPOINT_PROGRESS),
    {FIELD(overflowed), .field_kind = WHOLE, .most = STEPS_MAX, .weight = CHECKPOINT_PROGRESS,
     .missing = "0"},
    {FIELD(growth_tracker), .field_kind = WHOLE, .most = UINT32_MAX, .weight = CHECKPOINT_PROGRESS,
     .missing = "0"},
    {FIELD(loss_scale), .field_kind = REAL, .weight = CHECKPOINT_PROGRESS, .missing = "1"},
    WHOLE_FIELD(epoch, 0, STEPS_MAX, CHECKPOINT_PROGRESS),
    WHOLE_FIELD(position, 0, SAMPLES_MAX, CHECKPOINT_PROGRESS),
    WHOLE_FIELD(parts, 1, UINT32_MAX, CHECKPOINT_PROGRESS),
    WHOLE_FIELD(world_size, 1, UINT32_MAX, CHECKPOINT_MAY_DIFFER),
    WHOLE_FIELD(samples, 1, SAMPLES_MAX, CHECKPOINT_WITHIN_EPOCH),
    WHOLE_FIELD(batch_size, 1, SAMPLES_MAX, CHECKPOINT_MAY_DIFFER),
    WHOLE_FIELD(accumulate_steps, 1, SAMPLES_MAX, CHECKPOINT_MAY_DIFFER),
    WHOLE_FIELD(seed, 0, STEPS_MAX, CHECKPOINT_WITHIN_EPOCH),
    WHOLE_FIELD(shuffle, 0, 1, CHECKPOINT_WITHIN_EPOCH),
    WHOLE_FIELD(nesterov, 0, 1, CHECKPOINT_MAY_DIFFER),
    REAL_FIELD(learning_rate),
    REAL_FIELD(momentum),
    REAL_FIELD(dampening),
    REAL_FIELD(weight_decay),
    REAL_FIELD(beta1),
    REAL_FIELD(beta2),
    REAL_FIELD(epsilon),
    REAL_FIELD(layer_drop),
};
#define FIELDS (sizeof(fields) / sizeof(fields[0]))

/* ------------------------------------------------------------------ facts */

/* With the fewest digits that read back as the same bits. */
static void write_real(double value, char *text, size_t size)
{
    int digits = 15;

    do
        (void)snprintf(text, size, "%.*g", digits, value);
    while (digits++ < 17 && strtod(text, NULL) != value);
}

static void write_field(const struct field *f, const struct checkpoint_facts *facts, char *text,
                        size_t size)
{
    const char *at = (const char *)facts + f->offset;
    uint64_t whole;
    double real;

    switch (f->field_kind) {
    case TEXT:
        (void)snprintf(text, size, "%s", at);
        break;
    case WHOLE:
        memcpy(&whole, at, sizeof(whole));
        (void)snprintf(text, size, "%" PRIu64, whole);
        break;
    case REAL:
        memcpy(&real, at, sizeof(real));
        write_real(real, text, size);
        break;
    }
}

/* False: the text is not a valid value of the field. */
static bool read_field(const struct field *f, const char *text, struct checkpoint_facts *facts)
{
    char *at = (char *)facts + f->offset;
    uint64_t whole;
    double real;

    switch (f->field_kind) {
    case TEXT:
        if (strlen(text) >= f->size)
            return false;
        memcpy(at, text, strlen(text) + 1);
        return true;
    case WHOLE:
        if (!parse_uint64(text, &whole) || whole < f->least || whole > f->most)
            return false;
        memcpy(at, &whole, sizeof(whole));
        return true;
    case REAL:
        if (!parse_double(text, &real) || real < -POSITIVE_MAX || real > POSITIVE_MAX)
            return false;
        memcpy(at, &real, sizeof(real));
        return true;
    }
    return false;
}

enum status checkpoint_read_facts(const struct safetensors *s, struct checkpoint_facts *ret,
                                  struct error *err)
{
    const char *format = safetensors_metadata(s, "format");
    struct checkpoint_facts facts = {0};

    if (!format || strcmp(format, FORMAT) != 0)
        return error_set(err, STATUS_DATA,
                         "'%s' is no checkpoint of a run: its metadata has format '%.100s', not "
                         "'%s'; --init takes parameters alone",
                         s->path, format ? format : "", FORMAT);
    for (size_t i = 0; i < FIELDS; i++) {
        const char *text = safetensors_metadata(s, fields[i].name);

        text = text ? text : fields[i].missing;
        if (!text)
            return error_set(err, STATUS_DATA, "'%s': its metadata has no '%s'", s->path,
                             fields[i].name);
        if (!read_field(&fields[i], text, &facts))
            return error_set(err, STATUS_DATA,
                             "'%s': its metadata has %s '%.100s', which cannot be", s->path,
                             fields[i].name, text);
    }
    if (!(facts.loss_scale >= 1 && facts.loss_scale <= SCALE_MAX))
        return error_set(err, STATUS_DATA,
                         "'%s': its metadata has loss_scale %g, from 1 to %g can be", s->path,
                         facts.loss_scale, SCALE_MAX);
    if (facts.position > facts.samples)
        return error_set(err, STATUS_DATA,
                         "'%s': its metadata has position %" PRIu64 " of %" PRIu64 " samples",
                         s->path, facts.position, facts.samples);
    *ret = facts;
    return STATUS_OK;
}

size_t checkpoint_list_differences(const struct checkpoint_facts *then,
                                   const struct checkpoint_facts *now,
                                   enum checkpoint_agreement weight, struct strbuf *text)
{
    size_t found = 0;

    for (size_t i = 0; i < FIELDS; i++) {
        char before[CHECKPOINT_TEXT_MAX];
        char after[CHECKPOINT_TEXT_MAX];

        if (fields[i].weight != weight)
            continue;
        write_field(&fields[i], then, before, sizeof(before));
        write_field(&fields[i], now, after, sizeof(after));
        if (strcmp(before, after) == 0)
            continue;
        strbuf_addf(text, ", %s is %s (was %s)", fields[i].name, after, before);
        found++;
    }
    return found;
}

/* ------------------------------------------------------------------ the folder */

/* Is it exactly of the form "step-000120.safetensors"? */
static bool is_checkpoint_name(const char *name)
{
    size_t length = strlen(name);
    size_t prefix = strlen(PREFIX);
    size_t suffix = strlen(SUFFIX);
    size_t digits;

    if (length <= prefix + suffix || length >= FILE_NAME_MAX || strncmp(name, PREFIX, prefix) != 0)
        return false;
    digits = strspn(name + prefix, "0123456789");
    return digits > 0 && strcmp(name + prefix + digits, SUFFIX) == 0;
}

/* The step of a checkpoint name; UINT64_MAX when it overflows. */
static uint64_t step_from_name(const char *name)
{
    return strtoull(name + strlen(PREFIX), NULL, 10);
}

/* A temporary file of a crashed writer: a name of ours, then ".tmp-". */
static bool is_stale_temporary(const char *name)
{
    const char *at = strstr(name, ".tmp-");
    char whole[FILE_NAME_MAX];

    if (!at || (size_t)(at - name) >= sizeof(whole))
        return false;
    memcpy(whole, name, (size_t)(at - name));
    whole[at - name] = '\0';
    return is_checkpoint_name(whole) || strcmp(whole, CHECKPOINT_LATEST) == 0;
}

struct checkpoint_file {
    char name[FILE_NAME_MAX];
    uint64_t step;
    dev_t device;
    ino_t inode;
};

/* By updates, descending.  Not by modification time: copying a folder changes it, and a clock may
 * be set back. */
static int compare_newest_first(const void *a, const void *b)
{
    const struct checkpoint_file *x = a;
    const struct checkpoint_file *y = b;

    if (x->step != y->step)
        return x->step < y->step ? 1 : -1;
    return -strcmp(x->name, y->name); /* they differ in leading zeros */
}

static bool append_checkpoint_file(DIR *dir, const char *name, struct checkpoint_file **list,
                                   size_t *length)
{
    struct checkpoint_file *more;
    struct stat info;

    if (!is_checkpoint_name(name) || fstatat(dirfd(dir), name, &info, AT_SYMLINK_NOFOLLOW) != 0)
        return true;
    more = realloc(*list, (*length + 1) * sizeof(*more));
    if (!more)
        return false;
    *list = more;
    memcpy(more[*length].name, name, strlen(name) + 1);
    more[*length].device = info.st_dev;
    more[*length].inode = info.st_ino;
    more[(*length)++].step = step_from_name(name);
    return true;
}

static bool is_same_file(const struct checkpoint_file *f, const struct stat *info)
{
    return f->inode == info->st_ino && f->device == info->st_dev;
}

/* Errors are ignored, because a surplus checkpoint is harmless: the next save tries again. */
static void remove_old_checkpoints(const char *folder, const char *newest, size_t keep,
                                   const char *kept_path)
{
    struct stat kept_info;
    bool has_kept_path = kept_path && stat(kept_path, &kept_info) == 0;
    DIR *dir = opendir(folder);
    struct checkpoint_file *list = NULL;
    size_t length = 0, behind = 0;
    size_t kept = 1; /* the newest */
    const struct dirent *entry;

    if (!dir)
        return;
    while ((entry = readdir(dir)) != NULL) {
        if (is_stale_temporary(entry->d_name))
            (void)unlinkat(dirfd(dir), entry->d_name, 0);
        if (!append_checkpoint_file(dir, entry->d_name, &list, &length))
            break;
    }
    if (length > 0)
        qsort(list, length, sizeof(*list), compare_newest_first);
    while (behind < length && list[behind].step > step_from_name(newest))
        behind++; /* from before the run was resumed at an earlier step: removed first */
    for (size_t i = 0; i < length && keep > 0; i++) {
        const struct checkpoint_file *f = &list[(behind + i) % length];

        if (strcmp(f->name, newest) != 0 && kept++ >= keep &&
            !(has_kept_path && is_same_file(f, &kept_info)))
            (void)unlinkat(dirfd(dir), f->name, 0);
    }
    free(list);
    (void)closedir(dir);
}

static enum status write_checkpoint(const char *path, const struct checkpoint_facts *facts,
                                    const struct safetensors_part *parts, size_t length,
                                    uint64_t *ret_bytes, struct error *err)
{
    const char *metadata[2 * (FIELDS + 1)] = {"format", FORMAT};
    char(*texts)[CHECKPOINT_TEXT_MAX] = NULL;
    enum status status = mem_calloc(FIELDS, sizeof(*texts), "metadata", &texts, err);

    if (status != STATUS_OK)
        return status;
    for (size_t i = 0; i < FIELDS; i++) {
        write_field(&fields[i], facts, texts[i], sizeof(texts[i]));
        metadata[2 * (i + 1)] = fields[i].name;
        metadata[2 * (i + 1) + 1] = texts[i];
    }
    status = safetensors_save_parts(path, parts, length, metadata, FIELDS + 1, CHECKPOINT_BYTES_MAX,
                                    ret_bytes, err);
    free(texts);
    return status;
}

enum status checkpoint_save(const char *folder, size_t keep, const char *kept_path,
                            const struct checkpoint_facts *facts,
                            const struct safetensors_part *parts, size_t length,
                            uint64_t *ret_bytes, struct error *err)
{
    char name[FILE_NAME_MAX];
    char line[FILE_NAME_MAX + 1];
    char path[CHECKPOINT_PATH_MAX];
    enum status status = file_make_folder(folder, err);

    (void)snprintf(name, sizeof(name), PREFIX "%06" PRIu64 SUFFIX, facts->step);
    if (status == STATUS_OK)
        status = file_join(path, sizeof(path), folder, name, err);
    if (status == STATUS_OK)
        status = write_checkpoint(path, facts, parts, length, ret_bytes, err);
    if (status == STATUS_OK)
        status = file_join(path, sizeof(path), folder, CHECKPOINT_LATEST, err);
    if (status == STATUS_OK) {
        int size = snprintf(line, sizeof(line), "%s\n", name);

        status = file_write_atomic(path, line, (size_t)size, err);
    }
    if (status == STATUS_OK)
        remove_old_checkpoints(folder, name, keep, kept_path);
    return status;
}

/* The newest checkpoint in a folder without `latest`: the writer may have crashed between its first
 * checkpoint and `latest`.  False: there is none. */
static bool find_newest(const char *folder, char ret[FILE_NAME_MAX])
{
    DIR *dir = opendir(folder);
    struct checkpoint_file *list = NULL;
    size_t length = 0;
    const struct dirent *entry;

    if (!dir)
        return false;
    while ((entry = readdir(dir)) != NULL)
        if (!append_checkpoint_file(dir, entry->d_name, &list, &length))
            break;
    if (length > 0) {
        qsort(list, length, sizeof(*list), compare_newest_first);
        memcpy(ret, list[0].name, FILE_NAME_MAX);
    }
    free(list);
    (void)closedir(dir);
    return length > 0;
}

static enum status follow_latest(const char *folder, char ret[CHECKPOINT_PATH_MAX],
                                 struct error *err)
{
    char path[CHECKPOINT_PATH_MAX];
    char name[FILE_NAME_MAX];
    char *text = NULL;
    size_t size;
    enum status status = file_join(path, sizeof(path), folder, CHECKPOINT_LATEST, err);

    if (status == STATUS_OK)
        status = file_read(path, FILE_NAME_MAX, &text, &size, err);
    if (status == STATUS_NOT_FOUND && find_newest(folder, name))
        return file_join(ret, CHECKPOINT_PATH_MAX, folder, name, err);
    if (status != STATUS_OK)
        return status;
    text[strcspn(text, "\n")] = '\0';
    status =
        is_checkpoint_name(text)
            ? file_join(ret, CHECKPOINT_PATH_MAX, folder, text, err)
            : error_set(err, STATUS_DATA, "'%s' names no checkpoint, but '%.100s'", path, text);
    free(text);
    return status;
}

enum status checkpoint_find(const char *path, char ret[CHECKPOINT_PATH_MAX], struct error *err)
{
    struct stat info;

    if (stat(path, &info) != 0)
        return error_set_errno(err, errno, "cannot find the checkpoint '%s'", path);
    if (S_ISDIR(info.st_mode))
        return follow_latest(path, ret, err);
    if (strlen(path) >= CHECKPOINT_PATH_MAX)
        return error_set(err, STATUS_CONFIG, "path of %zu bytes is too long", strlen(path));
    memcpy(ret, path, strlen(path) + 1);
    return STATUS_OK;
}
