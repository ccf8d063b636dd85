/* The sets of a rank lie one behind the other, each from a word of its own on. */
#include "server/shard/row_selection.h"

#include "common/base/memory.h"

#include <stdlib.h>
#include <string.h>

/* Places one behind the other into at (NULL: only the sum is wanted); returns the words of all. */
static size_t lay_out(const struct shard_map *map, unsigned index, size_t *at)
{
    const uint32_t *held;
    size_t length = shard_map_held(map, index, &held);
    size_t words = 0;

    for (size_t slot = 0; slot < length; slot++) {
        if (at)
            at[slot] = words;
        words += codec_selection_words(map->partitions[held[slot]].count);
    }
    return words;
}

size_t row_selection_bytes(const struct codec *down, const struct shard_map *map, unsigned index,
                           unsigned world_size, bool copies)
{
    size_t bytes;

    if (down->kind != CODEC_SELECTED_ROWS)
        return 0;
    bytes = lay_out(map, index, NULL) * sizeof(uint64_t);
    if (!copies)
        bytes += map->server_elements[index] * sizeof(float);
    return bytes * world_size;
}

enum status row_selection_init(struct row_selection *n, const struct codec *down,
                               const struct shard_map *map, unsigned index, unsigned world_size,
                               bool copies, struct error *err)
{
    const uint32_t *held;
    enum status status;

    *n = (struct row_selection){.length = shard_map_held(map, index, &held)};
    if (down->kind != CODEC_SELECTED_ROWS || n->length == 0)
        return STATUS_OK;
    status = mem_calloc(n->length, sizeof(*n->at), "places of named rows", &n->at, err);
    if (status != STATUS_OK)
        return status;
    n->words = lay_out(map, index, n->at);
    status = mem_calloc(n->words * world_size, sizeof(*n->set), "named rows", &n->set, err);
    if (status == STATUS_OK)
        status = mem_calloc(n->length * world_size, sizeof(*n->named), "names", &n->named, err);
    if (status == STATUS_OK && !copies)
        status = mem_calloc_aligned(map->server_elements[index] * world_size, sizeof(float),
                                    "answers of named rows", &n->coded, err);
    return status;
}

void row_selection_release(struct row_selection *n)
{
    free(n->coded);
    free(n->named);
    free(n->set);
    free(n->at);
    memset(n, 0, sizeof(*n));
}

uint64_t *row_selection_of(const struct row_selection *n, size_t slot, unsigned rank)
{
    return n->set + rank * n->words + n->at[slot];
}

bool *row_selection_is_set(const struct row_selection *n, size_t slot, unsigned rank)
{
    return &n->named[rank * n->length + slot];
}
