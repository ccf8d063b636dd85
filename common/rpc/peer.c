/*
 * peer: the authenticated identity of a call's peer.
 *
 * Only subject alternative names of type URI are read.  A URI states its meaning
 * ("sparring:rank/3"), so a certificate issued for another purpose cannot match by accident, as a
 * host name or a common name could.  The handshake has verified the certificate; nothing is
 * verified here.  No state.
 */
#include "common/rpc/call.h"

#include <stdio.h>
#include <string.h>

bool rpc_call_peer_uri(const struct rpc_call *call, size_t index, char *text, size_t size)
{
    grpc_auth_context *context = grpc_call_auth_context(call->grpc);
    bool found = false;

    if (context && grpc_auth_context_peer_is_authenticated(context)) {
        grpc_auth_property_iterator at =
            grpc_auth_context_find_properties_by_name(context, GRPC_PEER_URI_PROPERTY_NAME);
        const grpc_auth_property *property = grpc_auth_property_iterator_next(&at);

        for (; property && index > 0; index--)
            property = grpc_auth_property_iterator_next(&at);
        found = property != NULL;
        if (found) {
            size_t length = property->value_length;

            if (length >= size || memchr(property->value, '\0', length))
                length = 0;
            memcpy(text, property->value, length);
            text[length] = '\0';
        }
    }
    grpc_auth_context_release(context);
    return found;
}
