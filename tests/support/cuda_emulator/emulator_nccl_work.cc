/*
 * emulator_nccl_work: the transfers of the NCCL emulator.
 *
 * A collective is split into pieces.  Every rank publishes its part of a piece in its own area once
 * all ranks have consumed the previous piece, and reads what it needs once all have published.
 * Sums are made in ring order from a rank that changes with each piece, and rounded to the type at
 * each hop, so that no code can rely on the order of ranks.  Ranks that call different operations
 * wait for ever, as in NCCL.
 */
#include "tests/support/cuda_emulator/emulator_nccl.h"

#include "common/tensor/half.h"

#include <cmath>
#include <cstring>
#include <deque>
#include <sys/mman.h>
#include <unistd.h>

namespace emulated_nccl
{

/* ---- the memory ---- */

static size_t head_bytes(int ranks)
{
    return ((size_t)ranks * sizeof(rank_part) + 4095) / 4096 * 4096;
}

size_t shared_memory::size_of(int ranks)
{
    return head_bytes(ranks) + (size_t)ranks * AREA_BYTES +
           (size_t)ranks * (size_t)ranks * sizeof(pair_part);
}

rank_part &shared_memory::rank(int r) const
{
    return static_cast<rank_part *>(base)[r];
}

unsigned char *shared_memory::area(int r) const
{
    return static_cast<unsigned char *>(base) + head_bytes(ranks) + (size_t)r * AREA_BYTES;
}

pair_part &shared_memory::pair(int from, int to) const
{
    return reinterpret_cast<pair_part *>(area(ranks))[from * ranks + to];
}

comm::~comm()
{
    for (int fd : watched)
        if (fd >= 0)
            (void)close(fd);
    if (memory.base)
        (void)munmap(memory.base, memory.size);
}

/* ---- arithmetic ---- */

size_t type_size(ncclDataType_t type)
{
    switch (type) {
    case ncclInt8:
    case ncclUint8:
        return 1;
    case ncclFloat16:
    case ncclBfloat16:
        return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
        return 4;
    default:
        return 8;
    }
}

struct float16 {
    uint16_t bits;
};

struct bfloat16 {
    uint16_t bits;
};

template <typename T> static T widen(T value)
{
    return value;
}

static float widen(float16 value)
{
    return float_from_float16(value.bits);
}

static float widen(bfloat16 value)
{
    return float_from_bfloat16(value.bits);
}

template <typename T, typename V> static T narrow(V value)
{
    return (T)value;
}

template <> float16 narrow<float16, float>(float value)
{
    return {float16_from_float(value)};
}

template <> bfloat16 narrow<bfloat16, float>(float value)
{
    return {bfloat16_from_float(value)};
}

/* Integers wrap round. */
static int32_t wrap_add(int32_t a, int32_t b)
{
    return (int32_t)((uint32_t)a + (uint32_t)b);
}
static int64_t wrap_add(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a + (uint64_t)b);
}
static float wrap_add(float a, float b)
{
    return a + b;
}
static double wrap_add(double a, double b)
{
    return a + b;
}
static int32_t wrap_multiply(int32_t a, int32_t b)
{
    return (int32_t)((uint32_t)a * (uint32_t)b);
}
static int64_t wrap_multiply(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a * (uint64_t)b);
}
static float wrap_multiply(float a, float b)
{
    return a * b;
}
static double wrap_multiply(double a, double b)
{
    return a * b;
}

/* As fminf and fmaxf: if one operand is NaN, the result is the other. */
template <typename V> static V pick(V a, V b, bool smaller)
{
    if (a != a)
        return b;
    if (b != b)
        return a;
    return (a < b) == smaller ? a : b;
}

template <typename V> static V combine(V a, V b, ncclRedOp_t op)
{
    switch (op) {
    case ncclProd:
        return wrap_multiply(a, b);
    case ncclMin:
        return pick(a, b, true);
    case ncclMax:
        return pick(a, b, false);
    default:
        return wrap_add(a, b);
    }
}

