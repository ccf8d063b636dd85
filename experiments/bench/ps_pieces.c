/*
 * ps_pieces: shared by workers and echo servers: how the values are cut into pieces, and the port
 * file.
 */
#include "common/base/file.h"
#include "experiments/bench/bench_ps.h"

#include <stdio.h>

size_t ps_pieces(const struct ps_words *words)
{
    return (size_t)((words->bytes + words->partition_bytes - 1) / words->partition_bytes);
}

void ps_piece(const struct ps_words *words, size_t index, size_t *ret_offset, size_t *ret_bytes)
{
    size_t offset = index * words->partition_bytes;
    size_t left = words->bytes - offset;

    *ret_offset = offset;
    *ret_bytes = left < words->partition_bytes ? left : words->partition_bytes;
}

enum status ps_write_port(const struct ps_words *words, uint16_t port, struct error *err)
{
    char text[300];
    int length = port ? snprintf(text, sizeof(text), "%u\n", port)
                      : snprintf(text, sizeof(text), "%s\n", words->address);

    return file_publish(words->port_file, text, (size_t)length, err);
}
