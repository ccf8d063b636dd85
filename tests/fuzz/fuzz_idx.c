/*
 * Fuzzes the parser of IDX files, plain or gzip.  An accepted file must have as many elements as
 * its shape, all of them readable.
 */
#include "tests/fuzz/fuzz.h"
#include "worker/data/idx.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct idx i;
    struct error err;
    size_t count = 1;
    unsigned sum = 0;

    if (idx_parse("fuzz", data, size, &i, &err) != STATUS_OK)
        return 0;
    for (unsigned d = 0; d < i.dims; d++)
        count *= i.shape[d];
    for (size_t k = 0; k < i.count; k++)
        sum += i.values[k];
    require(count == i.count && sum <= 255 * count);
    idx_release(&i);
    return 0;
}
