/*
 * Reorders argv so that options precede positional words.  No state; the words are borrowed.
 */
#include "common/option/arguments.h"

#include "common/base/memory.h"
#include "common/option/option_value.h"

#include <string.h>

/* True for "--name" of an option whose value is the next word. */
static bool takes_next_word(const struct option_set *set, const char *word)
{
    struct option_spec spec;

    if (strncmp(word, "--", 2) != 0 || strchr(word, '='))
        return false;
    if (strcmp(word, "--config") == 0)
        return true;
    for (size_t i = 0; option_at(set, i, &spec); i++)
        if (spec.name && option_name_equal(word + 2, strlen(word + 2), spec.name))
            return spec.kind != OPTION_BOOL;
    return false;
}

enum status arguments_permute(const struct option_set *set, int argc, char *const *argv,
                              char ***ret_argv, struct error *err)
{
    static char separator[] = "--";
    char **words = NULL;
    int filled = 0;
    bool only_words = false;
    enum status status = mem_calloc((size_t)argc + 2, sizeof(*words), "arguments", &words, err);

    if (status != STATUS_OK)
        return status;
    for (int i = 0; i < argc && !only_words; i++) {
        only_words = strcmp(argv[i], "--") == 0;
        if (only_words || (i > 0 && argv[i][0] != '-'))
            continue;
        words[filled++] = argv[i];
        if (i > 0 && takes_next_word(set, argv[i]) && i + 1 < argc)
            words[filled++] = argv[++i];
    }
    words[filled++] = separator;
    only_words = false;
    for (int i = 1; i < argc; i++) {
        if (!only_words && strcmp(argv[i], "--") == 0)
            only_words = true;
        else if (only_words || argv[i][0] != '-')
            words[filled++] = argv[i];
        else if (takes_next_word(set, argv[i]))
            i++;
    }
    *ret_argv = words;
    return STATUS_OK;
}
