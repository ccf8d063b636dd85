/*
 * experiment: reads experiment files.  The YAML reader gives dotted paths in file order; each path
 * is split once and must name a known key: an unknown key would have no effect without notice.
 */
#include "experiments/compare/experiment.h"

#include "common/base/parse.h"
#include "common/base/random.h"
#include "experiments/report/paired.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define REPEATS_MAX  1000
#define DEADLINE_MAX 604800 /* a week, in seconds */
#define SEED_MAX     4294967295
#define MARGIN_MAX   50   /* percent */
#define STEADY_MAX   3600 /* seconds */

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

_Static_assert(DESIGN_PAIRS_MAX == EXPERIMENT_MODES_MAX * (EXPERIMENT_MODES_MAX - 1) / 2,
               "a design has room for all pairs");

static const char *const top_keys[] = {
    "title",           "nproc",   "repeats", "deadline", "verdict", "margin", "steady_seconds",
    "target_accuracy", "options", "modes",   "axes",     "where",   "network"};
static const char *const network_keys[] = {"rate", "delay", "jitter", "loss", "seed", "check"};
static const char *const mode_keys[] = {"name", "label", "nproc", "servers", "options"};

/* Options of the worker that `compare` and `launch` set. */
static const char *const reserved_options[] = {"run-dir", "rank",       "world-size", "local-rank",
                                               "servers", "standalone", "init-method"};

struct key_position {
    const char *file;
    const struct yaml_scalar *scalar;
};

static enum status refuse_key(const struct key_position *at, const char *text, struct error *err)
{
    return error_set(err, STATUS_CONFIG, "%s:%u: '%s' %s", at->file, at->scalar->line,
                     at->scalar->path, text);
}

static enum status unknown_key(const struct key_position *at, const char *key,
                               const char *const *known, size_t count, struct error *err)
{
    const char *nearest = option_nearest(key, known, count);

    if (nearest && strcmp(nearest, key) != 0) /* else it is a value, without keys */
        return error_set(err, STATUS_CONFIG, "%s:%u: unknown key '%s', did you mean '%s'?",
                         at->file, at->scalar->line, at->scalar->path, nearest);
    return refuse_key(at, "is not a key of an experiment file", err);
}

static enum status read_int(const struct key_position *at, int64_t low, int64_t high, int64_t *ret,
                            struct error *err)
{
    int64_t value;

    if (!parse_int64(at->scalar->value, &value) || value < low || value > high)
        return error_set(err, STATUS_CONFIG,
                         "%s:%u: '%s' must be a whole number from %jd to %jd, not '%s'", at->file,
                         at->scalar->line, at->scalar->path, (intmax_t)low, (intmax_t)high,
                         at->scalar->value);
    *ret = value;
    return STATUS_OK;
}

static enum status read_text(const struct key_position *at, char *ret, size_t size,
                             struct error *err)
{
    if (strlen(at->scalar->value) >= size)
        return error_set(err, STATUS_CONFIG, "%s:%u: '%s' is longer than %zu bytes", at->file,
                         at->scalar->line, at->scalar->path, size - 1);
    (void)snprintf(ret, size, "%s", at->scalar->value);
    return STATUS_OK;
}

/* One component of a path: "modes.0.options.sync" with p at "0" gives "0"; returns what follows. */
static const char *next_part(const char *p, char *part, size_t size)
{
    size_t length = strcspn(p, ".");

    (void)snprintf(part, size, "%.*s", (int)length, p);
    return p[length] == '.' ? p + length + 1 : NULL;
}

/* A value, or what follows the first ':' of one, that begins with "./" or "../" is a path relative
 * to the folder of the experiment file. */
static enum status read_value(const struct key_position *at, char *ret, size_t size,
                              struct error *err)
{
    const char *value = at->scalar->value, *colon = strchr(value, ':');
    const char *path = colon && colon[1] == '.' ? colon + 1 : value;
    const char *slash = strrchr(at->file, '/');
    int length;

