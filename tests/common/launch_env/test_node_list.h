/* The cases of test_node_list.c, added to test_launch_env's suite. */
#ifndef SPARRING_TESTS_LAUNCH_ENV_TEST_NODE_LIST_H
#define SPARRING_TESTS_LAUNCH_ENV_TEST_NODE_LIST_H

#include <check.h>

TCase *node_list_cases(void);

#endif
