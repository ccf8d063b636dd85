/*
 * Comparison of manifests through the store.  Rank 0 reads the manifest of every other rank and
 * publishes one list of differences, so n ranks need 2n messages and all of them report the same
 * list.  No locking: runs once, on the training thread.
 */
#include "worker/train/agree.h"

#include "common/manifest/manifest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIFFERENCES_KEY "manifest/verdict"

static void format_key(char *key, size_t size, unsigned rank)
{
    (void)snprintf(key, size, "manifest/%u", rank);
}

static enum status compare_manifests(struct store *store, const char *mine, struct error *err)
{
    struct strbuf differences = STRBUF_INIT;
    enum status status = STATUS_OK;

    for (unsigned rank = 1; rank < store_world_size(store) && status == STATUS_OK; rank++) {
        char key[64];
        char *theirs = NULL;
        size_t size;

        format_key(key, sizeof(key), rank);
        status = store_get(store, key, -1, &theirs, &size, err);
        if (status == STATUS_OK)
            (void)manifest_compare(mine, 0, theirs, rank, &differences);
        free(theirs);
    }
    if (status == STATUS_OK)
        status = store_set(store, DIFFERENCES_KEY, differences.text, differences.length, err);
    strbuf_release(&differences);
    return status;
}

enum status agree_on_manifest(struct store *store, const char *manifest, struct error *err)
{
    unsigned rank = store_rank(store);
    char *differences = NULL;
    size_t size;
    enum status status;

    if (rank == 0) {
        status = compare_manifests(store, manifest, err);
    } else {
        char key[64];

        format_key(key, sizeof(key), rank);
        status = store_set(store, key, manifest, strlen(manifest), err);
    }
    if (status == STATUS_OK)
        status = store_get(store, DIFFERENCES_KEY, -1, &differences, &size, err);
    if (status == STATUS_OK && differences[0] != '\0')
        status =
            error_set(err, STATUS_MISMATCH, "the ranks do not run the same job:\n%s", differences);
    free(differences);
    return status;
}
