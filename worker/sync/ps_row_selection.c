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

enum status ps_row_selection_init(struct ps_row_selection *r, const struct codec *down,
                                  const struct shard_map *map, struct error *err)
{
    enum status status;

    *r = (struct ps_row_selection){0};
    if (down->kind != CODEC_SELECTED_ROWS)
        return STATUS_OK;
    status =
        mem_calloc(map->length, sizeof(*r->partitions), "selected partitions", &r->partitions, err);
    if (status != STATUS_OK)
        return status;
    for (size_t i = 0; i < map->length; i++) {
        r->partitions[i].first_word = r->words;
        r->words += codec_selection_words(map->partitions[i].count);
    }
    status = mem_calloc(r->words, sizeof(*r->set), "selected rows", &r->set, err);
    if (status == STATUS_OK)
        status = mem_calloc(r->words, NUMBER_BYTES_PER_WORD, "numbers of selected rows",
                            &r->numbers, err);
    if (status == STATUS_OK)
        r->map = map;
    return status;
}

void ps_row_selection_release(struct ps_row_selection *r)
{
    free(r->partitions);
    free(r->set);
    free(r->numbers);
    memset(r, 0, sizeof(*r));
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

void ps_row_selection_add(struct ps_row_selection *r, size_t offset, size_t count)
{
    size_t end = offset + count;

    if (!r->map)
        return;
    r->has_pending = true;
    for (size_t i = count > 0 ? find_partition(r->map, offset) : r->map->length;
         i < r->map->length && r->map->partitions[i].offset < end; i++) {
        const struct partition *p = &r->map->partitions[i];
        size_t from = offset > p->offset ? offset - p->offset : 0;
        size_t to = end - p->offset < p->count ? end - p->offset : p->count;

        codec_select_rows(r->set + r->partitions[i].first_word, from, to - from);
    }
}

void ps_row_selection_commit(struct ps_row_selection *r)
{
    if (!r->map)
        return;
    for (size_t i = 0; i < r->map->length; i++) {
        struct ps_selected_rows *p = &r->partitions[i];
        size_t count = r->map->partitions[i].count;

        p->reply_bytes =
            r->has_pending ? codec_selected_rows_bytes(r->set + p->first_word, count) : 0;
        p->is_partial = p->reply_bytes > 0;
        if (p->is_partial)
            p->numbers_bytes = codec_encode_selection(
                r->set + p->first_word, count, r->numbers + p->first_word * NUMBER_BYTES_PER_WORD);
    }
    if (r->has_pending)
        memset(r->set, 0, r->words * sizeof(*r->set));
    r->has_pending = false;
}

const struct ps_selected_rows *ps_row_selection_of(const struct ps_row_selection *r,
                                                   size_t partition)
{
    return r->map && r->partitions[partition].is_partial ? &r->partitions[partition] : NULL;
}

const uint8_t *ps_row_selection_numbers(const struct ps_row_selection *r,
                                        const struct ps_selected_rows *p)
{
    return r->numbers + p->first_word * NUMBER_BYTES_PER_WORD;
}
