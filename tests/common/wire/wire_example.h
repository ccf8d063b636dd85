/*
 * wire_example: example messages for the tests of wire.
 */
#ifndef SPARRING_TESTS_COMMON_WIRE_WIRE_EXAMPLE_H
#define SPARRING_TESTS_COMMON_WIRE_WIRE_EXAMPLE_H

#include "common/wire/wire.h"

/* Every field is set; lists and texts are static. */
struct join_request example_join(void);

/* Room for an unpacked record's lists, which are static. */
struct wire_record record_room(void);

#endif
