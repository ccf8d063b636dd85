/*
 * run_faults: reads the file that `sparring launch --fault-schedule` writes.
 */
#include "experiments/report/run_faults.h"

#include "common/base/file.h"
#include "common/base/memory.h"
#include "experiments/report/json_fields.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

#define FAULT_TEXT(member)                                                                         \
    {                                                                                              \
#member, FIELD_TEXT, offsetof(struct run_fault, member),                                   \
            sizeof(((struct run_fault *)0)->member), 1                                             \
    }
#define FAULT_NUMBER(member, is_needed)                                                            \
    {                                                                                              \
#member, FIELD_NUMBER, offsetof(struct run_fault, member), 0, is_needed                    \
    }
static const struct json_field fault_fields[] = {
    FAULT_TEXT(action),        FAULT_TEXT(target),           FAULT_NUMBER(planned_s, 1),
    FAULT_NUMBER(length_s, 0), FAULT_NUMBER(rate_bits_s, 0), FAULT_NUMBER(begin_wall, 0),
    FAULT_NUMBER(end_wall, 0),
};

static const struct json_field file_fields[] = {
    {"start_wall", FIELD_NUMBER, offsetof(struct run_faults, start_wall), 0, 1}};

static enum status read_faults(const json_t *object, const struct json_position *position,
                               struct run_faults *ret, struct error *err)
{
    const json_t *list = json_object_get(object, "faults");
    enum status status =
        json_fields_read(object, position, file_fields, COUNT_OF(file_fields), ret, err);

    if (status == STATUS_OK && !json_is_array(list))
        status = error_set(err, STATUS_DATA, "'%s' has no list 'faults'", position->path);
    if (status == STATUS_OK)
        status =
            mem_calloc(json_array_size(list), sizeof(*ret->faults), "faults", &ret->faults, err);
    for (size_t i = 0; status == STATUS_OK && i < json_array_size(list); i++) {
        const double unknown = (double)NAN;

        ret->faults[i] = (struct run_fault){.length_s = unknown,
                                            .rate_bits_s = unknown,
                                            .begin_wall = unknown,
                                            .end_wall = unknown};
        status = json_fields_read(json_array_get(list, i), position, fault_fields,
                                  COUNT_OF(fault_fields), &ret->faults[i], err);
        ret->length += status == STATUS_OK;
    }
    return status;
}

enum status run_faults_read(const char *folder, struct run_faults *ret, struct error *err)
{
    char path[4096];
    struct json_position position = {.path = path, .line = 1};
    json_t *object = NULL;
    enum status status = file_join(path, sizeof(path), folder, "faults.json", err);

    *ret = (struct run_faults){0};
    if (status != STATUS_OK || access(path, F_OK) != 0)
        return status;
    status = json_file_read(path, &object, err);
    if (status == STATUS_OK)
        status = read_faults(object, &position, ret, err);
    json_decref(object);
    if (status != STATUS_OK)
        run_faults_release(ret);
    return status;
}

void run_faults_release(struct run_faults *f)
{
    free(f->faults);
    *f = (struct run_faults){0};
}

void run_faults_text(const struct run_faults *f, char *text, size_t size)
{
    size_t length = 0;

    (void)snprintf(text, size, "none");
    for (size_t i = 0; i < f->length && length < size; i++) {
        const struct run_fault *fault = &f->faults[i];
        char rate[40] = "", end[40] = "";

        if (isfinite(fault->rate_bits_s))
            (void)snprintf(rate, sizeof(rate), " to %.4g Mbit/s", fault->rate_bits_s * 1e-6);
        if (isfinite(fault->length_s))
            (void)snprintf(end, sizeof(end), " for %.4g s", fault->length_s);
        length += (size_t)snprintf(text + length, size - length, "%s%s %s%s at %.4g s%s",
                                   i > 0 ? "; " : "", fault->action, fault->target, rate,
                                   fault->planned_s, end);
    }
}
