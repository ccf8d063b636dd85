/*
 * option: one static table per program drives parsing, the environment, the YAML file, validation,
 * --help, --version, --print-config and the saved configuration.
 * Priority: command line > environment > YAML file (--config FILE) > default.  "-" and "_" in names
 * are the same; --name=value and --name value both work; a flag takes an optional =true/=false; if
 * an option is given twice, the last one counts.  An empty variable counts as not set.
 * An unknown option is STATUS_INVALID and the text suggests the nearest name; in a file it is
 * STATUS_CONFIG, and the text starts with the file and line.
 * Every set has --config FILE, --print-config, --help (-h) and --version without listing them.
 *
 * Library.  Needs base and libyaml.  Called by every program and subcommand.
 */
#ifndef SPARRING_COMMON_OPTION_OPTION_H
#define SPARRING_COMMON_OPTION_OPTION_H

#include "common/base/error.h"
#include "common/base/strbuf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OPTION_TEXT_MAX 1024

enum option_kind {
    OPTION_BOOL,   /* bool */
    OPTION_INT,    /* int64_t, min..max */
    OPTION_DOUBLE, /* double, min..max */
    OPTION_BYTES,  /* uint64_t, "64M", min..max */
    OPTION_TEXT,   /* char[OPTION_TEXT_MAX] */
    OPTION_CHOICE, /* char[OPTION_TEXT_MAX], one of `choices` */
};

/* An option.  An entry without a name but with help is a heading of --help ("Files:"); {0} ends a
 * table. */
struct option_spec {
    const char *name; /* without dashes, "batch-size" */
    const char *env;  /* "SPARRING_BATCH_SIZE" or NULL */
    enum option_kind kind;
    size_t offset;            /* offsetof in the table's struct */
    const char *default_text; /* parsed like any other value; NULL: zero, and "not given" */
    double min, max;          /* numbers; both 0: no bounds; max HUGE_VAL: no upper bound */
    const char *choices;      /* "sgd|adam|adamw" */
    const char *metavar;      /* "N", "FILE", "H:P,..." */
    const char *help;         /* one or more sentences; --help wraps them at 80 columns */
    const char *alias_of; /* an earlier name and variable of that option, of the same kind; works
                             as the option itself and is not listed */
};

enum option_origin { ORIGIN_DEFAULT, ORIGIN_FILE, ORIGIN_ENVIRONMENT, ORIGIN_COMMAND_LINE };

#define OPTION_TABLES_MAX 8

/* Options of one subject, which programs may share. */
struct option_table {
    const struct option_spec *specs; /* up to {0} */
    size_t base;                     /* offset of its struct in the program's struct */
};

struct option_set {
    const char *program;                           /* "sparring-worker" */
    const char *summary;                           /* one line */
    const char *usage;                             /* "[OPTION]... -- PROGRAM ARG..." */
    struct option_table tables[OPTION_TABLES_MAX]; /* in the order of --help; specs NULL: no more */
};

/* Option or heading i of all tables, numbered in order from 0, with its offset in the program's
 * struct.  False after the last. */
bool option_at(const struct option_set *set, size_t i, struct option_spec *ret);

/* Number of these. */
size_t option_count(const struct option_set *set);

/* The origin of each value, and the rest of the command line. */
struct option_result {
    enum option_origin *origin;           /* owned, by option_at's number */
    char (*origin_text)[OPTION_TEXT_MAX]; /* owned: "--seed", "SPARRING_SEED", "run.yaml:3",
                                             "default" */
    int first_positional;                 /* index in argv; argc when none */
    bool print_config;                    /* --print-config was given */
    bool exit_now;                        /* --help or --version was printed on stdout: exit 0 */
};

/* Fill `target` (the program's struct, zeroed by the caller; on failure partly filled).  Parsing
 * stops after "--" or at the first word that is not an option. */
enum status option_parse(const struct option_set *set, int argc, char *const *argv, void *target,
                         struct option_result *ret, struct error *err);
void option_result_release(struct option_result *r);

/* True when the value was given anywhere (not the default). */
bool option_given(const struct option_set *set, const struct option_result *r, const char *name);

/* "MASTER_PORT"-like origin text of an option, for messages. */
const char *option_origin_text(const struct option_set *set, const struct option_result *r,
                               const char *name);

/* --help; --print-config ("name: value   # origin", aligned, YAML that --config reads back; options
 * without a value as comments); a JSON object {"name": {"value": .., "origin": ".."}, ..}, value
 * null if there is none. */
void option_help(const struct option_set *set, struct strbuf *out);
void option_print_config(const struct option_set *set, const void *target,
                         const struct option_result *r, struct strbuf *out);
void option_json(const struct option_set *set, const void *target, const struct option_result *r,
                 struct strbuf *out);

/* ---- the YAML behind --config, also used for experiment files ---- */

/* A scalar of a YAML file: its dotted path ("modes.0.name"), value as written, and line.  Limits:
 * 1 MiB, depth 8, 4096 scalars; anchors, aliases, tags, duplicate keys, keys with dots and empty
 * lists or mappings are refused.  The file is a mapping, or empty.  Built on libyaml. STATUS_CONFIG
 * with "name:line: what" when malformed. */
struct yaml_scalar {
    char *path;  /* owned */
    char *value; /* owned */
    unsigned line;
};
struct yaml_file {
    char *name;                  /* owned */
    struct yaml_scalar *scalars; /* owned, in file order */
    size_t length;
};
enum status yaml_read(const char *path, struct yaml_file *ret, struct error *err);
enum status yaml_parse(const char *name, const char *text, size_t size, struct yaml_file *ret,
                       struct error *err);
void yaml_release(struct yaml_file *y);

/* The nearest of `count` names within edit distance 3 (less for words below 8 letters), or NULL;
 * for "did you mean". */
const char *option_nearest(const char *word, const char *const *names, size_t count);

#endif
