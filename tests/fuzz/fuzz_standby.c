/*
 * Fuzzes the messages of standby daemons, and what a daemon accepts.  Accepted input packs and
 * unpacks to the same bytes; an accepted job is one of our programs, and names no path outside the
 * allowed folder.
 */
#include "common/wire/wire_standby.h"
#include "experiments/standby/job.h"
#include "tests/fuzz/fuzz.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Its folder, where there is no such file; /lib and others are links to folders in /usr. */
static bool leads_to_usr(const char *path)
{
    char folder[PATH_MAX], resolved[PATH_MAX];

    (void)snprintf(folder, sizeof(folder), "%.*s", (int)(strrchr(path, '/') + 1 - path), path);
    if (!realpath(path, resolved) && !realpath(folder, resolved))
        return false;
    return strncmp(resolved, "/usr", 4) == 0 && (resolved[4] == '/' || resolved[4] == '\0');
}

static void check_text(const char *text)
{
    const char *slash = strchr(text, '/');

    require(!strstr(text, ".."));
    require(!slash || strncmp(text, "tcp://", 6) == 0 || leads_to_usr(slash));
}

static void fuzz_job(const struct standby_request *r)
{
    char *allowed[] = {(char[]){"/usr"}};
    const struct text_list folders = {.texts = allowed, .length = 1};
    struct error err = {0};

    if (job_check(r, &folders, &err) != STATUS_OK) {
        require(err.status == STATUS_DENIED && err.text[0]);
        return;
    }
    require(r->holder[0] && (r->program[0] == '\0' || strcmp(r->program, "probe") == 0 ||
                             strncmp(r->program, "sparring-", 9) == 0));
    for (size_t i = 0; i < r->words.length; i++)
        check_text(r->words.texts[i]);
    for (size_t i = 0; i < r->variables.length; i++) {
        check_text(r->variables.texts[i]);
        require(job_takes_variable(r->variables.texts[i]));
    }
}

static void fuzz_request(const uint8_t *data, size_t size)
{
    struct standby_request m = {0};
    struct standby_request again = {0};
    uint8_t *packed = NULL;
    uint8_t *repacked = NULL;
    size_t packed_size = 0;
    size_t repacked_size = 0;

    if (wire_unpack_standby_request(data, size, &m, NULL) == STATUS_OK) {
        require(wire_pack_standby_request(&m, &packed, &packed_size, NULL) == STATUS_OK);
        require(wire_unpack_standby_request(packed, packed_size, &again, NULL) == STATUS_OK);
        require(wire_pack_standby_request(&again, &repacked, &repacked_size, NULL) == STATUS_OK);
        require(packed_size == repacked_size && memcmp(packed, repacked, packed_size) == 0);
        fuzz_job(&m);
    }
    free(packed);
    free(repacked);
    wire_release_standby_request(&m);
    wire_release_standby_request(&again);
}

static void fuzz_reply(const uint8_t *data, size_t size)
{
    struct standby_reply m = {0};
    struct standby_reply again = {0};
    uint8_t *packed = NULL;
    size_t packed_size = 0;

    if (wire_unpack_standby_reply(data, size, &m, NULL) == STATUS_OK) {
        require(wire_pack_standby_reply(&m, &packed, &packed_size, NULL) == STATUS_OK);
        require(wire_unpack_standby_reply(packed, packed_size, &again, NULL) == STATUS_OK);
        require(again.kind == m.kind && again.size == m.size && strcmp(again.name, m.name) == 0);
        require(m.size == 0 || memcmp(again.data, m.data, m.size) == 0);
    }
    free(packed);
    free(m.data);
    free(again.data);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_request(data, size);
    fuzz_reply(data, size);
    return 0;
}
