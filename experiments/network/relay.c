/*
 * relay: one AF_PACKET socket per link, one queue in the order of departure.  PACKET_VNET_HDR keeps
 * large frames (GSO) and unfinished checksums as they are, so one read moves up to 64 kB; what the
 * link has no room for is dropped, as a switch does.
 *
 * A packet's arrival is the kernel's time stamp, so the delay of our own wake-up counts as lateness
 * and not as delay.  For exact wake-ups the process is SCHED_FIFO where that is allowed, else it
 * asks for a short slice of processor time.
 */
#include "experiments/network/relay.h"

#include "common/base/clock.h"
#include "common/base/memory.h"
#include "common/base/priority_queue.h"
#include "experiments/network/departure.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <math.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FRAME_MAX     (66 * 1024) /* a GSO frame, its Ethernet and virtio headers */
#define HEADER_BYTES  10          /* struct virtio_net_hdr before each frame */
#define QUEUE_MAX     ((size_t)512 << 20)
#define RECEIVE_BYTES (16 << 20)
#define LINK_BYTES    (1 << 20) /* what a link's queue holds at least, as a switch's does */
#define BURST         64        /* frames of one link before the others have their turn */
#define SLICE_NS      100000    /* the shortest that the kernel grants */

struct frame {
    int64_t departure_ns;
    size_t to; /* link */
    size_t size;
    unsigned char bytes[];
};

struct forwarder {
    size_t length;
    struct pollfd fds[NETWORK_HOSTS_MAX];
    struct departure_path *paths; /* [from * length + to] */
    struct priority_queue queue;  /* the earliest departure first */
    size_t queued_bytes;
    struct relay_counts *counts;
    unsigned char buffer[FRAME_MAX];
};

void relay_mac(size_t host, unsigned char ret[6])
{
    const unsigned char mac[6] = {0x02, 'S', 'P', 0, 0, (unsigned char)host};

    memcpy(ret, mac, sizeof(mac));
}

static void count(_Atomic uint64_t *counter)
{
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

/* ---- sending ---- */

static void count_lateness(struct forwarder *f, int64_t late_ns)
{
    double bin = late_ns > 1 ? RELAY_BINS_PER_OCTAVE * log2((double)late_ns) : 0;

    count(&f->counts->late_packets[bin < RELAY_BINS ? (size_t)bin : RELAY_BINS - 1]);
}

static void send_frame(struct forwarder *f, const struct frame *frame)
{
    ssize_t sent = write(f->fds[frame->to].fd, frame->bytes, frame->size);

    count_lateness(f, clock_now_ns() - frame->departure_ns);
    count(sent >= 0 ? &f->counts->forwarded : &f->counts->dropped);
}

/* Send what is due; returns when the next frame is, INT64_MAX: there is none. */
static int64_t send_due(struct forwarder *f)
{
    for (;;) {
        struct frame *first = priority_queue_first(&f->queue);

        if (!first)
            return INT64_MAX;
        if (first->departure_ns > clock_now_ns())
            return first->departure_ns;
        (void)priority_queue_pop(&f->queue);
        send_frame(f, first);
        f->queued_bytes -= first->size;
        free(first);
    }
}

/* ---- receiving ---- */

static void queue_frame(struct forwarder *f, size_t from, size_t to, size_t size,
                        int64_t arrival_ns)
{
    int64_t departure_ns;
    struct frame *frame;

    if (!departure_next(&f->paths[from * f->length + to], arrival_ns, &departure_ns)) {
        count(&f->counts->lost);
        return;
    }
    frame = f->queued_bytes + size <= QUEUE_MAX ? malloc(sizeof(*frame) + size) : NULL;
    if (!frame || !priority_queue_push(&f->queue, UINT64_MAX - (uint64_t)departure_ns, frame)) {
        free(frame);
        count(&f->counts->dropped);
        return;
    }
    *frame = (struct frame){.departure_ns = departure_ns, .to = to, .size = size};
    memcpy(frame->bytes, f->buffer, size);
    f->queued_bytes += size;
}

/* To the link of its Ethernet address; to all others when it is for all (ARP). */
static void route_frame(struct forwarder *f, size_t from, size_t size, int64_t arrival_ns)
{
    const unsigned char *destination = f->buffer + HEADER_BYTES;

    for (size_t to = 0; to < f->length; to++) {
        unsigned char mac[6];

        relay_mac(to, mac);
        if (to != from && ((destination[0] & 1) || memcmp(destination, mac, sizeof(mac)) == 0))
            queue_frame(f, from, to, size, arrival_ns);
    }
}

/* When the message came, on the monotonic clock; the kernel's stamp is of the wall clock. */
static int64_t arrival_ns(struct msghdr *message)
{
    int64_t now_ns = clock_now_ns();

    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c))
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_TIMESTAMPNS) {
            struct timespec then, now;
            int64_t age_ns;

            memcpy(&then, CMSG_DATA(c), sizeof(then));
            (void)clock_gettime(CLOCK_REALTIME, &now);
            age_ns = (now.tv_sec - then.tv_sec) * INT64_C(1000000000) + now.tv_nsec - then.tv_nsec;
            return age_ns > 0 && age_ns < 1000000000 ? now_ns - age_ns : now_ns;
        }
    return now_ns;
}