    if (!slash || (strncmp(path, "./", 2) != 0 && strncmp(path, "../", 3) != 0))
        return read_text(at, ret, size, err);
    length = snprintf(ret, size, "%.*s%.*s/%s", (int)(path - value), value, (int)(slash - at->file),
                      at->file, path + (path[1] == '/' ? 2 : 0));
    if (length < 0 || (size_t)length >= size)
        return error_set(err, STATUS_CONFIG, "%s:%u: '%s' is a path longer than %zu bytes",
                         at->file, at->scalar->line, at->scalar->path, size - 1);
    return STATUS_OK;
}

static bool is_set_by_compare(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(reserved_options); i++)
        if (strcmp(reserved_options[i], name) == 0)
            return true;
    return false;
}

/* The name of an option, with '-' for '_'. */
static enum status read_option_name(const struct key_position *at, const char *text, char *ret,
                                    size_t size, struct error *err)
{
    (void)snprintf(ret, size, "%s", text);
    for (char *p = ret; *p; p++)
        *p = *p == '_' ? '-' : *p;
    if (strspn(ret, "abcdefghijklmnopqrstuvwxyz0123456789-") != strlen(text) || ret[0] == '-')
        return refuse_key(at, "is not the name of an option", err);
    return STATUS_OK;
}

/* `prefix` before the name: "network-" for the keys of `network`. */
static enum status add_option(const struct key_position *at, const char *prefix, const char *rest,
                              struct experiment_options *options, struct error *err)
{
    struct experiment_option *option = &options->items[options->length];
    char name[sizeof(option->name) - 16];
    enum status status;

    if (!rest || strchr(rest, '.'))
        return refuse_key(at, "must be a name with one value", err);
    if (options->length == EXPERIMENT_OPTIONS_MAX)
        return refuse_key(at, "is one option too many (64)", err);
    status = read_option_name(at, rest, name, sizeof(name), err);
    if (status != STATUS_OK)
        return status;
    if (is_set_by_compare(name))
        return refuse_key(at, "is set by compare itself", err);
    (void)snprintf(option->name, sizeof(option->name), "%s%s", prefix, name);
    option->line = at->scalar->line;
    options->length++;
    return read_value(at, option->value, sizeof(option->value), err);
}

/* The modes differ in sync, the blocks in the seed. */
static bool may_be_axis(const char *name)
{
    return strcmp(name, "servers") == 0 ||
           (!is_set_by_compare(name) && strcmp(name, "seed") != 0 && strcmp(name, "sync") != 0);
}

/* One value of an axis. */
static enum status read_axis(const struct key_position *at, const char *path, struct axes *axes,
                             struct error *err)
{
    char part[64], name[64], value[sizeof(axes->items[0].values[0])];
    const char *rest = path ? next_part(path, part, sizeof(part)) : NULL;
    struct error why = {0};
    enum status status;

    if (!path || (rest && strchr(rest, '.')))
        return refuse_key(at, "must be a name with a list or a range of values", err);
    status = read_option_name(at, part, name, sizeof(name), err);
    if (status == STATUS_OK && !may_be_axis(name))
        return refuse_key(at, "cannot be an axis", err);
    if (status == STATUS_OK)
        status = read_value(at, value, sizeof(value), err);
    if (status != STATUS_OK)
        return status;
    status = axes_add_value(axes, name, value, &why);
    if (status != STATUS_OK)
        return refuse_key(at, why.text, err);
    if (axes->items[axes->length - 1].line == 0)
        axes->items[axes->length - 1].line = at->scalar->line;
    return STATUS_OK;
}

static enum status read_condition(const struct key_position *at, struct axes *axes,
                                  struct error *err)
{
    struct error why = {0};
    enum status status = axes_add_condition(axes, at->scalar->value, &why);

    return status == STATUS_OK ? STATUS_OK : refuse_key(at, why.text, err);
}

static enum status read_mode_name(const struct key_position *at, struct experiment_mode *mode,
                                  struct error *err)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                  "0123456789-_.";
    enum status status = read_text(at, mode->name, sizeof(mode->name), err);

    if (status != STATUS_OK)
        return status;
    if (mode->name[0] == '\0' || mode->name[0] == '.' || mode->name[0] == '-' ||
        mode->name[strspn(mode->name, allowed)] != '\0')
        return refuse_key(at, "must be made of letters, digits, '-', '_' and '.'", err);
    return STATUS_OK;
}

