/*
 * option: parses argv, the environment and a YAML file into the program's struct.
 *
 * The command line is read first, because it names the file and may request help; values are then
 * applied in order of increasing priority: default, file, environment, command line.  Each value is
 * checked even if a source of higher priority overrides it: otherwise an error in a file would only
 * show up once the flag is omitted.
 * No state outside the call; the environment must not change meanwhile.
 */
#include "common/option/option.h"

#include "common/base/memory.h"
#include "common/option/option_value.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAMES_MAX 256 /* offered as "did you mean" */

/* Options of every program. */
struct common_options {
    char config[OPTION_TEXT_MAX];
    bool print_config;
    bool help;
    bool version;
};

static const struct option_spec common_specs[] = {
    {.help = "Common:"},
    {.name = "config",
     .kind = OPTION_TEXT,
     .offset = offsetof(struct common_options, config),
     .metavar = "FILE",
     .help =
         "Read options from a YAML file of 'name: value' lines; the environment and the command "
         "line win over it."},
    {.name = "print-config",
     .kind = OPTION_BOOL,
     .offset = offsetof(struct common_options, print_config),
     .help = "Print every option with its value and where that came from, as YAML that --config "
             "reads, and exit."},
    {.name = "help",
     .kind = OPTION_BOOL,
     .offset = offsetof(struct common_options, help),
     .help = "Print this help and exit."},
    {.name = "version",
     .kind = OPTION_BOOL,
     .offset = offsetof(struct common_options, version),
     .help = "Print the version and exit."},
    {0},
};

const struct option_set option_common_set = {.tables = {{common_specs, 0}}};

struct option_parser {
    const struct option_set *set;
    void *target;
    struct option_result *result;
    const char **words; /* by option: its text on the command line, borrowed from argv, or NULL */
    struct common_options common;
};

bool option_at(const struct option_set *set, size_t i, struct option_spec *ret)
{
    for (size_t t = 0; t < OPTION_TABLES_MAX && set->tables[t].specs; t++)
        for (const struct option_spec *spec = set->tables[t].specs; spec->name || spec->help;
             spec++)
            if (i-- == 0) {
                *ret = *spec;
                ret->offset += set->tables[t].base;
                return true;
            }
    return false;
}

size_t option_count(const struct option_set *set)
{
    struct option_spec spec;
    size_t count = 0;

    while (option_at(set, count, &spec))
        count++;
    return count;
}

/* An option and its number. */
struct option_hit {
    struct option_spec spec;
    size_t index;
};

static bool find_option(const struct option_set *set, const char *name, size_t length,
                        struct option_hit *ret)
{
    for (ret->index = 0; option_at(set, ret->index, &ret->spec); ret->index++)
        if (ret->spec.name && option_name_equal(name, length, ret->spec.name))
            return !ret->spec.alias_of ||
                   find_option(set, ret->spec.alias_of, strlen(ret->spec.alias_of), ret);
    return false;
}

static size_t add_names(const struct option_set *set, const char **names, size_t count)
{
    struct option_spec spec;

    for (size_t i = 0; option_at(set, i, &spec) && count < NAMES_MAX; i++)
        if (spec.name && !spec.alias_of)
            names[count++] = spec.name;
    return count;
}

/* `where` is "" or "run.yaml:7: ", dashes "--" or "". */
static enum status unknown_option(const struct option_set *set, enum status status,
                                  const char *where, const char *dashes, const char *name,
                                  size_t length, struct error *err)
{
    const char *names[NAMES_MAX];
    size_t count = add_names(set, names, 0);
    char word[OPTION_TEXT_MAX];
    const char *nearest;

    if (*dashes)
        count = add_names(&option_common_set, names, count);
    (void)snprintf(word, sizeof(word), "%.*s", (int)(length < 200 ? length : 200), name);
    nearest = option_nearest(word, names, count);
    if (nearest)
        return error_set(err, status, "%sunknown option '%s%s', did you mean '%s%s'?", where,
                         dashes, word, dashes, nearest);
    return error_set(err, status, "%sunknown option '%s%s'; '%s --help' lists the options", where,
                     dashes, word, set->program);
}

static enum status apply_value(struct option_parser *p, const struct option_spec *spec,
                               size_t index, const char *text, enum option_origin origin,
                               const char *origin_text, struct error *err)
{
    char where[OPTION_TEXT_MAX + 128];
    enum status bad = origin == ORIGIN_COMMAND_LINE ? STATUS_INVALID : STATUS_CONFIG;
    enum status status;

    if (origin == ORIGIN_FILE)
        (void)snprintf(where, sizeof(where), "%s: %s", origin_text, spec->name);
    else if (origin == ORIGIN_DEFAULT)
        (void)snprintf(where, sizeof(where), "default of %s", spec->name);
    else
        (void)snprintf(where, sizeof(where), "%s", origin_text);
    status = option_value_set(spec, text, where, bad, p->target, err);
    if (status != STATUS_OK)
        return status;
    p->result->origin[index] = origin;
    (void)snprintf(p->result->origin_text[index], OPTION_TEXT_MAX, "%s", origin_text);
    return STATUS_OK;
}

