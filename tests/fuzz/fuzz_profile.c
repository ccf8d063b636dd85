/*
 * Fuzzes the parser of profiles.  An accepted file has layers whose parameters are the table's in
 * order, and times within the limits; an error names the file.
 */
#include "tests/fuzz/fuzz.h"
#include "worker/model/profile.h"

#include <string.h>

static void check_profile(const struct profile *p)
{
    size_t views = 0;

    require(p->length > 0 && p->length <= 4096 && p->times_hash != 0);
    for (size_t i = 0; i < p->length; i++) {
        const struct profile_layer *l = &p->layers[i];

        require(l->first == views);
        require(l->forward_ns >= 0 && l->forward_ns <= INT64_C(60000000000));
        require(l->backward_ns >= 0 && l->backward_ns <= INT64_C(60000000000));
        views += l->parameters;
    }
    require(views == p->table.length && p->table.count > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct profile p;
    struct error err = {0};

    if (profile_parse("fuzz", (const char *)data, size, &p, &err) == STATUS_OK)
        check_profile(&p);
    else
        require(strncmp(err.text, "fuzz:", 5) == 0 && err.status == STATUS_CONFIG);
    profile_release(&p);
    return 0;
}
