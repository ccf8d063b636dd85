/*
 * Fuzzes the receiving end of a channel: its memory is the input, changed once more between two
 * messages.  No memory outside the queues may be accessed (their pages are followed by an unmapped
 * one or by another mapping, so the message buffer is of exact size), and a message is at most
 * CHANNEL_MESSAGE_MAX bytes.  Each message is then unpacked as a chunk's header.
 */
#include "common/base/channel.h"
#include "common/wire/wire.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MESSAGES 200

static void receive_all(struct channel *c)
{
    uint8_t *bytes = allocate(CHANNEL_MESSAGE_MAX);
    struct chunk_header header;
    size_t size = 1;

    for (unsigned i = 0; i < MESSAGES && size > 0; i++) {
        if (channel_receive(c, bytes, &size, NULL) != STATUS_OK)
            break;
        require(size <= CHANNEL_MESSAGE_MAX);
        if (size > 0)
            (void)wire_unpack_chunk(bytes, size, &header, NULL);
    }
    free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct channel *mine, *theirs;
    static struct shared_memory memory = {.fd = -1};
    size_t channel_size;
    int fd;

    if (!mine) {
        require(channel_create(1, &mine, NULL) == STATUS_OK);
        channel_handover(mine, &fd, &channel_size);
        require(channel_attach(dup(fd), channel_size, &theirs, NULL) == STATUS_OK);
        require(shared_memory_map(dup(fd), channel_size, &memory, NULL) == STATUS_OK);
    }
    memset(memory.base, 0, memory.size);
    memcpy(memory.base, data, size < memory.size ? size : memory.size);
    receive_all(theirs);
    (void)channel_send(mine, data, size);
    if (size > 1)
        memcpy(memory.base, data + size / 2,
               size - size / 2 < memory.size ? size - size / 2 : memory.size);
    receive_all(theirs);
    return 0;
}
