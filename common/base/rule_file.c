/*
 * rule_file: splits the file's text in place.
 */
#include "common/base/rule_file.h"

#include "common/base/file.h"

#include <stdlib.h>
#include <string.h>

#define FILE_BYTES_MAX ((size_t)1 << 20)

enum status rule_reject(const struct rule *rule, const char *what, struct error *err)
{
    return error_set(err, STATUS_CONFIG, "%s:%u: %s (a rule is %s)", rule->path, rule->line, what,
                     rule->form);
}

static enum status read_line(struct rule *rule, char *text, rule_reader read, void *user,
                             struct error *err)
{
    char *rest = NULL;

    text[strcspn(text, "#\r")] = '\0';
    rule->length = 0;
    for (char *word = strtok_r(text, " \t", &rest); word; word = strtok_r(NULL, " \t", &rest)) {
        if (rule->length == RULE_WORDS_MAX)
            return rule_reject(rule, "a rule of another length", err);
        rule->words[rule->length++] = word;
    }
    return rule->length > 0 ? read(user, rule, err) : STATUS_OK;
}

enum status rule_file_read(const char *path, const char *form, rule_reader read, void *user,
                           struct error *err)
{
    struct rule rule = {.path = path, .form = form};
    char *text = NULL;
    size_t size = 0;
    enum status status = file_read(path, FILE_BYTES_MAX, &text, &size, err);

    if (status == STATUS_OK && strlen(text) != size)
        status = error_set(err, STATUS_CONFIG, "'%s' is no text: it holds a NUL byte", path);
    for (char *at = text; status == STATUS_OK && *at != '\0';) {
        char *next = at + strcspn(at, "\n");

        next += *next == '\n' ? (*next = '\0', 1) : 0;
        rule.line++;
        status = read_line(&rule, at, read, user, err);
        at = next;
    }
    free(text);
    return status;
}
