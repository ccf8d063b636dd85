/*
 * Rank 0 collects the manifests and publishes one verdict, so n ranks cost 2n messages, and all of
 * them end with the same list of differences.
 */
#include "worker/train/agree.h"

#include "common/manifest/manifest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VERDICT_KEY "manifest/verdict"

static void format_key(char *key, size_t size, unsigned rank)
{
    (void)snprintf(key, size, "manifest/%u", rank);
}

static enum status judge(struct store *store, const char *mine, struct error *err)
{
    struct strbuf report = STRBUF_INIT;
    enum status status = STATUS_OK;

    for (unsigned rank = 1; rank < store_world_size(store) && status == STATUS_OK; rank++) {
        char key[64];
        char *theirs = NULL;
        size_t size;

        format_key(key, sizeof(key), rank);
        status = store_get(store, key, -1, &theirs, &size, err);
        if (status == STATUS_OK)
            (void)manifest_compare(mine, 0, theirs, rank, &report);
        free(theirs);
    }
    if (status == STATUS_OK)
        status = store_set(store, VERDICT_KEY, report.text, report.length, err);
    strbuf_release(&report);
    return status;
}

enum status agree_on_manifest(struct store *store, const char *manifest, struct error *err)
{
    unsigned rank = store_rank(store);
    char *verdict = NULL;
    size_t size;
    enum status status;

    if (rank == 0) {
        status = judge(store, manifest, err);
    } else {
        char key[64];

        format_key(key, sizeof(key), rank);
        status = store_set(store, key, manifest, strlen(manifest), err);
    }
    if (status == STATUS_OK)
        status = store_get(store, VERDICT_KEY, -1, &verdict, &size, err);
    if (status == STATUS_OK && verdict[0] != '\0')
        status = error_set(err, STATUS_MISMATCH, "the ranks do not run the same job:\n%s", verdict);
    free(verdict);
    return status;
}
