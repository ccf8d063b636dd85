/*
 * The shim over libgloo: one function per operation, a Gloo store that is filled by one exchange,
 * and one place where exceptions turn into errors.  The only C++ of the project.
 *
 * Gloo's rendezvous is a single key per rank with the addresses of all its sockets, set once and
 * read by all; so set() gathers every rank's value and get() finds it here.  No server is needed,
 * neither after a loss nor for a group of some ranks.
 */
extern "C" {
#include "common/collective/library/gloo.h"
}

#include "common/collective/library/gloo_wakeable.h"

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/gather.h>
#include <gloo/reduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/scatter.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace
{

/* An error of our exchange on its way through Gloo's code. */
struct ExchangeFailure : std::runtime_error {
    explicit ExchangeFailure(const struct error &failed)
        : std::runtime_error(failed.text), status(failed.status)
    {
    }
    enum status status;
};

class Rendezvous : public gloo::rendezvous::Store
{
  public:
    explicit Rendezvous(const struct library_config &config) : config_(config)
    {
    }

    /* Every rank's own key comes once.  The values are gathered in pieces that the exchange takes.
     */
    void set(const std::string &, const std::vector<char> &data) override
    {
        const uint64_t mine = data.size();
        std::vector<uint64_t> sizes(config_.world_size);
        uint64_t longest = 0;

        exchange("gloo", &mine, sizeof(mine), sizes.data());
        for (const uint64_t size : sizes)
            longest = std::max(longest, size);
        values_.assign(config_.world_size, std::vector<char>());
        for (uint64_t from = 0; from < longest; from += config_.exchange_max)
            exchange_piece(data, sizes, from);
    }

    /* "rank_3" or the like: the number at its end says whose. */
    std::vector<char> get(const std::string &key) override
    {
        const size_t digits = key.find_last_not_of("0123456789") + 1;

        return values_.at(std::stoul(key.substr(digits)));
    }

    void wait(const std::vector<std::string> &) override
    {
    }

    void meet()
    {
        const char here = 1;
        std::vector<char> all(config_.world_size);

        exchange("gloo/ready", &here, sizeof(here), all.data());
    }

  private:
    void exchange(const std::string &what, const void *mine, size_t size, void *all)
    {
        struct error err = {};

        if (config_.exchange(config_.argument, what.c_str(), mine, size, all, &err) != STATUS_OK)
            throw ExchangeFailure(err);
    }

    void exchange_piece(const std::vector<char> &data, const std::vector<uint64_t> &sizes,
                        uint64_t from)
    {
        std::vector<char> mine(config_.exchange_max);
        std::vector<char> all(sizes.size() * mine.size());

        if (from < data.size())
            std::memcpy(mine.data(), data.data() + from,
                        std::min<size_t>(mine.size(), data.size() - from));
        exchange("gloo/" + std::to_string(from), mine.data(), mine.size(), all.data());
        for (size_t rank = 0; rank < sizes.size(); rank++) {
            const auto begin = all.begin() + static_cast<std::ptrdiff_t>(rank * mine.size());
            const uint64_t left = sizes[rank] > from ? sizes[rank] - from : 0;
            const auto here = static_cast<std::ptrdiff_t>(std::min<uint64_t>(left, mine.size()));

            values_[rank].insert(values_[rank].end(), begin, begin + here);
        }
    }

    const struct library_config &config_;
    std::vector<std::vector<char>> values_;
};

/* Run `body`; an exception becomes a status that starts with `what`. */
template <typename Body> enum status guarded(const char *what, struct error *err, Body body)
{
    try {
        body();
        return STATUS_OK;
    } catch (const ExchangeFailure &e) {
        return error_set(err, e.status, "gloo, %s: %s", what, e.what());
    } catch (const gloo::IoException &e) {
        const bool is_late = std::string(e.what()).find("imed out") != std::string::npos;

        return error_set(err, is_late ? STATUS_TIMEOUT : STATUS_PEER_LOST, "gloo, %s: %s", what,
                         e.what());
    } catch (const std::bad_alloc &) {
        return error_set(err, STATUS_NO_MEMORY, "gloo, %s: out of memory", what);
    } catch (const std::exception &e) {
        return error_set(err, STATUS_INTERNAL, "gloo, %s: %s", what, e.what());
    }
}

/* Gloo's options take typed pointers and never look at the type but for its size. */
template <typename Body> void with_element(size_t bytes, Body body)
{
    if (bytes == 8)
        body(uint64_t{});
    else if (bytes == 4)
        body(uint32_t{});
    else if (bytes == 2)
        body(uint16_t{});
    else
        body(uint8_t{});
}

/* Gloo reads inputs only, its interface just does not say so. */
char *bytes_of(const void *data)
{
    return static_cast<char *>(const_cast<void *>(data));
}

} // namespace