/* out[i] = in of rank `first`, then of all that follow it in the ring. */
template <typename T>
static void reduce_typed(const comm &c, const reduction &r, size_t count, int first, void *out)
{
    typedef decltype(widen(T())) value;
    bool is_integer = (value)0.5 == (value)0;
    bool scales = r.has_factor || (r.op == ncclAvg && !is_integer);
    /* rounded to the type, as NCCL does */
    value factor = widen(narrow<T>((value)(r.has_factor ? r.factor : 1.0 / c.ranks)));

    for (size_t i = 0; i < count; i++) {
        T sum = {};

        for (int k = 0; k < c.ranks; k++) {
            T term;

            memcpy(&term, c.memory.area((first + k) % c.ranks) + i * sizeof(T), sizeof(T));
            if (scales && !r.has_factor) /* publish_piece has applied a rank's own factor */
                term = narrow<T>(wrap_multiply(widen(term), factor));
            sum = k == 0 ? term : narrow<T>(combine(widen(sum), widen(term), r.op));
        }
        if (r.op == ncclAvg && is_integer)
            sum = narrow<T>((value)(widen(sum) / (value)c.ranks));
        memcpy(static_cast<unsigned char *>(out) + i * sizeof(T), &sum, sizeof(T));
    }
}

template <typename T> static void scale_typed(void *data, size_t count, double by)
{
    typedef decltype(widen(T())) value;
    value factor = widen(narrow<T>((value)by));

    for (size_t i = 0; i < count; i++) {
        T term;
        unsigned char *at = static_cast<unsigned char *>(data) + i * sizeof(T);

        memcpy(&term, at, sizeof(T));
        term = narrow<T>(wrap_multiply(widen(term), factor));
        memcpy(at, &term, sizeof(T));
    }
}

static void reduce(const comm &c, const operation &o, size_t count, int first, void *out)
{
    switch (o.type) {
    case ncclFloat32:
        return reduce_typed<float>(c, o.reduction, count, first, out);
    case ncclFloat64:
        return reduce_typed<double>(c, o.reduction, count, first, out);
    case ncclFloat16:
        return reduce_typed<float16>(c, o.reduction, count, first, out);
    case ncclBfloat16:
        return reduce_typed<bfloat16>(c, o.reduction, count, first, out);
    case ncclInt32:
        return reduce_typed<int32_t>(c, o.reduction, count, first, out);
    default:
        return reduce_typed<int64_t>(c, o.reduction, count, first, out);
    }
}

static void scale(const operation &o, void *data, size_t count)
{
    if (!o.reduction.has_factor)
        return;
    switch (o.type) {
    case ncclFloat32:
        return scale_typed<float>(data, count, o.reduction.factor);
    case ncclFloat64:
        return scale_typed<double>(data, count, o.reduction.factor);
    case ncclFloat16:
        return scale_typed<float16>(data, count, o.reduction.factor);
    default:
        return scale_typed<bfloat16>(data, count, o.reduction.factor);
    }
}

/* ---- collectives ---- */

static uint64_t signature_of(const operation &o, enum kind kind)
{
    uint64_t hash = 1469598103934665603u;

    for (uint64_t part : {(uint64_t)kind, (uint64_t)o.count, (uint64_t)o.type,
                          (uint64_t)(kind <= kind::reduce_scatter ? o.reduction.op : 0),
                          (uint64_t)(kind == kind::reduce || kind == kind::broadcast ? o.root : 0)})
        hash = (hash ^ part) * 1099511628211u;
    return hash;
}

/* One collective in progress on a stream. */
struct collective {
    operation o;
    size_t done;    /* elements of the current block that have been read */
    int block;      /* reduce_scatter: rank that gets it */
    bool published; /* this rank's part of the current piece is in its area */
    uint64_t signature;
};

static size_t piece_count(const collective &s)
{
    size_t piece_max = AREA_BYTES / type_size(s.o.type);

    return s.o.count - s.done < piece_max ? s.o.count - s.done : piece_max;
}

static bool have_all_reached(const comm &c, std::atomic<uint64_t> rank_part::*what, uint64_t pieces)
{
    for (int r = 0; r < c.ranks; r++)
        if ((c.memory.rank(r).*what).load() < pieces)
            return false;
    return true;
}

static void publish_piece(comm &c, const collective &s)
{
    size_t size = type_size(s.o.type), count = piece_count(s);
    size_t from = (size_t)s.block * s.o.count + s.done;
    rank_part &mine = c.memory.rank(c.rank);
    unsigned char *area = c.memory.area(c.rank);

    if (s.o.kind != kind::broadcast || c.rank == s.o.root)
        memcpy(area, static_cast<const unsigned char *>(s.o.input) + from * size, count * size);
    scale(s.o, area, count);
    mine.signature = s.signature;
    mine.published.store(c.pieces + 1);
}

