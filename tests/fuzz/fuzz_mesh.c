/*
 * Fuzzes the decoder of the mesh's control connections: every accepted message must encode to the
 * same bytes.  The decoder replaces unprintable bytes of texts, so the second encoding is compared.
 */
#include "common/collective/mesh/mesh_wire.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

static void check_round_trip(const uint8_t *bytes, size_t length)
{
    unsigned char once[MESH_MESSAGE_MAX];
    unsigned char twice[MESH_MESSAGE_MAX];
    struct mesh_message message;
    size_t again;

    if (!mesh_message_decode(bytes, length, &message))
        return;
    again = mesh_message_encode(&message, once);
    require(again == length && mesh_message_decode(once, again, &message));
    require(mesh_message_encode(&message, twice) == again && memcmp(once, twice, again) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    while (size >= MESH_HEADER_BYTES) {
        size_t length = mesh_message_length(data);
        uint8_t *exact;

        if (length == 0 || length > size)
            break;
        exact = allocate(length);
        memcpy(exact, data, length);
        check_round_trip(exact, length);
        free(exact);
        data += length;
        size -= length;
    }
    return 0;
}