struct library {
    explicit library(const struct library_config &given) : config(given)
    {
    }

    struct library_config config;
    std::shared_ptr<gloo::transport::Device> device;
    std::shared_ptr<wakeable::Context> context;
    uint32_t tag = 0; /* a new one per call keeps those of different operations apart */
};

struct library_transfer {
    char header[LIBRARY_HEADER_BYTES] = {};
    bool is_send = false;
    std::unique_ptr<gloo::transport::UnboundBuffer> header_buffer;
    std::unique_ptr<gloo::transport::UnboundBuffer> data_buffer; /* none: no bytes */
};

namespace
{

enum status gloo_open(const struct library_config *config, struct library **ret, struct error *err)
{
    std::unique_ptr<library> made;
    const enum status status = guarded("connecting", err, [&] {
        gloo::transport::tcp::attr attributes(config->host);
        Rendezvous rendezvous(*config);

        made = std::make_unique<library>(*config);
        made->device = gloo::transport::tcp::CreateDevice(attributes);
        made->context = std::make_shared<wakeable::Context>(static_cast<int>(config->rank),
                                                            static_cast<int>(config->world_size));
        made->context->setTimeout(std::chrono::milliseconds(config->timeout_ms));
        made->context->connectFullMesh(rendezvous, made->device);
        made->context->watch();
        rendezvous.meet(); /* a rank that leaves at once must not break another's connecting */
    });

    if (status == STATUS_OK)
        *ret = made.release();
    return status;
}

std::function<void(void *, const void *, const void *, size_t)> function_of(const library *l,
                                                                            const reduction *r)
{
    library_reduce_fn *reduce = l->config.reduce;

    return [reduce, r](void *target, const void *a, const void *b, size_t count) {
        reduce(r, target, a, b, count);
    };
}

void gloo_mark(struct library *l, uint32_t tag)
{
    l->tag = tag;
}

enum status gloo_all_reduce(struct library *l, void *data, size_t count, const struct reduction *r,
                            struct error *err)
{
    return guarded("all_reduce", err, [&] {
        with_element(dtype_size(r->dtype), [&](auto element) {
            gloo::AllreduceOptions options(l->context);

            options.setOutput(static_cast<decltype(element) *>(data), count);
            options.setReduceFunction(function_of(l, r));
            options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
            options.setTag(++l->tag);
            gloo::allreduce(options);
        });
    });
}

enum status gloo_reduce(struct library *l, void *data, size_t count, const struct reduction *r,
                        unsigned root, struct error *err)
{
    return guarded("reduce", err, [&] {
        with_element(dtype_size(r->dtype), [&](auto element) {
            gloo::ReduceOptions options(l->context);

            options.setOutput(static_cast<decltype(element) *>(data), count);
            options.setReduceFunction(function_of(l, r));
            options.setRoot(static_cast<int>(root));
            options.setTag(++l->tag);
            gloo::reduce(options);
        });
    });
}

enum status gloo_broadcast(struct library *l, void *data, size_t bytes, unsigned root,
                           struct error *err)
{
    return guarded("broadcast", err, [&] {
        gloo::BroadcastOptions options(l->context);

        options.setOutput(static_cast<char *>(data), bytes);
        options.setRoot(static_cast<int>(root));
        options.setTag(++l->tag);
        gloo::broadcast(options);
    });
}

enum status gloo_all_gather(struct library *l, const void *mine, size_t bytes, void *all,
                            struct error *err)
{
    return guarded("all_gather", err, [&] {
        gloo::AllgatherOptions options(l->context);
        char *const to = static_cast<char *>(all);

        if (mine != to + l->config.rank * bytes)
            options.setInput(bytes_of(mine), bytes);
        options.setOutput(to, l->config.world_size * bytes);
        options.setTag(++l->tag);
        gloo::allgather(options);
    });
}

enum status gloo_gather(struct library *l, const void *mine, size_t bytes, void *all, unsigned root,
                        struct error *err)
{
    return guarded("gather", err, [&] {
        gloo::GatherOptions options(l->context);

        options.setInput(bytes_of(mine), bytes);
        if (l->config.rank == root)
            options.setOutput(static_cast<char *>(all), l->config.world_size * bytes);
        options.setRoot(static_cast<int>(root));
        options.setTag(++l->tag);
        gloo::gather(options);
    });
}

enum status gloo_scatter(struct library *l, const void *all, size_t bytes, void *mine,
                         unsigned root, struct error *err)
{
    return guarded("scatter", err, [&] {
        gloo::ScatterOptions options(l->context);
        std::vector<char *> blocks;

        for (unsigned r = 0; r < l->config.world_size && l->config.rank == root; r++)
            blocks.push_back(bytes_of(all) + r * bytes);
        options.setInputs(blocks, bytes);
        options.setOutput(static_cast<char *>(mine), bytes);
        options.setRoot(static_cast<int>(root));
        options.setTag(++l->tag);
        gloo::scatter(options);
    });
}

enum status gloo_all_to_all(struct library *l, const void *input, size_t bytes, void *output,
                            struct error *err)
{
    return guarded("all_to_all", err, [&] {
        gloo::AlltoallOptions options(l->context);
        const size_t total = l->config.world_size * bytes;

        options.setInput(bytes_of(input), total);
        options.setOutput(static_cast<char *>(output), total);
        options.setTag(++l->tag);
        gloo::alltoall(options);
    });
}

enum status gloo_barrier(struct library *l, struct error *err)
{
    return guarded("barrier", err, [&] {
        gloo::BarrierOptions options(l->context);

        options.setTag(++l->tag);
        gloo::barrier(options);
    });
}

/* ---- transfers ---- */

/* Gloo's own operations have small numbers in the top byte of their slots. */
constexpr uint64_t header_slot = uint64_t{0xe0} << 56;
constexpr uint64_t data_slot = uint64_t{0xe1} << 56;
constexpr uint64_t key_mask = (uint64_t{1} << 56) - 1;

std::unique_ptr<library_transfer> new_transfer(library *l, bool is_send, const void *data,
                                               size_t bytes)
{
    auto made = std::make_unique<library_transfer>();

    made->is_send = is_send;
    made->header_buffer = l->context->createUnboundBuffer(made->header, sizeof(made->header));
    if (bytes > 0)
        made->data_buffer = l->context->createUnboundBuffer(bytes_of(data), bytes);
    return made;
}

enum status gloo_send(struct library *l, const struct library_transfer_id *id, const void *header,
                      const void *data, size_t bytes, struct library_transfer **ret,
                      struct error *err)
{
    const int peer = static_cast<int>(id->peer);

