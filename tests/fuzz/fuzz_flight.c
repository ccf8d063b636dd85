/*
 * Fuzzes the parser of the flight recorder's file.  Nothing may be read outside the file, and an
 * accepted log must be printable: terminated names, valid enumerators, increasing indices.  The
 * first byte selects whether a valid header precedes the input, so that the cells are parsed, too.
 */
#include "common/collective/flight/flight_layout.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#define CELLS 8

static void check_log(const struct flight_log *log)
{
    char text[COLLECTIVE_TEXT_SIZE];
    uint64_t last = 0;

    require(memchr(log->reason, '\0', sizeof(log->reason)) && (unsigned)log->fault < FAULT_COUNT);
    for (size_t i = 0; i < log->length; i++) {
        const struct flight_entry *e = &log->entries[i];

        require(e->index > last && memchr(e->group, '\0', sizeof(e->group)));
        last = e->index;
        signature_text(&e->signature, text);
        require(strlen(text) < sizeof(text) - 1);
    }
}

static void parse_and_check(const void *bytes, size_t size)
{
    struct flight_log log;
    struct error err = {0};

    if (flight_parse("fuzz", bytes, size, &log, &err) == STATUS_OK) {
        check_log(&log);
        flight_log_release(&log);
    } else {
        require(err.status == STATUS_DATA && err.text[0] != '\0');
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const size_t file_bytes = FLIGHT_HEADER_BYTES + CELLS * sizeof(struct flight_cell);
    struct flight_header header = {.magic = FLIGHT_MAGIC,
                                   .version = FLIGHT_VERSION,
                                   .byte_order = FLIGHT_BYTE_ORDER,
                                   .header_bytes = FLIGHT_HEADER_BYTES,
                                   .cell_bytes = sizeof(struct flight_cell),
                                   .entries = CELLS,
                                   .notice = FLIGHT_NOTICE};
    char *bytes;
    size_t left;

    if (size < 1)
        return 0;
    if (data[0] % 2 == 0) {
        parse_and_check(data + 1, size - 1);
        return 0;
    }
    bytes = allocate(file_bytes);
    memcpy(bytes, &header, sizeof(header));
    left = size - 1 < CELLS * sizeof(struct flight_cell) ? size - 1
                                                         : CELLS * sizeof(struct flight_cell);
    memcpy(bytes + FLIGHT_HEADER_BYTES, data + 1, left);
    parse_and_check(bytes, file_bytes);
    free(bytes);
    return 0;
}