static enum status read_mode_key(const struct key_position *at, const char *path,
                                 struct experiment_mode *mode, struct error *err)
{
    char key[64];
    const char *rest = next_part(path, key, sizeof(key));

    if (strcmp(key, "options") == 0)
        return add_option(at, "", rest, &mode->options, err);
    if (rest)
        return unknown_key(at, key, mode_keys, COUNT_OF(mode_keys), err);
    if (strcmp(key, "name") == 0)
        return read_mode_name(at, mode, err);
    if (strcmp(key, "label") == 0)
        return read_text(at, mode->label, sizeof(mode->label), err);
    if (strcmp(key, "nproc") == 0) {
        mode->has_nproc = true;
        return read_int(at, 1, EXPERIMENT_PROCESSES_MAX, &mode->nproc, err);
    }
    if (strcmp(key, "servers") == 0)
        return read_int(at, 0, EXPERIMENT_PROCESSES_MAX, &mode->servers, err);
    return unknown_key(at, key, mode_keys, COUNT_OF(mode_keys), err);
}

static enum status read_mode(const struct key_position *at, const char *path, struct experiment *e,
                             struct error *err)
{
    char number[32] = "";
    int64_t index;
    const char *rest = path ? next_part(path, number, sizeof(number)) : NULL;

    if (!rest || !parse_int64(number, &index) || index < 0)
        return refuse_key(at, "must be a list of modes, each with a name", err);
    if (index >= EXPERIMENT_MODES_MAX)
        return refuse_key(at, "is one mode too many (16)", err);
    if ((size_t)index >= e->mode_count) {
        e->mode_count = (size_t)index + 1;
        e->modes[index].line = at->scalar->line;
    }
    return read_mode_key(at, rest, &e->modes[index], err);
}

static enum status read_number(const struct key_position *at, double high, double *ret,
                               struct error *err)
{
    double value;

    if (!parse_double(at->scalar->value, &value) || !(value > 0 && value <= high))
        return error_set(err, STATUS_CONFIG,
                         "%s:%u: '%s' must be a number above 0 and up to %g, not '%s'", at->file,
                         at->scalar->line, at->scalar->path, high, at->scalar->value);
    *ret = value;
    return STATUS_OK;
}

/* Percent. */
static enum status read_share(const struct key_position *at, double high, double *ret,
                              struct error *err)
{
    enum status status = read_number(at, high, ret, err);

    if (status == STATUS_OK)
        *ret /= 100;
    return status;
}

/* One name of a pair; pairs may precede the modes in the file, so check_pairs looks names up later.
 */
static enum status read_verdict(const struct key_position *at, const char *path,
                                struct experiment *e, struct error *err)
{
    char pair[32], side[32];
    const char *rest;
    int64_t i, k;

    e->has_verdict = true;
    if (!path &&
        (strcmp(at->scalar->value, "none") == 0 || strcmp(at->scalar->value, "all") == 0)) {
        e->all_pairs = at->scalar->value[0] == 'a';
        return STATUS_OK;
    }
    rest = path ? next_part(path, pair, sizeof(pair)) : NULL;
    if (!rest || next_part(rest, side, sizeof(side)) || !parse_int64(pair, &i) ||
        !parse_int64(side, &k) || k > 1)
        return refuse_key(at, "must be none, all, or a list of pairs of modes", err);
    if (i >= DESIGN_PAIRS_MAX)
        return refuse_key(at, "is one pair too many (120)", err);
    if ((size_t)i >= e->design.pair_count)
        e->design.pair_count = (size_t)i + 1;
    return read_text(at, e->design.pairs[i].names[k], sizeof(e->design.pairs[i].names[k]), err);
}

