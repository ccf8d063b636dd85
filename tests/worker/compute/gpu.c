/*
 * open_gpu: a GPU that cannot be opened is reported in one line and the test skipped; with
 * SPARRING_TEST_GPU, which tests/gpu and the tests on the emulated GPU set, it is a failure.
 */
#include "tests/worker/compute/gpu.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct compute *open_gpu(const char *device, enum precision precision)
{
    struct compute_config config = {.device = device, .threads = 1, .precision = precision};
    struct compute *c = NULL;
    struct error err;

    if (compute_open_config(&config, &c, &err) == STATUS_OK)
        return c;
    ck_assert_msg(!strchr(err.text, '\n'), "not one line: %s", err.text);
    ck_assert_msg(!getenv("SPARRING_TEST_GPU"), "no GPU to test: %s", err.text);
    (void)printf("skipped: %s\n", err.text);
    return NULL;
}