    return guarded("send", err, [&] {
        std::unique_ptr<library_transfer> made = new_transfer(l, true, data, bytes);

        std::memcpy(made->header, header, sizeof(made->header));
        made->header_buffer->send(peer, header_slot | id->number);
        if (made->data_buffer)
            made->data_buffer->send(peer, data_slot | (id->key & key_mask));
        *ret = made.release();
    });
}

enum status gloo_recv(struct library *l, const struct library_transfer_id *id, void *data,
                      size_t bytes, struct library_transfer **ret, struct error *err)
{
    const int peer = static_cast<int>(id->peer);

    return guarded("recv", err, [&] {
        std::unique_ptr<library_transfer> made = new_transfer(l, false, data, bytes);

        made->header_buffer->recv(peer, header_slot | id->number);
        if (made->data_buffer)
            made->data_buffer->recv(peer, data_slot | (id->key & key_mask));
        *ret = made.release();
    });
}

enum status gloo_await_header(struct library *, struct library_transfer *t, void *header,
                              struct error *err)
{
    return guarded("recv", err, [&] {
        t->header_buffer->waitRecv();
        std::memcpy(header, t->header, sizeof(t->header));
    });
}

enum status gloo_await(struct library *, struct library_transfer *t, struct error *err)
{
    return guarded(t->is_send ? "send" : "recv", err, [&] {
        if (t->is_send)
            t->header_buffer->waitSend();
        if (t->data_buffer && t->is_send)
            t->data_buffer->waitSend();
        else if (t->data_buffer)
            t->data_buffer->waitRecv();
    });
}

void gloo_release_transfer(struct library *, struct library_transfer *t)
{
    delete t;
}

bool gloo_is_waiting(struct library *l)
{
    return l->context->is_waiting();
}

void gloo_interrupt(struct library *l)
{
    (void)guarded("closing", nullptr, [&] { l->context->wake_all(); });
}

void gloo_close(struct library *l, bool)
{
    /* Destructors that throw would end the process; Gloo's do not. */
    delete l;
}

} // namespace

extern "C" const struct library_ops *gloo_library(void)
{
    static const struct library_ops ops = {
        "gloo",           LIBRARY_VERSION,
        nullptr,          gloo_open,
        gloo_mark,        gloo_all_reduce,
        gloo_reduce,      gloo_broadcast,
        gloo_all_gather,  gloo_gather,
        gloo_scatter,     gloo_all_to_all,
        gloo_barrier,     gloo_send,
        gloo_recv,        gloo_await_header,
        gloo_await,       gloo_release_transfer,
        gloo_moved_bytes, gloo_is_waiting,
        gloo_interrupt,   gloo_close,
    };

    return &ops;
}
