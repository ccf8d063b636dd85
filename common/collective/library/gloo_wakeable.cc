/*
 * Wrappers around Gloo's own context of connections and its buffers.  Connections are closed before
 * waits are aborted, so that none writes into memory that its owner takes back.
 *
 * A thread that has what it waited for, but does not get to run, is inside a wait still, and keeps
 * others waiting: so the kernel is asked whether it sleeps there.
 */
#include "common/collective/library/gloo_wakeable.h"

#include <gloo/common/error.h>

#include <cctype>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <sys/syscall.h>
#include <unistd.h>
#include <utility>

namespace wakeable
{

void Registry::add(gloo::transport::UnboundBuffer *buffer)
{
    const std::lock_guard<std::mutex> guard(lock_);

    buffers_.insert(buffer);
}

void Registry::remove(gloo::transport::UnboundBuffer *buffer)
{
    const std::lock_guard<std::mutex> guard(lock_);

    buffers_.erase(buffer);
}

void Registry::abort_all()
{
    const std::lock_guard<std::mutex> guard(lock_);

    is_aborted_ = true;
    for (gloo::transport::UnboundBuffer *buffer : buffers_) {
        buffer->abortWaitRecv();
        buffer->abortWaitSend();
    }
}

bool Registry::is_aborted()
{
    const std::lock_guard<std::mutex> guard(lock_);

    return is_aborted_;
}

namespace
{

using Inner = std::unique_ptr<gloo::transport::UnboundBuffer>;
/* While it lives, this thread is blocked until a peer does something. */
class Waiting
{
  public:
    explicit Waiting(Registry &registry) : registry_(registry)
    {
        thread_local const pid_t self = gettid();

        registry_.waiting_thread.store(self, std::memory_order_relaxed);
    }

    ~Waiting()
    {
        registry_.waiting_thread.store(0, std::memory_order_relaxed);
    }

    Waiting(const Waiting &) = delete;
    Waiting &operator=(const Waiting &) = delete;

  private:
    Registry &registry_;
};

class Buffer : public gloo::transport::UnboundBuffer
{
  public:
    Buffer(Inner inner, std::shared_ptr<Registry> registry)
        : gloo::transport::UnboundBuffer(inner->ptr, inner->size), inner_(std::move(inner)),
          registry_(std::move(registry))
    {
        registry_->add(inner_.get());
    }

    ~Buffer() override
    {
        registry_->remove(inner_.get());
    }

    bool waitRecv(int *rank, std::chrono::milliseconds timeout) override
    {
        const Waiting waiting(*registry_);

        return !registry_->is_aborted() && inner_->waitRecv(rank, timeout) ? true : interrupted();
    }

    bool waitSend(int *rank, std::chrono::milliseconds timeout) override
    {
        const Waiting waiting(*registry_);

        return !registry_->is_aborted() && inner_->waitSend(rank, timeout) ? true : interrupted();
    }

    void abortWaitRecv() override
    {
        inner_->abortWaitRecv();
    }

    void abortWaitSend() override
    {
        inner_->abortWaitSend();
    }

    void send(int rank, uint64_t slot, size_t offset, size_t bytes) override
    {
        inner_->send(rank, slot, offset, bytes);
    }

    void recv(int rank, uint64_t slot, size_t offset, size_t bytes) override
    {
        inner_->recv(rank, slot, offset, bytes);
    }

    void recv(std::vector<int> ranks, uint64_t slot, size_t offset, size_t bytes) override
    {
        inner_->recv(std::move(ranks), slot, offset, bytes);
    }

  private:
    /* Gloo's algorithms do not look at the result of a wait. */
    [[noreturn]] static bool interrupted()
    {
        throw gloo::IoException("interrupted");
    }

    Inner inner_;
    std::shared_ptr<Registry> registry_;
};

class Connections : public gloo::transport::Context
{
  public:
    Connections(std::shared_ptr<gloo::transport::Context> inner, std::shared_ptr<Registry> registry)
        : gloo::transport::Context(inner->rank, inner->size), inner_(std::move(inner)),
          registry_(std::move(registry))
    {
    }

    std::unique_ptr<gloo::transport::Pair> &getPair(int rank) override
    {
        return inner_->getPair(rank);
    }

    std::unique_ptr<gloo::transport::Pair> &createPair(int rank) override
    {
        return inner_->createPair(rank);
    }

    Inner createUnboundBuffer(void *data, size_t size) override
    {
        return std::make_unique<Buffer>(inner_->createUnboundBuffer(data, size), registry_);
    }

  private:
    std::shared_ptr<gloo::transport::Context> inner_;
    std::shared_ptr<Registry> registry_;
};

} // namespace

Context::Context(int rank, int size)
    : gloo::rendezvous::Context(rank, size), registry_(std::make_shared<Registry>())
{
}

void Context::watch()
{
    transportContext_ = std::make_shared<Connections>(std::move(transportContext_), registry_);
}

bool Context::is_waiting() const
{
    const pid_t thread = registry_->waiting_thread.load(std::memory_order_relaxed);
    char path[64];
    long number = SYS_futex; /* where /proc is not readable */

    if (thread == 0)
        return false;
    std::snprintf(path, sizeof(path), "/proc/self/task/%ld/syscall", static_cast<long>(thread));
    if (std::FILE *file = std::fopen(path, "re")) {
        char text[32] = "";

        if (std::fgets(text, sizeof(text), file))
            number = std::isdigit(static_cast<unsigned char>(text[0]))
                         ? std::strtol(text, nullptr, 10)
                         : -1; /* "running" */
        std::fclose(file);
    }
    return number == SYS_futex;
}

void Context::wake_all()
{
    try {
        closeConnections();
    } catch (const std::exception &) { /* one that is broken is as good as closed */
    }
    registry_->abort_all();
}

} // namespace wakeable