static enum status apply_defaults(struct option_parser *p, struct error *err)
{
    struct option_spec spec;

    for (size_t i = 0; option_at(p->set, i, &spec); i++) {
        enum status status;

        (void)snprintf(p->result->origin_text[i], OPTION_TEXT_MAX, "default");
        if (!spec.name || !spec.default_text)
            continue;
        status = apply_value(p, &spec, i, spec.default_text, ORIGIN_DEFAULT, "default", err);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

static enum status apply_scalar(struct option_parser *p, const struct yaml_file *file,
                                const struct yaml_scalar *scalar, struct error *err)
{
    size_t length = strcspn(scalar->path, ".");
    struct option_hit option_hit;
    char location[OPTION_TEXT_MAX];
    char where[OPTION_TEXT_MAX + 2];

    (void)snprintf(location, sizeof(location), "%s:%u", file->name, scalar->line);
    (void)snprintf(where, sizeof(where), "%s: ", location);
    if (!find_option(p->set, scalar->path, length, &option_hit))
        return unknown_option(p->set, STATUS_CONFIG, where, "", scalar->path, length, err);
    if (scalar->path[length] != '\0')
        return error_set(err, STATUS_CONFIG, "%soption '%s' takes one value, no list or mapping",
                         where, option_hit.spec.name);
    if (p->result->origin[option_hit.index] == ORIGIN_FILE)
        return error_set(err, STATUS_CONFIG, "%soption '%s' is given twice", where,
                         option_hit.spec.name);
    return apply_value(p, &option_hit.spec, option_hit.index, scalar->value, ORIGIN_FILE, location,
                       err);
}

static enum status apply_file(struct option_parser *p, struct error *err)
{
    struct yaml_file file = {0};
    enum status status;

    if (p->common.config[0] == '\0')
        return STATUS_OK;
    status = yaml_read(p->common.config, &file, err);
    for (size_t i = 0; status == STATUS_OK && i < file.length; i++)
        status = apply_scalar(p, &file, &file.scalars[i], err);
    yaml_release(&file);
    return status;
}

static enum status apply_environment(struct option_parser *p, struct error *err)
{
    struct option_spec spec;

    for (size_t i = 0; option_at(p->set, i, &spec); i++) {
        const char *text = spec.name && spec.env ? getenv(spec.env) : NULL;
        struct option_hit option_hit;
        enum status status;

        if (!text || *text == '\0' ||
            !find_option(p->set, spec.name, strlen(spec.name), &option_hit))
            continue;
        status = apply_value(p, &option_hit.spec, option_hit.index, text, ORIGIN_ENVIRONMENT,
                             spec.env, err);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

static enum status apply_command_line(struct option_parser *p, struct error *err)
{
    struct option_spec spec;

    for (size_t i = 0; option_at(p->set, i, &spec); i++) {
        char where[OPTION_TEXT_MAX];
        enum status status;

        if (!p->words[i])
            continue;
        (void)snprintf(where, sizeof(where), "--%s", spec.name);
        status = apply_value(p, &spec, i, p->words[i], ORIGIN_COMMAND_LINE, where, err);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

/* The text of option argv[*i], which may be the next word; *i moves to the last word used. */
static enum status word_value(const struct option_spec *spec, int argc, char *const *argv, int *i,
                              const char **ret_text, struct error *err)
{
    const char *equals = strchr(argv[*i], '=');

    if (equals) {
        *ret_text = equals + 1;
        return STATUS_OK;
    }
    if (spec->kind == OPTION_BOOL) {
        *ret_text = "true";
        return STATUS_OK;
    }
    if (*i + 1 >= argc)
        return error_set(err, STATUS_INVALID, "option '--%s' needs a value", spec->name);
    if (strncmp(argv[*i + 1], "--", 2) == 0)
        return error_set(err, STATUS_INVALID,
                         "option '--%s' needs a value, but '%s' follows; write --%s=%s if that is "
                         "the value",
                         spec->name, argv[*i + 1], spec->name, argv[*i + 1]);
    *ret_text = argv[++*i];
    return STATUS_OK;
}

static enum status read_word(struct option_parser *p, int argc, char *const *argv, int *i,
                             struct error *err)
{
    const char *name = strcmp(argv[*i], "-h") == 0 ? "help" : argv[*i] + 2;
    size_t length = strcspn(name, "=");
    struct option_hit option_hit;
    bool is_program_option = find_option(p->set, name, length, &option_hit);
    const char *text = NULL;
    char where[64];
    enum status status;

    if (!is_program_option && !find_option(&option_common_set, name, length, &option_hit))
        return unknown_option(p->set, STATUS_INVALID, "", "--", name, length, err);
    status = word_value(&option_hit.spec, argc, argv, i, &text, err);
    if (status != STATUS_OK)
        return status;
    if (is_program_option) {
        p->words[option_hit.index] = text;
        return STATUS_OK;
    }
    (void)snprintf(where, sizeof(where), "--%s", option_hit.spec.name);
    return option_value_set(&option_hit.spec, text, where, STATUS_INVALID, &p->common, err);
}

static enum status read_command_line(struct option_parser *p, int argc, char *const *argv,
                                     struct error *err)
{
    int i = 1;

    for (; i < argc && !p->common.help && !p->common.version; i++) {
        enum status status;

        if (strcmp(argv[i], "--") == 0) {
            i++;
            break;
        }
        if (argv[i][0] != '-' || argv[i][1] == '\0')
            break;
        if (argv[i][1] != '-' && strcmp(argv[i], "-h") != 0)
            return error_set(err, STATUS_INVALID,
                             "unknown option '%s'; '%s --help' lists the options", argv[i],
                             p->set->program);
        status = read_word(p, argc, argv, &i, err);
        if (status != STATUS_OK)
            return status;
    }
    p->result->first_positional = i < argc ? i : argc;
    p->result->print_config = p->common.print_config;
    return STATUS_OK;
}

/* --help or --version on stdout. */
static enum status print_and_exit(struct option_parser *p, struct error *err)
{
    struct strbuf out = STRBUF_INIT;
    enum status status = STATUS_OK;

    if (p->common.help)
        option_help(p->set, &out);
    else
        strbuf_addf(&out, "%s %s\n", p->set->program, SPARRING_VERSION);
    if (!strbuf_ok(&out))
        status = error_set(err, STATUS_NO_MEMORY, "no memory for the text of --help");
    else if (fputs(out.text, stdout) == EOF || fflush(stdout) != 0)
        status = error_set(err, STATUS_IO, "cannot write to standard output");
    strbuf_release(&out);
    p->result->exit_now = true;
    return status;
}

static enum status parse_all_sources(struct option_parser *p, int argc, char *const *argv,
                                     struct error *err)
{
    enum status status = read_command_line(p, argc, argv, err);

    if (status == STATUS_OK && (p->common.help || p->common.version))
        return print_and_exit(p, err);
    if (status == STATUS_OK)
        status = apply_defaults(p, err);
    if (status == STATUS_OK)
        status = apply_file(p, err);
    if (status == STATUS_OK)
        status = apply_environment(p, err);
    if (status == STATUS_OK)
        status = apply_command_line(p, err);
    return status;
}

enum status option_parse(const struct option_set *set, int argc, char *const *argv, void *target,
                         struct option_result *ret, struct error *err)
{
    struct option_result result = {0};
    struct option_parser p = {.set = set, .target = target, .result = &result};
    size_t count = option_count(set);
    enum status status;

    status = mem_calloc(count, sizeof(*result.origin), "option origins", &result.origin, err);
    if (status == STATUS_OK)
        status = mem_calloc(count, sizeof(*result.origin_text), "option origins",
                            &result.origin_text, err);
    if (status == STATUS_OK)
        status = mem_calloc(count, sizeof(*p.words), "option words", &p.words, err);
    if (status == STATUS_OK)
        status = parse_all_sources(&p, argc, argv, err);
    free(p.words);
    if (status == STATUS_OK)
        *ret = result;
    else
        option_result_release(&result);
    return status;
}

void option_result_release(struct option_result *r)
{
    if (!r)
        return;
    free(r->origin);
    free(r->origin_text);
    *r = (struct option_result){0};
}

/* The name is one of the table's. */
static size_t index_of(const struct option_set *set, const char *name)
{
    struct option_hit option_hit;
    bool known = find_option(set, name, strlen(name), &option_hit);

    assert(known);
    return known ? option_hit.index : 0;
}

bool option_given(const struct option_set *set, const struct option_result *r, const char *name)
{
    return r->origin[index_of(set, name)] != ORIGIN_DEFAULT;
}

const char *option_origin_text(const struct option_set *set, const struct option_result *r,
                               const char *name)
{
    return r->origin_text[index_of(set, name)];
}
