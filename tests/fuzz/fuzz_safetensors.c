/*
 * Fuzzes the parser of safetensors files.  An accepted file must be consistent: the entries do not
 * exceed the data, and floats are copied without an access outside the buffer.  If it is a
 * checkpoint, its facts must be in range.
 */
#include "common/checkpoint/checkpoint.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct safetensors s;
    struct checkpoint_facts facts;
    struct error err;
    size_t bytes = 0;

    if (safetensors_parse("fuzz", data, size, &s, &err) != STATUS_OK)
        return 0;
    for (size_t i = 0; i < s.length; i++) {
        const struct safetensors_entry *e = &s.entries[i];
        float *values;

        require(e->bytes <= size);
        bytes += e->bytes;
        values = allocate(e->bytes);
        (void)safetensors_copy_floats(&s, e, values, &err);
        free(values);
    }
    require(bytes < size);
    if (checkpoint_read_facts(&s, &facts, &err) == STATUS_OK)
        require(facts.parts > 0 && facts.batch_size > 0 && facts.position <= facts.samples &&
                facts.shuffle <= 1);
    safetensors_release(&s);
    return 0;
}
