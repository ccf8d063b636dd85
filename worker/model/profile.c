/*
 * Parses the file with jansson, member by member; a member that the format does not have is an
 * error, so that a misspelt one is not ignored.
 */
#include "worker/model/profile.h"

#include "common/base/file.h"
#include "common/base/memory.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define VERSION        1
#define FILE_BYTES_MAX ((size_t)64 << 20)
#define LAYERS_MAX     4096 /* opening a model takes time quadratic in it */
#define LAYER_US_MAX   60e6
#define WHERE_MAX      64 /* "layers[12].forward_us" */

struct reader {
    const char *path;
    struct profile *profile;
    struct error *err;
};

static enum status fail(const struct reader *r, const char *where, const char *expected)
{
    return error_set(r->err, STATUS_CONFIG, "%s: %s: expected %s", r->path, where, expected);
}

/* ---- members */

static bool is_listed(const char *name, const char *const *names)
{
    for (; *names; names++)
        if (strcmp(*names, name) == 0)
            return true;
    return false;
}

/* prefix: "layers[12]." or "". */
static enum status check_members(const struct reader *r, json_t *object, const char *prefix,
                                 const char *const *names)
{
    const char *name;
    json_t *value;

    json_object_foreach(object, name, value) if (!is_listed(name, names)) return error_set(
        r->err, STATUS_CONFIG, "%s: %s%.40s: there is no such member", r->path, prefix, name);
    return STATUS_OK;
}

/* An integer from 0; absent: *ret stays. */
static enum status read_size(const struct reader *r, const json_t *value, const char *where,
                             size_t *ret)
{
    if (!value)
        return STATUS_OK;
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return fail(r, where, "an integer from 0");
    *ret = (size_t)json_integer_value(value);
    return STATUS_OK;
}

static enum status read_time(const struct reader *r, const json_t *layer, size_t index,
                             const char *name, int64_t *ret)
{
    const json_t *value = json_object_get(layer, name);
    char where[WHERE_MAX];
    double us = json_number_value(value);

    (void)snprintf(where, sizeof(where), "layers[%zu].%s", index, name);
    if (!json_is_number(value) || !(us >= 0 && us <= LAYER_US_MAX))
        return fail(r, where, "a number of microseconds from 0 to 60000000");
    *ret = llround(us * 1e3);
    return STATUS_OK;
}

/* ---- layers */

static enum status add_parameter(const struct reader *r, const char *layer, const char *name,
                                 unsigned dims, const size_t *shape)
{
    char full[2 * TENSOR_NAME_MAX];
    struct error why = {0};
    enum status status;

    (void)snprintf(full, sizeof(full), "%s.%s", layer, name);
    status = tensor_table_add(&r->profile->table, full, dims, shape, &why);
    if (status == STATUS_OK || status == STATUS_NO_MEMORY)
        return status;
    return error_set(r->err, STATUS_CONFIG, "%s: %s", r->path, why.text);
}

static enum status read_shape(const struct reader *r, const char *layer, const char *name,
                              const json_t *value)
{
    size_t shape[TENSOR_DIMS_MAX];
    size_t dims = json_array_size(value);
    char where[2 * TENSOR_NAME_MAX];
    bool good = json_is_array(value) && dims <= TENSOR_DIMS_MAX;

    for (size_t i = 0; i < dims && good; i++) {
        const json_t *size = json_array_get(value, i);

        good = json_is_integer(size) && json_integer_value(size) > 0;
        shape[i] = (size_t)json_integer_value(size);
    }
    (void)snprintf(where, sizeof(where), "parameter %.60s.%.40s", layer, name);
    return good ? add_parameter(r, layer, name, (unsigned)dims, shape)
                : fail(r, where, "a shape: at most 6 sizes from 1");
}

static enum status read_parameters(const struct reader *r, const json_t *layer, const char *name,
                                   size_t index)
{
    json_t *parameters = json_object_get(layer, "parameters");
    enum status status;
    char where[WHERE_MAX];
    size_t bytes = 0;
    const char *key;
    json_t *value;

    (void)snprintf(where, sizeof(where), "layers[%zu].bytes", index);
    status = read_size(r, json_object_get(layer, "bytes"), where, &bytes);
    if (status == STATUS_OK && bytes % sizeof(float) != 0)
        return fail(r, where, "a multiple of 4");
    if (status == STATUS_OK && bytes > 0 && parameters)
        return fail(r, where, "either this or parameters");
    if (status == STATUS_OK && bytes > 0)
        status = add_parameter(r, name, "weight", 1, (size_t[]){bytes / sizeof(float)});
    (void)snprintf(where, sizeof(where), "layers[%zu].parameters", index);
    if (status != STATUS_OK || !parameters)
        return status;
    if (!json_is_object(parameters))
        return fail(r, where, "an object of names and shapes");
    json_object_foreach(parameters, key, value)
    {
        if (status == STATUS_OK)
            status = read_shape(r, name, key, value);
    }
    return status;
}