/* `rate` is the option network-rate of launch. */
static enum status read_network(const struct key_position *at, const char *rest,
                                struct experiment *e, struct error *err)
{
    char key[64] = "network";
    const char *below = rest ? next_part(rest, key, sizeof(key)) : NULL;

    for (size_t i = 0; rest && !below && i < COUNT_OF(network_keys); i++)
        if (strcmp(network_keys[i], rest) == 0)
            return add_option(at, "network-", rest, &e->options, err);
    return unknown_key(at, key, network_keys, COUNT_OF(network_keys), err);
}

static enum status read_key(const struct key_position *at, struct experiment *e, struct error *err)
{
    char key[64];
    const char *rest = next_part(at->scalar->path, key, sizeof(key));

    if (strcmp(key, "modes") == 0)
        return read_mode(at, rest, e, err);
    if (strcmp(key, "options") == 0 && rest && strcmp(rest, "seed") == 0)
        return read_int(at, 0, SEED_MAX, &e->seed, err);
    if (strcmp(key, "options") == 0)
        return add_option(at, "", rest, &e->options, err);
    if (strcmp(key, "network") == 0)
        return read_network(at, rest, e, err);
    if (strcmp(key, "verdict") == 0)
        return read_verdict(at, rest, e, err);
    if (strcmp(key, "axes") == 0)
        return read_axis(at, rest, &e->axes, err);
    if (strcmp(key, "where") == 0 && (!rest || !strchr(rest, '.')))
        return read_condition(at, &e->axes, err);
    if (rest)
        return unknown_key(at, key, top_keys, COUNT_OF(top_keys), err);
    if (strcmp(key, "title") == 0)
        return read_text(at, e->design.title, sizeof(e->design.title), err);
    if (strcmp(key, "margin") == 0)
        return read_share(at, MARGIN_MAX, &e->design.margin, err);
    if (strcmp(key, "target_accuracy") == 0)
        return read_share(at, 100, &e->design.target_accuracy, err);
    if (strcmp(key, "steady_seconds") == 0)
        return read_number(at, STEADY_MAX, &e->design.steady_seconds, err);
    if (strcmp(key, "nproc") == 0)
        return read_int(at, 1, EXPERIMENT_PROCESSES_MAX, &e->nproc, err);
    if (strcmp(key, "repeats") == 0)
        return read_int(at, 1, REPEATS_MAX, &e->repeats, err);
    if (strcmp(key, "deadline") == 0)
        return read_int(at, 1, DEADLINE_MAX, &e->deadline_seconds, err);
    return unknown_key(at, key, top_keys, COUNT_OF(top_keys), err);
}

static enum status check_modes(struct experiment *e, struct error *err)
{
    if (e->mode_count == 0)
        return error_set(err, STATUS_CONFIG, "%s: there are no modes to run", e->name);
    for (size_t i = 0; i < e->mode_count; i++) {
        struct experiment_mode *mode = &e->modes[i];

        if (mode->name[0] == '\0')
            return error_set(err, STATUS_CONFIG, "%s:%u: the mode has no name", e->name,
                             mode->line);
        for (size_t k = 0; k < i; k++)
            if (strcmp(e->modes[k].name, mode->name) == 0)
                return error_set(err, STATUS_CONFIG, "%s:%u: a mode '%s' stands above already",
                                 e->name, mode->line, mode->name);
        for (size_t k = 0; k < mode->options.length; k++)
            if (strcmp(mode->options.items[k].name, "seed") == 0)
                return error_set(err, STATUS_CONFIG,
                                 "%s:%u: mode '%s' sets a seed: all modes of a repeat share one, "
                                 "set it under the top options",
                                 e->name, mode->line, mode->name);
        if (mode->label[0] == '\0')
            (void)snprintf(mode->label, sizeof(mode->label), "%s", mode->name);
        if (mode->nproc == 0)
            mode->nproc = e->nproc;
    }
    return STATUS_OK;
}

const char *experiment_option(const struct experiment *e, const struct experiment_mode *mode,
                              const char *name)
{
    const struct experiment_options *both[] = {&mode->options, &e->options};

    for (size_t k = 0; k < 2; k++)
        for (size_t i = both[k]->length; i-- > 0;)
            if (strcmp(both[k]->items[i].name, name) == 0)
                return both[k]->items[i].value;
    return "";
}

