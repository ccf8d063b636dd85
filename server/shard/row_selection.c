/*
 * row_selection: memory of the selections.
 *
 * The selections of a rank in all partitions follow each other, each starting at a word of its own.
 * The caller holds the lock of the partition that a call works on.
 */
#include "server/shard/row_selection.h"

#include "common/base/memory.h"

#include <stdlib.h>
#include <string.h>

/* Write the partitions' consecutive offsets (NULL: none); returns the words of all. */
static size_t lay_out_offsets(const struct shard_map *map, unsigned index, size_t *offsets)
{
    const uint32_t *held;
    size_t length = shard_map_held(map, index, &held);
    size_t words = 0;

    for (size_t local_index = 0; local_index < length; local_index++) {
        if (offsets)
            offsets[local_index] = words;
        words += codec_selection_words(map->partitions[held[local_index]].count);
    }
    return words;
}

size_t row_selection_bytes(const struct codec *down, const struct shard_map *map, unsigned index,
                           unsigned world_size, bool copies)
{
    size_t bytes;

    if (down->kind != CODEC_SELECTED_ROWS)
        return 0;
    bytes = lay_out_offsets(map, index, NULL) * sizeof(uint64_t);
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
    status =
        mem_calloc(n->length, sizeof(*n->offsets), "offsets of row selections", &n->offsets, err);
    if (status != STATUS_OK)
        return status;
    n->words = lay_out_offsets(map, index, n->offsets);
    status = mem_calloc(n->words * world_size, sizeof(*n->bits), "row selections", &n->bits, err);
    if (status == STATUS_OK)
        status = mem_calloc(n->length * world_size, sizeof(*n->selected), "flags of row selections",
                            &n->selected, err);
    if (status == STATUS_OK && !copies)
        status = mem_calloc_aligned(map->server_elements[index] * world_size, sizeof(float),
                                    "replies of selected rows", &n->coded, err);
    return status;
}

void row_selection_release(struct row_selection *n)
{
    free(n->coded);
    free(n->selected);
    free(n->bits);
    free(n->offsets);
    memset(n, 0, sizeof(*n));
}

uint64_t *row_selection_bits(const struct row_selection *n, size_t local_index, unsigned rank)
{
    return n->bits + rank * n->words + n->offsets[local_index];
}

bool *row_selection_flag(const struct row_selection *n, size_t local_index, unsigned rank)
{
    return &n->selected[rank * n->length + local_index];
}
