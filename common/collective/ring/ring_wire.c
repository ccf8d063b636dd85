/*
 * Encoding of hellos and headers.  Fixed layouts, written and read byte by byte: no padding, no
 * alignment, no byte order of the host.
 */
#include "common/collective/ring/ring_wire.h"

#include <string.h>

#define MAGIC_HELLO 0x68725053u /* "SPrh" */

static unsigned char *put(unsigned char *at, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        at[i] = (unsigned char)(value >> (8 * i));
    return at + bytes;
}

static uint64_t get(const unsigned char *at, unsigned bytes)
{
    uint64_t value = 0;

    for (unsigned i = bytes; i > 0; i--)
        value = (value << 8) | at[i - 1];
    return value;
}

/* magic 4, generation 4, group 8, cookie 8, rank 4, world size 4, stream 4, zero 4 */
void ring_hello_encode(const struct ring_hello *hello, unsigned char *bytes)
{
    bytes = put(bytes, MAGIC_HELLO, 4);
    bytes = put(bytes, hello->generation, 4);
    bytes = put(bytes, hello->group, 8);
    bytes = put(bytes, hello->cookie, 8);
    bytes = put(bytes, hello->rank, 4);
    bytes = put(bytes, hello->world_size, 4);
    bytes = put(bytes, hello->stream, 4);
    (void)put(bytes, 0, 4);
}

bool ring_hello_decode(const unsigned char *bytes, struct ring_hello *ret)
{
    if (get(bytes, 4) != MAGIC_HELLO)
        return false;
    ret->generation = (uint32_t)get(bytes + 4, 4);
    ret->group = get(bytes + 8, 8);
    ret->cookie = get(bytes + 16, 8);
    ret->rank = (uint32_t)get(bytes + 24, 4);
    ret->world_size = (uint32_t)get(bytes + 28, 4);
    ret->stream = (uint32_t)get(bytes + 32, 4);
    return true;
}

void ring_header_encode(const struct signature *signature, double factor, unsigned char *bytes)
{
    signature_encode(signature, bytes);
    ring_header_set_factor(bytes, factor);
}

void ring_header_set_factor(unsigned char *bytes, double factor)
{
    uint64_t bits;

    memcpy(&bits, &factor, sizeof(bits));
    (void)put(bytes + SIGNATURE_BYTES, bits, 8);
}

double ring_header_factor(const unsigned char *bytes)
{
    uint64_t bits = get(bytes + SIGNATURE_BYTES, 8);
    double factor;

    memcpy(&factor, &bits, sizeof(factor));
    return factor;
}
