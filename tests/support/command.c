/*
 * command: stdout and stderr in files of the test's folder.
 */
#include "tests/support/command.h"

#include "common/base/file.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int command_run(int (*command)(int argc, char **argv), char **argv, char **output, char **errors)
{
    struct error err;
    int argc = 0;
    int code;
    size_t size;

    while (argv[argc])
        argc++;
    ck_assert_ptr_nonnull(freopen(support_path("stdout"), "we", stdout));
    ck_assert_ptr_nonnull(freopen(support_path("stderr"), "we", stderr));
    code = command(argc, argv);
    ck_assert_int_eq(fflush(NULL), 0);
    free(*output);
    free(*errors);
    assert_ok(file_read(support_path("stdout"), 1 << 20, output, &size, &err));
    assert_ok(file_read(support_path("stderr"), 1 << 20, errors, &size, &err));
    return code;
}
