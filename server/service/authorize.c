/*
 * Authorization of ranks and servers by certificate (--bind-ranks).
 *
 * A peer may act for the ranks that its certificate names as alternative names
 * "URI:sparring:rank/3".  One certificate may name several ranks, e.g. all ranks of a host.  A
 * primary that replicates its shard here needs the name "URI:sparring:server".  No state, no locks.
 */
#include "common/base/strbuf.h"
#include "server/service/service_internal.h"

#include <stdio.h>
#include <string.h>

#define RANK_URI      "sparring:rank/"
#define SERVER_URI    "sparring:server"
#define URI_BYTES_MAX 64
#define LISTED_MAX    8

static enum status deny_rank(const struct rpc_call *call, unsigned rank, struct error *err)
{
    struct strbuf names = STRBUF_INIT;
    char uri[URI_BYTES_MAX];
    enum status status;

    for (size_t i = 0; i < LISTED_MAX && rpc_call_peer_uri(call, i, uri, sizeof(uri)); i++)
        strbuf_addf(&names, "%s'%s'", names.length > 0 ? ", " : "", uri);
    status = error_set(err, STATUS_DENIED,
                       "rank %u is not for the peer at %s: its certificate names %s, not '" RANK_URI
                       "%u'",
                       rank, rpc_call_peer(call), names.length > 0 ? names.text : "no rank", rank);
    strbuf_release(&names);
    return status;
}

enum status authorize_server(const struct service *s, const struct rpc_call *call,
                             struct error *err)
{
    char uri[URI_BYTES_MAX];

    if (!s->bind_ranks)
        return STATUS_OK;
    for (size_t i = 0; rpc_call_peer_uri(call, i, uri, sizeof(uri)); i++)
        if (strcmp(uri, SERVER_URI) == 0)
            return STATUS_OK;
    return error_set(err, STATUS_DENIED,
                     "the peer at %s may not keep a copy here: its certificate does not name "
                     "'" SERVER_URI "'",
                     rpc_call_peer(call));
}

enum status authorize_rank(const struct service *s, const struct rpc_call *call, unsigned rank,
                           struct error *err)
{
    char wanted[URI_BYTES_MAX], uri[URI_BYTES_MAX];

    if (!s->bind_ranks)
        return STATUS_OK;
    (void)snprintf(wanted, sizeof(wanted), RANK_URI "%u", rank);
    for (size_t i = 0; rpc_call_peer_uri(call, i, uri, sizeof(uri)); i++)
        if (strcmp(uri, wanted) == 0)
            return STATUS_OK;
    return deny_rank(call, rank, err);
}