static void receive_frames(struct forwarder *f, size_t from)
{
    for (int i = 0; i < BURST; i++) {
        _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(struct timespec))];
        struct iovec bytes = {f->buffer, sizeof(f->buffer)};
        struct msghdr message = {.msg_iov = &bytes,
                                 .msg_iovlen = 1,
                                 .msg_control = control,
                                 .msg_controllen = sizeof(control)};
        ssize_t size = recvmsg(f->fds[from].fd, &message, MSG_DONTWAIT);

        if (size < HEADER_BYTES + ETH_HLEN)
            return;
        route_frame(f, from, (size_t)size, arrival_ns(&message));
    }
}

static _Noreturn void forward(struct forwarder *f)
{
    for (;;) {
        int64_t left_ns = send_due(f);
        struct timespec wait = {0};

        if (left_ns != INT64_MAX) {
            left_ns -= clock_now_ns();
            left_ns = left_ns > 0 ? left_ns : 0;
            wait = (struct timespec){left_ns / 1000000000, left_ns % 1000000000};
        }
        if (ppoll(f->fds, (nfds_t)f->length, left_ns == INT64_MAX ? NULL : &wait, NULL) <= 0)
            continue;
        for (size_t i = 0; i < f->length; i++)
            if (f->fds[i].revents != 0)
                receive_frames(f, i);
    }
}

/* ---- starting ---- */

/* Two round trips of the link's rate, at least. */
int relay_queue_bytes(const struct network_link *link)
{
    const double bytes = link->rate / 8 * 4 * (double)link->delay_ns * 1e-9;

    return bytes > LINK_BYTES ? (int)fmin(bytes, INT_MAX / 2) : LINK_BYTES;
}

/* Beyond the host's limit where that is allowed. */
static void set_buffer(int fd, int forced, int ordinary, int bytes)
{
    if (setsockopt(fd, SOL_SOCKET, forced, &bytes, sizeof(bytes)) != 0)
        (void)setsockopt(fd, SOL_SOCKET, ordinary, &bytes, sizeof(bytes));
}

static enum status open_port(size_t host, const struct network_link *link, int *ret_fd,
                             struct error *err)
{
    char name[IFNAMSIZ];
    int on = 1;
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL)};

    (void)snprintf(name, sizeof(name), "port%zu", host);
    address.sll_ifindex = (int)if_nametoindex(name);
    *ret_fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*ret_fd < 0)
        return error_set_errno(err, errno, "network: cannot open a packet socket");
    if (address.sll_ifindex == 0 ||
        setsockopt(*ret_fd, SOL_PACKET, PACKET_VNET_HDR, &on, sizeof(on)) != 0 ||
        setsockopt(*ret_fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof(on)) != 0 ||
        setsockopt(*ret_fd, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof(on)) != 0 ||
        bind(*ret_fd, (const struct sockaddr *)&address, sizeof(address)) != 0)
        return error_set_errno(err, errno, "network: cannot listen on '%s' of the hub", name);
    set_buffer(*ret_fd, SO_RCVBUFFORCE, SO_RCVBUF, RECEIVE_BYTES);
    set_buffer(*ret_fd, SO_SNDBUFFORCE, SO_SNDBUF, relay_queue_bytes(link));
    return STATUS_OK;
}