static const char *find_sync(const struct experiment *e, const struct experiment_mode *mode)
{
    return experiment_option(e, mode, "sync");
}

static void add_pair(struct experiment *e, size_t a, size_t b)
{
    struct design_pair *pair = &e->design.pairs[e->design.pair_count++];

    memcpy(pair->names[0], e->modes[a].name, sizeof(pair->names[0]));
    memcpy(pair->names[1], e->modes[b].name, sizeof(pair->names[1]));
}

static bool both_communicate(const struct experiment *e, size_t a, size_t b)
{
    return strcmp(find_sync(e, &e->modes[a]), "local") != 0 &&
           strcmp(find_sync(e, &e->modes[b]), "local") != 0 &&
           e->modes[a].nproc == e->modes[b].nproc;
}

static void add_all_pairs(struct experiment *e)
{
    for (size_t a = 0; a < e->mode_count; a++)
        for (size_t b = a + 1; b < e->mode_count; b++)
            if (both_communicate(e, a, b))
                add_pair(e, a, b);
}

static void add_default_pair(struct experiment *e)
{
    size_t first = SIZE_MAX, second = SIZE_MAX; /* any two */

    for (size_t a = 0; a < e->mode_count; a++) {
        for (size_t b = a + 1; b < e->mode_count; b++) {
            const char *one = find_sync(e, &e->modes[a]), *other = find_sync(e, &e->modes[b]);

            if (!both_communicate(e, a, b))
                continue;
            if ((strcmp(one, "allreduce") == 0 && strcmp(other, "ps") == 0) ||
                (strcmp(one, "ps") == 0 && strcmp(other, "allreduce") == 0)) {
                add_pair(e, a, b);
                return;
            }
            first = first == SIZE_MAX ? a : first;
            second = second == SIZE_MAX ? b : second;
        }
    }
    if (first != SIZE_MAX)
        add_pair(e, first, second);
}

static bool has_mode(const struct experiment *e, const char *name)
{
    for (size_t i = 0; i < e->mode_count; i++)
        if (strcmp(e->modes[i].name, name) == 0)
            return true;
    return false;
}

static enum status check_pairs(const struct experiment *e, struct error *err)
{
    struct design before;

    for (size_t i = 0; i < e->design.pair_count; i++) {
        const struct design_pair *pair = &e->design.pairs[i];

        for (size_t k = 0; k < 2; k++)
            if (!has_mode(e, pair->names[k]))
                return error_set(err, STATUS_CONFIG,
                                 "%s: the verdict names a mode '%s', which "
                                 "there is not",
                                 e->name, pair->names[k]);
        if (strcmp(pair->names[0], pair->names[1]) == 0)
            return error_set(err, STATUS_CONFIG, "%s: the verdict pairs '%s' with itself", e->name,
                             pair->names[0]);
        before = e->design;
        before.pair_count = i;
        if (design_has_pair(&before, pair->names[0], pair->names[1]))
            return error_set(err, STATUS_CONFIG, "%s: the verdict has the pair '%s' and '%s' twice",
                             e->name, pair->names[0], pair->names[1]);
    }
    return STATUS_OK;
}

enum status experiment_parse(const struct yaml_file *file, struct experiment *ret,
                             struct error *err)
{
    enum status status;

    *ret = (struct experiment){
        .design = design_default(), .nproc = 2, .repeats = 10, .deadline_seconds = 600, .seed = 1};
    (void)snprintf(ret->name, sizeof(ret->name), "%s", file->name);
    for (size_t i = 0; i < file->length; i++) {
        struct key_position at = {file->name, &file->scalars[i]};

        status = read_key(&at, ret, err);
        if (status != STATUS_OK)
            return status;
    }
    status = experiment_check_axes(ret, err);
    if (status == STATUS_OK)
        status = check_modes(ret, err);
    if (status != STATUS_OK)
        return status;
    if (ret->all_pairs)
        add_all_pairs(ret);
    else if (!ret->has_verdict)
        add_default_pair(ret);
    return check_pairs(ret, err);
}

