/*
 * gloo_wakeable: a Gloo context whose waiting operations can be woken, and which counts how long
 * they wait.  Closing its connections does not wake an operation whose bytes are on their way
 * already; aborting the buffer it waits for does, and buffers of Gloo's own algorithms are known
 * because they are made by the context.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_GLOO_WAKEABLE_H
#define SPARRING_COMMON_COLLECTIVE_GLOO_WAKEABLE_H

#include <gloo/rendezvous/context.h>
#include <gloo/transport/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <sys/types.h>

namespace wakeable
{

/* All buffers that exist. */
class Registry
{
  public:
    void add(gloo::transport::UnboundBuffer *buffer);
    void remove(gloo::transport::UnboundBuffer *buffer);

    /* Every wait ends with a gloo::IoException, those to come, too. */
    void abort_all();
    bool is_aborted();

    std::atomic<pid_t> waiting_thread{0}; /* of the operation, where it is inside a wait */

  private:
    std::mutex lock_; /* guards what follows */
    std::set<gloo::transport::UnboundBuffer *> buffers_;
    bool is_aborted_ = false;
};

class Context : public gloo::rendezvous::Context
{
  public:
    Context(int rank, int size);

    /* After connectFullMesh: buffers made from now on are known. */
    void watch();

    /* Close the connections and wake all waiting threads; any thread. */
    void wake_all();

    /* Does the operation's thread sleep until a peer does something?  Any thread. */
    bool is_waiting() const;

  private:
    std::shared_ptr<Registry> registry_;
};

} // namespace wakeable

#endif
