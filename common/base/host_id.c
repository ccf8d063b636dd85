/*
 * Builds the host id from the boot id, network namespace, /dev/shm and user.  The kernel's boot id
 * is unique per boot of a machine; containers of one machine share it and differ in the other
 * parts.
 */
#include "common/base/host_id.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* "8e2a2f8d-...", or the host's name where /proc has no boot id. */
static void read_boot_id(char *text, size_t size)
{
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t length = fd >= 0 ? read(fd, text, size - 1) : -1;

    if (fd >= 0)
        (void)close(fd);
    if (length > 0) {
        text[length] = '\0';
        text[strcspn(text, "\n")] = '\0';
    } else if (gethostname(text, size) != 0) {
        text[0] = '\0';
    }
    text[size - 1] = '\0';
}

void host_id_find(const char *wanted, char text[HOST_ID_SIZE])
{
    const char *set = wanted && wanted[0] ? wanted : getenv("SPARRING_HOSTID");
    struct stat network = {0};
    struct stat memory = {0};
    char boot[48];

    if (set && set[0]) {
        (void)snprintf(text, HOST_ID_SIZE, "%s", set);
        return;
    }
    read_boot_id(boot, sizeof(boot));
    (void)stat("/proc/self/ns/net", &network);
    (void)stat("/dev/shm", &memory);
    (void)snprintf(text, HOST_ID_SIZE, "%s/%llx/%llx/%lx", boot, (unsigned long long)network.st_ino,
                   (unsigned long long)memory.st_dev, (unsigned long)geteuid());
}
