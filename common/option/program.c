/*
 * The shared main function.  Owns the options struct and the permuted argv for the duration of the
 * run; the only place besides main that logs a failure.
 */
#include "common/option/program.h"

#include "common/base/host.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/option/arguments.h"

#include <stdio.h>
#include <stdlib.h>

static void print_config(const struct option_set *set, const void *options,
                         const struct option_result *origins)
{
    struct strbuf text = STRBUF_INIT;

    option_print_config(set, options, origins, &text);
    (void)fputs(text.text, stdout);
    strbuf_release(&text);
}

static enum status run_program(const struct program *program, const void *options,
                               const struct option_result *origins, char *const *argv, int argc,
                               int *ret_exit_code, struct error *err)
{
    const char *const *words = (const char *const *)argv + origins->first_positional;
    size_t count = (size_t)(argc - origins->first_positional);

    return program->run_words ? program->run_words(options, words, count, ret_exit_code, err)
                              : program->run(options, origins, err);
}

int program_main(const struct program *program, int argc, char *const *argv)
{
    const struct option_set *set = program->set;
    struct option_result origins = {0};
    struct error err = {0};
    void *options = NULL;
    char **permuted = NULL;
    int exit_code = 0;
    enum status status;

    log_open(set->program, -1);
    host_raise_file_limit();
    status = mem_calloc(1, program->options_size, "options", &options, &err);
    if (status == STATUS_OK && program->run_words) {
        status = arguments_permute(set, argc, argv, &permuted, &err);
        argv = permuted;
        for (argc = 0; argv && argv[argc]; argc++)
            ;
    }
    if (status == STATUS_OK)
        status = option_parse(set, argc, argv, options, &origins, &err);
    if (status == STATUS_OK && !origins.exit_now && !program->run_words &&
        origins.first_positional < argc)
        status =
            error_set(&err, STATUS_INVALID, "unexpected word '%s'", argv[origins.first_positional]);
    if (status == STATUS_OK && origins.print_config)
        print_config(set, options, &origins);
    else if (status == STATUS_OK && !origins.exit_now)
        status = run_program(program, options, &origins, argv, argc, &exit_code, &err);
    option_result_release(&origins);
    free(permuted);
    free(options);
    return status == STATUS_OK ? exit_code : log_failure(&err);
}
