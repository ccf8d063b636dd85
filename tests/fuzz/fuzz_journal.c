/*
 * Fuzzes the reader of the journal, with two ranks.  Nothing may be read outside a record's memory,
 * delivered records must have sizes that the format allows, and the accepted part of the file must
 * be accepted again after the rest is cut off.
 */
#include "server/persistence/journal.h"
#include "tests/fuzz/fuzz.h"

#include <sys/mman.h>
#include <unistd.h>

/* Read every byte of the record. */
static enum status touch_record(void *user, const struct journal_record *r, struct error *err)
{
    uint64_t *sum = user;

    (void)err;
    require(r->size <= JOURNAL_PAYLOAD_MAX);
    *sum += r->step + r->kind;
    for (unsigned i = 0; r->clocks && i < 2; i++)
        *sum += r->clocks[i] + r->flags[i];
    for (size_t i = 0; i < r->size; i++)
        *sum += ((const unsigned char *)r->payload)[i];
    return STATUS_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct journal_head head = {.world_size = 2, .digest = 5, .generation = 1};
    int fd = memfd_create("journal", MFD_CLOEXEC);
    struct journal_read_result out, again;
    uint64_t sum = 0, same = 0;
    struct error err;

    require(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    if (journal_read(fd, "fuzz", &head, touch_record, &sum, &out, &err) == STATUS_OK) {
        require(out.size + out.torn_bytes == size);
        require(ftruncate(fd, (off_t)out.size) == 0);
        require(journal_read(fd, "fuzz", &head, touch_record, &same, &again, &err) == STATUS_OK);
        require(again.records == out.records && again.torn_bytes == 0 && same == sum);
    }
    (void)close(fd);
    return 0;
}