static enum status open_forwarder(struct forwarder *f, const struct network_link *links,
                                  uint64_t seed, struct error *err)
{
    enum status status = mem_calloc(f->length * f->length, sizeof(*f->paths),
                                    "the paths of a network", &f->paths, err);

    for (size_t i = 0; i < f->length && status == STATUS_OK; i++) {
        f->fds[i].events = POLLIN;
        status = open_port(i, &links[i], &f->fds[i].fd, err);
        for (size_t k = 0; k < f->length; k++) {
            struct network_link both = network_link_join(&links[i], &links[k]);

            departure_open(&f->paths[i * f->length + k], &both, seed, i, k);
        }
    }
    return status;
}

static void ask_for_exact_wake_ups(void)
{
    struct sched_param first = {.sched_priority = 1};
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } attributes = {.size = sizeof(attributes), .policy = SCHED_OTHER, .runtime = SLICE_NS};

    if (sched_setscheduler(0, SCHED_FIFO, &first) != 0)
        (void)syscall(SYS_sched_setattr, 0, &attributes, 0);
}

static _Noreturn void run_relay(struct forwarder *f, pid_t parent)
{
    sigset_t all;

    (void)sigfillset(&all);
    (void)sigprocmask(SIG_SETMASK, &all, NULL); /* a Ctrl-C is for the parent, which ends us */
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)prctl(PR_SET_NAME, "sparring-relay");
    if (getppid() != parent)
        _exit(1);
    ask_for_exact_wake_ups();
    forward(f);
}

static void close_forwarder(struct forwarder *f)
{
    for (size_t i = 0; i < f->length; i++)
        if (f->fds[i].fd >= 0)
            (void)close(f->fds[i].fd);
    free(f->paths);
    free(f);
}

enum status relay_start(struct relay *r, const struct network_link *links, size_t length,
                        uint64_t seed, struct error *err)
{
    struct forwarder *f;
    pid_t parent = getpid();
    enum status status = mem_calloc(1, sizeof(*f), "a packet relay", &f, err);

    if (status != STATUS_OK)
        return status;
    f->length = length;
    for (size_t i = 0; i < length; i++)
        f->fds[i].fd = -1;
    f->counts =
        mmap(NULL, sizeof(*f->counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (f->counts == MAP_FAILED) {
        close_forwarder(f);
        return error_set_errno(err, errno, "network: no memory for the counters of the relay");
    }
    r->counts = f->counts;
    status = open_forwarder(f, links, seed, err);
    if (status == STATUS_OK) {
        r->pid = fork();
        if (r->pid == 0)
            run_relay(f, parent);
        if (r->pid < 0)
            status = error_set_errno(err, errno, "network: cannot start the relay");
    }
    close_forwarder(f);
    if (status != STATUS_OK)
        relay_stop(r);
    return status;
}

bool relay_has_ended(const struct relay *r)
{
    siginfo_t info = {0};

    return r->pid > 0 && (waitid(P_PID, (id_t)r->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
                          info.si_pid != 0);
}

int64_t relay_lateness_ns(const struct relay *r, double share)
{
    uint64_t bins[RELAY_BINS];
    uint64_t all = 0, below = 0;

    for (size_t i = 0; i < RELAY_BINS; i++) {
        bins[i] =
            r->counts ? atomic_load_explicit(&r->counts->late_packets[i], memory_order_relaxed) : 0;
        all += bins[i];
    }
    for (size_t i = 0; i < RELAY_BINS; i++) {
        below += bins[i];
        if (all > 0 && (double)below >= share * (double)all)
            return (int64_t)exp2((double)(i + 1) / RELAY_BINS_PER_OCTAVE);
    }
    return 0;
}

void relay_stop(struct relay *r)
{
    if (r->pid > 0) {
        (void)kill(r->pid, SIGKILL);
        while (waitpid(r->pid, NULL, 0) < 0 && errno == EINTR)
            continue;
    }
    if (r->counts)
        (void)munmap(r->counts, sizeof(*r->counts));
    *r = (struct relay){.pid = -1};
}
