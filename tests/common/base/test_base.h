/*
 * test_base: the cases of the base library's small modules, one group per source file.
 */
#ifndef SPARRING_TESTS_COMMON_BASE_TEST_BASE_H
#define SPARRING_TESTS_COMMON_BASE_TEST_BASE_H

#include "tests/support/support.h"

TCase *text_cases(void); /* status, error, strbuf, parse, memory */
TCase *file_cases(void);
TCase *stop_cases(void);

#endif