static enum status read_layer(const struct reader *r, json_t *layer, size_t index)
{
    static const char *const names[] = {"name",       "forward_us", "backward_us",
                                        "parameters", "bytes",      NULL};
    struct profile_layer *l = &r->profile->layers[index];
    const char *name = json_string_value(json_object_get(layer, "name"));
    char where[WHERE_MAX];
    enum status status;

    (void)snprintf(where, sizeof(where), "layers[%zu].name", index);
    if (!name || name[0] == '\0')
        return fail(r, where, "a name");
    (void)snprintf(where, sizeof(where), "layers[%zu].", index);
    status = check_members(r, layer, where, names);
    if (status == STATUS_OK)
        status = read_time(r, layer, index, "forward_us", &l->forward_ns);
    if (status == STATUS_OK)
        status = read_time(r, layer, index, "backward_us", &l->backward_ns);
    l->first = r->profile->table.length;
    if (status == STATUS_OK)
        status = read_parameters(r, layer, name, index);
    l->parameters = r->profile->table.length - l->first;
    return status;
}

static enum status read_layers(const struct reader *r, const json_t *layers)
{
    size_t length = json_array_size(layers);
    enum status status;

    if (length == 0 || length > LAYERS_MAX)
        return fail(r, "layers", "an array of 1 to 4096 layers");
    status = mem_calloc(length, sizeof(*r->profile->layers), "layers", &r->profile->layers, r->err);
    r->profile->length = length;
    for (size_t i = 0; i < length && status == STATUS_OK; i++)
        status = read_layer(r, json_array_get(layers, i), i);
    return status;
}

/* ---- the file */

static enum status check_sum(const struct reader *r, size_t bytes)
{
    size_t sum = 0;

    for (size_t i = 0; i < r->profile->table.length; i++)
        sum += r->profile->table.views[i].count * sizeof(float);
    if (sum == 0)
        return fail(r, "layers", "at least one parameter");
    if (bytes == 0 || bytes == sum)
        return STATUS_OK;
    return error_set(r->err, STATUS_CONFIG, "%s: bytes is %zu, but the layers have %zu", r->path,
                     bytes, sum);
}

static enum status read_root(const struct reader *r, json_t *root)
{
    static const char *const names[] = {"version", "name",   "batch", "compute",
                                        "bytes",   "layers", NULL};
    const json_t *compute = json_object_get(root, "compute");
    const char *kind = compute ? json_string_value(compute) : "busy";
    size_t version = 0;
    size_t bytes = 0;
    enum status status;

    if (!json_is_object(root))
        return fail(r, "the file", "a JSON object");
    status = read_size(r, json_object_get(root, "version"), "version", &version);
    if (status == STATUS_OK && version != VERSION)
        return fail(r, "version", "1, the only one that this program reads");
    if (status == STATUS_OK)
        status = check_members(r, root, "", names);
    if (status == STATUS_OK)
        status = read_size(r, json_object_get(root, "batch"), "batch", &r->profile->batch);
    if (status == STATUS_OK)
        status = read_size(r, json_object_get(root, "bytes"), "bytes", &bytes);
    if (status == STATUS_OK && (!kind || (strcmp(kind, "busy") != 0 && strcmp(kind, "idle") != 0)))
        return fail(r, "compute", "\"busy\" or \"idle\"");
    if (status != STATUS_OK)
        return status;
    r->profile->busy = strcmp(kind, "busy") == 0;
    status = read_layers(r, json_object_get(root, "layers"));
    return status == STATUS_OK ? check_sum(r, bytes) : status;
}

/* FNV-1a over 64-bit words. */
static uint64_t hash_times(const struct profile *p)
{
    const uint64_t prime = UINT64_C(1099511628211);
    uint64_t hash = UINT64_C(14695981039346656037) ^ p->busy;

    for (size_t i = 0; i < p->length; i++) {
        hash = (hash ^ (uint64_t)p->layers[i].forward_ns) * prime;
        hash = (hash ^ (uint64_t)p->layers[i].backward_ns) * prime;
    }
    return hash;
}

enum status profile_parse(const char *path, const char *data, size_t size, struct profile *ret,
                          struct error *err)
{
    const struct reader r = {.path = path, .profile = ret, .err = err};
    json_error_t problem;
    json_t *root = json_loadb(data, size, JSON_REJECT_DUPLICATES, &problem);
    enum status status;

    *ret = (struct profile){.length = 0};
    if (!root)
        return error_set(err, STATUS_CONFIG, "%s:%d:%d: %s", path, problem.line, problem.column,
                         problem.text);
    status = read_root(&r, root);
    ret->times_hash = hash_times(ret);
    json_decref(root);
    return status;
}

enum status profile_read(const char *path, struct profile *ret, struct error *err)
{
    char *data = NULL;
    size_t size;
    enum status status = file_read(path, FILE_BYTES_MAX, &data, &size, err);

    *ret = (struct profile){.length = 0};
    if (status == STATUS_OK)
        status = profile_parse(path, data, size, ret, err);
    free(data);
    return status;
}

void profile_release(struct profile *p)
{
    tensor_table_release(&p->table);
    free(p->layers);
}
