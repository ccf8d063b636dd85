/*
 * fuzz: helpers of all fuzzers: a check that aborts, so that libFuzzer reports the input, and
 * memory of exact size.
 */
#ifndef SPARRING_TESTS_FUZZ_FUZZ_H
#define SPARRING_TESTS_FUZZ_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static inline void require(bool holds)
{
    if (!holds)
        abort();
}

/* Zeroed memory of exact size, so that the sanitizer finds an access outside it. */
static inline void *allocate(size_t size)
{
    void *memory = calloc(size > 0 ? size : 1, 1);

    require(memory != NULL);
    return memory;
}

#endif
