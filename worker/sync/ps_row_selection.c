/*
 * Bit sets and row numbers of all partitions are in two arrays; each partition's set begins at a
 * word boundary, so its numbers begin at first_word * NUMBER_BYTES_PER_WORD.
 *
 * The sets collect the next round's selection, the numbers are those of the current round.
 * No locks: see the header.
 */
#include "worker/sync/ps_row_selection.h"

#include "common/base/memory.h"

#include <stdlib.h>
#include <string.h>

#define NUMBER_BYTES_PER_WORD (64 * CODEC_ROW_NUMBER_BYTES) /* of a full word of a set */

enum status ps_row_selection_init(struct ps_row_selection *n, const struct codec *down,
                                  const struct shard_map *map, struct error *err)
{
    enum status status;

    *n = (struct ps_row_selection){0};
    if (down->kind != CODEC_SELECTED_ROWS)
        return STATUS_OK;
    status =
        mem_calloc(map->length, sizeof(*n->partitions), "selected partitions", &n->partitions, err);
    if (status != STATUS_OK)
        return status;
    for (size_t i = 0; i < map->length; i++) {
        n->partitions[i].first_word = n->words;
        n->words += codec_selection_words(map->partitions[i].count);
    }
    status = mem_calloc(n->words, sizeof(*n->set), "selected rows", &n->set, err);
    if (status == STATUS_OK)
        status = mem_calloc(n->words, NUMBER_BYTES_PER_WORD, "numbers of selected rows",
                            &n->numbers, err);
    if (status == STATUS_OK)
        n->map = map;
    return status;
}

void ps_row_selection_release(struct ps_row_selection *n)
{
    free(n->partitions);
    free(n->set);
    free(n->numbers);
    memset(n, 0, sizeof(*n));
}

/* The partition that contains an element of the slab.  Partitions are in slab order. */
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

void ps_row_selection_add(struct ps_row_selection *n, size_t offset, size_t count)
{
    size_t end = offset + count;

    if (!n->map)
        return;
    n->has_pending = true;
    for (size_t i = count > 0 ? find_partition(n->map, offset) : n->map->length;
         i < n->map->length && n->map->partitions[i].offset < end; i++) {
        const struct partition *p = &n->map->partitions[i];
        size_t from = offset > p->offset ? offset - p->offset : 0;
        size_t to = end - p->offset < p->count ? end - p->offset : p->count;

        codec_select_rows(n->set + n->partitions[i].first_word, from, to - from);
    }
}

void ps_row_selection_commit(struct ps_row_selection *n)
{
    if (!n->map)
        return;
    for (size_t i = 0; i < n->map->length; i++) {
        struct ps_selected_rows *p = &n->partitions[i];
        size_t count = n->map->partitions[i].count;

        p->reply_bytes =
            n->has_pending ? codec_selected_rows_bytes(n->set + p->first_word, count) : 0;
        p->is_partial = p->reply_bytes > 0;
        if (p->is_partial)
            p->numbers_bytes = codec_encode_selection(
                n->set + p->first_word, count, n->numbers + p->first_word * NUMBER_BYTES_PER_WORD);
    }
    if (n->has_pending)
        memset(n->set, 0, n->words * sizeof(*n->set));
    n->has_pending = false;
}

const struct ps_selected_rows *ps_row_selection_of(const struct ps_row_selection *n,
                                                   size_t partition)
{
    return n->map && n->partitions[partition].is_partial ? &n->partitions[partition] : NULL;
}

const uint8_t *ps_row_selection_numbers(const struct ps_row_selection *n,
                                        const struct ps_selected_rows *p)
{
    return n->numbers + p->first_word * NUMBER_BYTES_PER_WORD;
}
