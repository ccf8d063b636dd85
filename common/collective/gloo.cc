/*
 * The shim over libgloo: one function per operation, a Gloo store on top of ours, and one place
 * where exceptions turn into errors.  The only C++ of the project.
 */
extern "C" {
#include "common/collective/gloo.h"
}

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace
{

/* An error of our store on its way through Gloo's code. */
struct StoreFailure : std::runtime_error {
    explicit StoreFailure(const struct error &failed)
        : std::runtime_error(failed.text), status(failed.status)
    {
    }
    enum status status;
};

/* Gloo's rendezvous in our store.  get and wait block, as Gloo's mesh set-up relies on. */
class Rendezvous : public gloo::rendezvous::Store
{
  public:
    Rendezvous(struct store *store, const char *name, int64_t timeout_ms)
        : store_(store), prefix_(std::string(name) + "/gloo/"), timeout_ms_(timeout_ms)
    {
    }

    void set(const std::string &key, const std::vector<char> &data) override
    {
        struct error err = {};

        if (store_set(store_, (prefix_ + key).c_str(), data.data(), data.size(), &err) != STATUS_OK)
            throw StoreFailure(err);
    }

    std::vector<char> get(const std::string &key) override
    {
        struct error err = {};
        char *value = nullptr;
        size_t size = 0;

        if (store_get(store_, (prefix_ + key).c_str(), timeout_ms_, &value, &size, &err) !=
            STATUS_OK)
            throw StoreFailure(err);
        std::unique_ptr<char, decltype(&std::free)> owner(value, &std::free);
        return std::vector<char>(value, value + size);
    }

    void wait(const std::vector<std::string> &keys) override
    {
        for (const std::string &key : keys)
            (void)get(key);
    }

  private:
    struct store *store_;
    std::string prefix_;
    int64_t timeout_ms_;
};

/* Run `body`; an exception becomes a status that starts with `what`. */
template <typename Body> enum status guarded(const char *what, struct error *err, Body body)
{
    try {
        body();
        return STATUS_OK;
    } catch (const StoreFailure &e) {
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

} // namespace

struct gloo_context {
    std::unique_ptr<Rendezvous> rendezvous;
    std::shared_ptr<gloo::transport::Device> device;
    std::shared_ptr<gloo::rendezvous::Context> context;
    uint32_t tag = 0; /* a new one per operation keeps late bytes of a failed one apart */
};

enum status gloo_open(const struct gloo_config *config, struct gloo_context **ret_context,
                      struct error *err)
{
    std::unique_ptr<gloo_context> made;
    const enum status status = guarded("connecting", err, [&] {
        made = std::make_unique<gloo_context>();
        gloo::transport::tcp::attr attributes(config->host);

        made->rendezvous =
            std::make_unique<Rendezvous>(config->store, config->name, config->timeout_ms);
        made->device = gloo::transport::tcp::CreateDevice(attributes);
        made->context = std::make_shared<gloo::rendezvous::Context>(
            static_cast<int>(config->rank), static_cast<int>(config->world_size));
        made->context->setTimeout(std::chrono::milliseconds(config->timeout_ms));
        made->context->connectFullMesh(*made->rendezvous, made->device);
    });

    if (status == STATUS_OK)
        *ret_context = made.release();
    return status;
}

enum status gloo_all_reduce(struct gloo_context *context, float *data, size_t count,
                            struct error *err)
{
    return guarded("all_reduce", err, [&] {
        void (*sum)(void *, const void *, const void *, size_t) = &gloo::sum<float>;
        gloo::AllreduceOptions options(context->context);

        options.setOutput(data, count);
        options.setReduceFunction(sum);
        options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
        options.setTag(++context->tag);
        gloo::allreduce(options);
    });
}

enum status gloo_broadcast(struct gloo_context *context, void *data, size_t bytes, unsigned root,
                           struct error *err)
{
    return guarded("broadcast", err, [&] {
        gloo::BroadcastOptions options(context->context);

        options.setOutput(static_cast<char *>(data), bytes);
        options.setRoot(static_cast<int>(root));
        options.setTag(++context->tag);
        gloo::broadcast(options);
    });
}

enum status gloo_all_gather(struct gloo_context *context, const void *mine, size_t bytes, void *all,
                            struct error *err)
{
    return guarded("all_gather", err, [&] {
        gloo::AllgatherOptions options(context->context);
        const size_t ranks = static_cast<size_t>(context->context->size);

        /* Gloo reads the input, its interface just does not say so. */
        options.setInput(static_cast<char *>(const_cast<void *>(mine)), bytes);
        options.setOutput(static_cast<char *>(all), ranks * bytes);
        options.setTag(++context->tag);
        gloo::allgather(options);
    });
}

enum status gloo_barrier(struct gloo_context *context, struct error *err)
{
    return guarded("barrier", err, [&] {
        gloo::BarrierOptions options(context->context);

        options.setTag(++context->tag);
        gloo::barrier(options);
    });
}

void gloo_close(struct gloo_context *context)
{
    /* Destructors that throw would end the process; Gloo's do not. */
    delete context;
}
