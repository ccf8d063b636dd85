/*
 * Fuzzes yaml_parse.  It must return an error that names the file, or scalars with unique paths and
 * non-decreasing lines.
 */
#include "common/option/option.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

static int compare_paths(const void *a, const void *b)
{
    const struct yaml_scalar *first = a;
    const struct yaml_scalar *second = b;

    return strcmp(first->path, second->path);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct yaml_file file = {0};
    struct error err = {0};

    if (yaml_parse("f", (const char *)data, size, &file, &err) != STATUS_OK) {
        require(strncmp(err.text, "f:", 2) == 0 && !file.scalars);
        return 0;
    }
    for (size_t i = 1; i < file.length; i++)
        require(file.scalars[i].line >= file.scalars[i - 1].line);
    if (file.length > 1)
        qsort(file.scalars, file.length, sizeof(file.scalars[0]), compare_paths);
    for (size_t i = 1; i < file.length; i++)
        require(strcmp(file.scalars[i].path, file.scalars[i - 1].path) != 0);
    yaml_release(&file);
    return 0;
}
