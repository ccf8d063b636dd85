/*
 * Reads the kernel's description of the processors and divides them.  No state.
 */
#include "experiments/launch/binding.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

/* thread_siblings_list is "0-1" or "0,4", in order: its first number. */
static unsigned core_of(const char *folder, unsigned processor)
{
    char path[4096];
    unsigned core = processor;
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/cpu%u/topology/thread_siblings_list", folder, processor);
    file = fopen(path, "re");
    if (!file)
        return processor;
    if (fscanf(file, "%u", &core) != 1)
        core = processor;
    (void)fclose(file);
    return core;
}

/* The folder of a processor holds a link to its node: "node1". */
static unsigned node_of(const char *folder, unsigned processor)
{
    char path[4096];
    unsigned node = 0;
    DIR *entries;

    (void)snprintf(path, sizeof(path), "%s/cpu%u", folder, processor);
    entries = opendir(path);
    for (const struct dirent *e = entries ? readdir(entries) : NULL; e; e = readdir(entries))
        if (sscanf(e->d_name, "node%u", &node) == 1)
            break;
    if (entries)
        (void)closedir(entries);
    return node;
}

static int by_place(const void *a, const void *b)
{
    const struct binding_processor *p = a, *q = b;

    if (p->node != q->node)
        return p->node < q->node ? -1 : 1;
    if (p->core != q->core)
        return p->core < q->core ? -1 : 1;
    return p->number < q->number ? -1 : p->number > q->number;
}

void binding_read(const char *folder, const cpu_set_t *allowed, struct binding_topology *ret)
{
    ret->count = 0;
    for (unsigned i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, allowed))
            ret->processors[ret->count++] = (struct binding_processor){
                .number = i, .core = core_of(folder, i), .node = node_of(folder, i)};
    qsort(ret->processors, ret->count, sizeof(ret->processors[0]), by_place);
}

/* Whether processor i is on another core (node) than the one before it. */
static bool begins(const struct binding_topology *t, unsigned i, bool core)
{
    const struct binding_processor *p = &t->processors[i];

    return i == 0 || p->node != p[-1].node || (core && p->core != p[-1].core);
}

static unsigned count_places(const struct binding_topology *t, bool core)
{
    unsigned count = 0;

    for (unsigned i = 0; i < t->count; i++)
        count += begins(t, i, core);
    return count;
}

/* Add the processors of cores (nodes) first to end - 1. */
static void add_places(const struct binding_topology *t, bool core, unsigned first, unsigned end,
                       cpu_set_t *ret)
{
    unsigned places = 0;

    CPU_ZERO(ret);
    for (unsigned i = 0; i < t->count; i++) {
        places += begins(t, i, core);
        if (places > first && places <= end)
            CPU_SET(t->processors[i].number, ret);
    }
}

unsigned binding_cores(const struct binding_topology *t)
{
    return count_places(t, true);
}

void binding_by_core(const struct binding_topology *t, unsigned index, unsigned count,
                     cpu_set_t *ret)
{
    unsigned cores = binding_cores(t), each = cores / count;

    if (each == 0)
        add_places(t, true, index % cores, index % cores + 1, ret);
    else
        add_places(t, true, index * each, (index + 1) * each, ret);
}

void binding_by_node(const struct binding_topology *t, unsigned index, unsigned count,
                     cpu_set_t *ret)
{
    unsigned nodes = count_places(t, false);
    unsigned node = index * nodes / count;

    add_places(t, false, node, node + 1, ret);
}