enum status experiment_set_verdict(struct experiment *e, const char *text, struct error *err)
{
    e->design.pair_count = 0;
    if (strcmp(text, "all") == 0)
        add_all_pairs(e);
    else if (strcmp(text, "none") != 0)
        for (const char *p = text; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL) {
            const size_t length = strcspn(p, ",");
            const size_t first = strcspn(p, ":,");
            struct design_pair *pair = &e->design.pairs[e->design.pair_count];

            if (first >= length || first >= sizeof(pair->names[0]) ||
                length - first - 1 >= sizeof(pair->names[1]) ||
                e->design.pair_count == DESIGN_PAIRS_MAX)
                return error_set(err, STATUS_INVALID,
                                 "--verdict '%s' is neither none, nor all, nor A:B,... of modes",
                                 text);
            (void)snprintf(pair->names[0], sizeof(pair->names[0]), "%.*s", (int)first, p);
            (void)snprintf(pair->names[1], sizeof(pair->names[1]), "%.*s",
                           (int)(length - first - 1), p + first + 1);
            e->design.pair_count++;
        }
    return check_pairs(e, err);
}

struct experiment_mode_ref {
    const struct experiment *experiment;
    const struct experiment_mode *mode;
};

static const char *option_of_mode(const void *mode, const char *name)
{
    const struct experiment_mode_ref *m = mode;

    return experiment_option(m->experiment, m->mode, name);
}

/* Without a target the report would give no verdict on such a pair: refuse it before the runs. */
static enum status check_target(const struct experiment *e, const char *name, struct error *err)
{
    for (size_t i = 0; i < e->mode_count; i++) {
        const struct experiment_mode_ref mode = {e, &e->modes[i]};

        if (strcmp(e->modes[i].name, name) == 0 && design_trades_accuracy(option_of_mode, &mode))
            return error_set(err, STATUS_CONFIG,
                             "%s: with stale or dropped pushes or compression a step of '%s' is "
                             "not worth one of another mode: a verdict needs target_accuracy (or "
                             "verdict none, for figures alone)",
                             e->name, name);
    }
    return STATUS_OK;
}

enum status experiment_check_design(const struct experiment *e, struct error *err)
{
    enum status status = STATUS_OK;
    const struct design *d = &e->design;
    const size_t pairs = d->pair_count;
    uint64_t most;
    size_t least;

    for (size_t i = 0; i < 2 * pairs && !isfinite(d->target_accuracy) && status == STATUS_OK; i++)
        status = check_target(e, d->pairs[i / 2].names[i % 2], err);
    if (status != STATUS_OK)
        return status;
    if (d->most_blocks > 0 && d->most_blocks <= d->blocks)
        return error_set(err, STATUS_CONFIG,
                         "%s: until %" PRIu64 " blocks is no more than the %" PRIu64
                         " repeats there are",
                         e->name, d->most_blocks, d->blocks);
    most = d->most_blocks > 0 ? d->most_blocks : d->blocks;
    least = pairs > 0 ? paired_least_blocks(pairs, design_level(d)) : 0;
    if (most >= least)
        return STATUS_OK;
    return error_set(err, STATUS_CONFIG,
                     "%s: %" PRIu64
                     " repeats cannot decide %zu pair%s of modes at a level of %.3g: "
                     "it takes %zu (or verdict none, for figures alone)",
                     e->name, most, pairs, pairs == 1 ? "" : "s", design_level(d), least);
}

void experiment_order(const struct experiment *e, size_t repeat,
                      size_t ret_modes[EXPERIMENT_MODES_MAX])
{
    int64_t drawn[EXPERIMENT_MODES_MAX];
    struct random random;

    random_seed(&random, (uint64_t)e->seed * 1000003 + repeat);
    random_permutation(&random, drawn, e->mode_count);
    for (size_t i = 0; i < e->mode_count; i++)
        ret_modes[i] = (size_t)drawn[i];
}