static void read_piece(comm &c, const collective &s)
{
    size_t size = type_size(s.o.type), count = piece_count(s);
    unsigned char *out = static_cast<unsigned char *>(s.o.output);
    int first = (int)((c.pieces + 1) % (uint64_t)c.ranks);

    switch (s.o.kind) {
    case kind::all_gather:
        for (int r = 0; r < c.ranks; r++)
            memcpy(out + ((size_t)r * s.o.count + s.done) * size, c.memory.area(r), count * size);
        return;
    case kind::broadcast:
        memcpy(out + s.done * size, c.memory.area(s.o.root), count * size);
        return;
    case kind::reduce_scatter:
        if (s.block == c.rank)
            reduce(c, s.o, count, first, out + s.done * size);
        return;
    case kind::reduce:
        if (c.rank != s.o.root)
            return;
        [[fallthrough]];
    default:
        reduce(c, s.o, count, first, out + s.done * size);
    }
}

/* Continue a collective; true: it has ended. */
static bool advance(comm &c, collective &s)
{
    int blocks = s.o.kind == kind::reduce_scatter ? c.ranks : 1;

    while (s.block < blocks) {
        if (!s.published) {
            if (!have_all_reached(c, &rank_part::consumed, c.pieces))
                return false;
            publish_piece(c, s);
            s.published = true;
        }
        if (!have_all_reached(c, &rank_part::published, c.pieces + 1))
            return false;
        for (int r = 0; r < c.ranks; r++)
            if (c.memory.rank(r).signature != s.signature)
                return false; /* the ranks called different operations: wait for ever */
        read_piece(c, s);
        s.done += piece_count(s);
        s.published = false;
        if (s.done == s.o.count) {
            s.done = 0;
            s.block++;
        }
        c.memory.rank(c.rank).consumed.store(++c.pieces);
    }
    return true;
}

/* ---- sends and receives ---- */

struct transfer {
    operation o;
    size_t done; /* bytes */
};

static bool advance(comm &c, transfer &t)
{
    bool sends = t.o.kind == kind::send;
    pair_part &pair = sends ? c.memory.pair(c.rank, t.o.root) : c.memory.pair(t.o.root, c.rank);
    size_t bytes = t.o.count * type_size(t.o.type);
    uint64_t signature = signature_of(t.o, kind::send);

    while (t.done < bytes) {
        size_t piece = bytes - t.done < PAIR_BYTES ? bytes - t.done : PAIR_BYTES;
        bool is_full = pair.written.load() > pair.read.load();

        if (is_full == sends || (!sends && pair.signature != signature))
            return false;
        if (sends) {
            memcpy(pair.bytes, static_cast<const unsigned char *>(t.o.input) + t.done, piece);
            pair.signature = signature;
            pair.written.fetch_add(1);
        } else {
            memcpy(static_cast<unsigned char *>(t.o.output) + t.done, pair.bytes, piece);
            pair.read.fetch_add(1);
        }
        t.done += piece;
    }
    return true;
}

/* ---- launches ---- */

struct batch {
    std::deque<collective> collectives;
    std::map<std::pair<enum kind, int>, std::deque<transfer>> transfers; /* by direction and peer */
};

static bool advance(comm &c, batch &b)
{
    bool ended = true;

    while (!b.collectives.empty()) {
        if (!advance(c, b.collectives.front()))
            return false;
        b.collectives.pop_front();
    }
    for (auto &queue : b.transfers) {
        while (!queue.second.empty() && advance(c, queue.second.front()))
            queue.second.pop_front();
        ended = ended && queue.second.empty();
    }
    return ended;
}

std::function<bool()> make_stream_work(const std::shared_ptr<comm> &c,
                                       std::vector<operation> operations)
{
    auto b = std::make_shared<batch>();

    for (const operation &o : operations) {
        if (o.count == 0)
            continue;
        if (o.kind == kind::send || o.kind == kind::recv)
            b->transfers[{o.kind, o.root}].push_back({o, 0});
        else
            b->collectives.push_back({o, 0, 0, false, signature_of(o, o.kind)});
    }
    c->outstanding++;
    return [c, b] {
        if (!c->aborted.load() && !advance(*c, *b))
            return false;
        c->outstanding--;
        return true;
    };
}

} // namespace emulated_nccl
