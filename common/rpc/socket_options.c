/*
 * socket_options: set before sockets connect or listen, through a "socket mutator".  The channel
 * argument is public, its struct is not: the copy here matches core 29 (grpc 1.51,
 * iomgr/socket_mutator.h) and is passed to that version only.
 *
 * Two objects for the whole process, never freed; constant except for core's reference count, so
 * no locks.
 */
#include "common/rpc/socket_options.h"

#include "common/base/net.h"
#include "common/rpc/rpc_internal.h"

#include <grpc/support/sync.h>
#include <stdbool.h>
#include <string.h>

struct mutator {
    const struct mutator_table *table;
    gpr_refcount references;
};

struct mutator_table {
    bool (*mutate)(int fd, struct mutator *mutator); /* a client's socket, or a listener */
    int (*compare)(struct mutator *a, struct mutator *b);
    void (*destroy)(struct mutator *mutator);
    bool (*mutate_second)(const void *info, struct mutator *mutator); /* NULL: use `mutate` */
};

static bool mutate_within_host(int fd, struct mutator *mutator)
{
    (void)mutator;
    net_disable_pacing(fd);
    return true;
}

static bool mutate_between_hosts(int fd, struct mutator *mutator)
{
    (void)mutator;
    net_limit_unsent(fd);
    return true;
}

static int compare(struct mutator *a, struct mutator *b)
{
    return (a > b) - (a < b);
}

static void destroy(struct mutator *mutator)
{
    (void)mutator;
}

static void *copy_arg(void *pointer)
{
    return pointer;
}

static void destroy_arg(void *pointer)
{
    (void)pointer;
}

static int compare_args(void *a, void *b)
{
    return compare(a, b);
}

grpc_arg rpc_socket_arg(bool within_host)
{
    static const struct mutator_table tables[] = {
        {.mutate = mutate_between_hosts, .compare = compare, .destroy = destroy},
        {.mutate = mutate_within_host, .compare = compare, .destroy = destroy}};
    static struct mutator mutators[] = {{.table = &tables[0], .references = {.count = 1}},
                                        {.table = &tables[1], .references = {.count = 1}}};
    static const grpc_arg_pointer_vtable pointers = {
        .copy = copy_arg, .destroy = destroy_arg, .cmp = compare_args};
    union { /* core reads the key but declares it mutable */
        const char *constant;
        char *plain;
    } key = {.constant = GRPC_ARG_SOCKET_MUTATOR};
    grpc_arg arg = {.type = GRPC_ARG_POINTER, .key = key.plain};

    if (strncmp(grpc_version_string(), "29.", 3) != 0)
        return rpc_channel_arg("sparring.socket", 0);
    arg.value.pointer.p = &mutators[within_host];
    arg.value.pointer.vtable = &pointers;
    return arg;
}
