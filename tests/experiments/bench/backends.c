/* backends: looks a name up in collective_backends(). */
#include "tests/experiments/bench/backends.h"

#include "common/collective/collective.h"

#include <stdio.h>
#include <string.h>

bool bench_has_backend(const char *wanted)
{
    for (const char *const *name = collective_backends(); *name; name++)
        if (strcmp(*name, wanted) == 0)
            return true;
    (void)printf("skipped: this build has no %s\n", wanted);
    return false;
}
