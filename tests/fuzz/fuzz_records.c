/*
 * Fuzzes the parser of a rank's records.  Accepted records must have increasing steps, and their
 * metrics must be computable; an error must have a text.
 */
#include "experiments/report/metric.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct error err = {0};
    struct records records;
    struct run run = {.ranks = &records, .rank_count = 1};
    struct run_metrics metrics;

    if (records_parse("fuzz", (const char *)data, size, 0, &records, &err) != STATUS_OK) {
        require(err.text[0] != '\0');
        return 0;
    }
    for (size_t i = 1; i < records.length; i++)
        require(records.steps[i].step > records.steps[i - 1].step);
    require(metric_compute(&run, 0.5, &metrics, &err) == STATUS_OK);
    records_release(&records);
    return 0;
}
