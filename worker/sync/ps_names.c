/* Sets and numbers of the partitions lie one behind the other, each set from a word of its own on.
 */
#include "worker/sync/ps_names.h"

#include "common/base/memory.h"

#include <stdlib.h>
#include <string.h>

#define WORD_NUMBERS (64 * CODEC_ROW_NUMBER_BYTES) /* bytes of the numbers of a whole word */

enum status ps_names_init(struct ps_names *n, const struct codec *down, const struct shard_map *map,
                          struct error *err)
{
    enum status status;

    *n = (struct ps_names){0};
    if (down->kind != CODEC_SELECTED_ROWS)
        return STATUS_OK;
    status =
        mem_calloc(map->length, sizeof(*n->partitions), "named partitions", &n->partitions, err);
    if (status != STATUS_OK)
        return status;
    for (size_t i = 0; i < map->length; i++) {
        n->partitions[i].at = n->words;
        n->words += codec_selection_words(map->partitions[i].count);
    }
    status = mem_calloc(n->words, sizeof(*n->set), "named rows", &n->set, err);
    if (status == STATUS_OK)
        status = mem_calloc(n->words, WORD_NUMBERS, "numbers of named rows", &n->numbers, err);
    if (status == STATUS_OK)
        n->map = map;
    return status;
}

void ps_names_release(struct ps_names *n)
{
    free(n->partitions);
    free(n->set);
    free(n->numbers);
    memset(n, 0, sizeof(*n));
}

/* The partition that an element of the slab lies in; they are in its order. */
static size_t find_partition(const struct shard_map *map, size_t element)
{
    size_t first = 0, end = map->length;

    while (end - first > 1) {
        size_t middle = first + (end - first) / 2;

        if (map->partitions[middle].offset <= element)
            first = middle;
        else
            end = middle;
    }
    return first;
}

void ps_names_collect(struct ps_names *n, size_t offset, size_t count)
{
    size_t end = offset + count;

    if (!n->map)
        return;
    n->collects = true;
    for (size_t i = count > 0 ? find_partition(n->map, offset) : n->map->length;
         i < n->map->length && n->map->partitions[i].offset < end; i++) {
        const struct partition *p = &n->map->partitions[i];
        size_t from = offset > p->offset ? offset - p->offset : 0;
        size_t to = end - p->offset < p->count ? end - p->offset : p->count;

        codec_select_rows(n->set + n->partitions[i].at, from, to - from);
    }
}

void ps_names_settle(struct ps_names *n)
{
    if (!n->map)
        return;
    for (size_t i = 0; i < n->map->length; i++) {
        struct ps_named *p = &n->partitions[i];
        size_t count = n->map->partitions[i].count;

        p->bytes = n->collects ? codec_selected_rows_bytes(n->set + p->at, count) : 0;
        p->some = p->bytes > 0;
        if (p->some)
            p->size =
                codec_encode_selection(n->set + p->at, count, n->numbers + p->at * WORD_NUMBERS);
    }
    if (n->collects)
        memset(n->set, 0, n->words * sizeof(*n->set));
    n->collects = false;
}

const struct ps_named *ps_names_of(const struct ps_names *n, size_t partition)
{
    return n->map && n->partitions[partition].some ? &n->partitions[partition] : NULL;
}

const uint8_t *ps_names_numbers(const struct ps_names *n, const struct ps_named *p)
{
    return n->numbers + p->at * WORD_NUMBERS;
}
