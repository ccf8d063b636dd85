#include "common/option/program.h"

#include "common/base/log.h"
#include "common/base/memory.h"

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

int program_main(const struct program *program, int argc, char *const *argv)
{
    const struct option_set *set = program->set;
    struct option_result origins = {0};
    struct error err = {0};
    void *options = NULL;
    enum status status;

    log_open(set->program, -1);
    status = mem_calloc(1, program->options_size, "options", &options, &err);
    if (status == STATUS_OK)
        status = option_parse(set, argc, argv, options, &origins, &err);
    if (status == STATUS_OK && !origins.exit_now && origins.first_positional < argc)
        status =
            error_set(&err, STATUS_INVALID, "unexpected word '%s'", argv[origins.first_positional]);
    if (status == STATUS_OK && origins.print_config)
        print_config(set, options, &origins);
    else if (status == STATUS_OK && !origins.exit_now)
        status = program->run(options, &origins, &err);
    option_result_release(&origins);
    free(options);
    return status == STATUS_OK ? 0 : log_failure(&err);
}
