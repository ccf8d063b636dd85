/*
 * rule_file: a text file of rules, one per line: words parted by spaces or tabs.  A '#' begins a
 * comment.
 */
#ifndef SPARRING_COMMON_BASE_RULE_FILE_H
#define SPARRING_COMMON_BASE_RULE_FILE_H

#include "common/base/error.h"

#include <stddef.h>

#define RULE_WORDS_MAX 8

struct rule {
    const char *path;
    const char *form; /* of the rules of this file, for messages: "RANK STEP MS" */
    unsigned line;    /* from 1 */
    char *words[RULE_WORDS_MAX];
    size_t length;
};

/* Reads one rule, whose words it may change and may not keep. */
typedef enum status (*rule_reader)(void *user, const struct rule *rule, struct error *err);

/* Have every line with words read, until one fails.  STATUS_NOT_FOUND, STATUS_IO, STATUS_DATA (more
 * than 1 MiB), STATUS_CONFIG (a NUL byte, more than RULE_WORDS_MAX words), or the reader's. */
enum status rule_file_read(const char *path, const char *form, rule_reader read, void *user,
                           struct error *err);

/* STATUS_CONFIG, "PATH:LINE: WHAT (a rule is FORM)". */
enum status rule_reject(const struct rule *rule, const char *what, struct error *err);

#endif
