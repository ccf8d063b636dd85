/*
 * emulator_streams: streams, events, and graphs of the work of one stream.
 *
 * Work on a stream is deferred until a caller waits for it, so that code which does not wait, or
 * overwrites the source of a pending copy, fails always and not sometimes.  A wait for an event
 * runs its stream up to the event; a query runs what can run.  Work of a library
 * (cuda_emulator_services) may wait for other processes, and is retried.  While a stream is
 * captured its work goes into the graph instead, and a call that CUDA forbids to a capturing thread
 * invalidates the capture.
 */
extern "C" {
#include "common/base/clock.h"
}
#include "tests/support/cuda_emulator/emulator_runtime.h"

#include <deque>
#include <memory>
#include <set>
#include <unistd.h>
#include <vector>

using namespace cuda_emulator;

/* The names are those of CUDA's opaque handles; the content is ours. */
struct CUgraph_st {
    std::vector<std::function<void()>> work;
    bool is_invalidated;
};

struct CUgraphExec_st {
    std::vector<std::function<void()>> work;
};

struct CUstream_st {
    std::deque<std::function<bool()>> work; /* returns false: retry */
    uint64_t enqueued, done;
    struct CUgraph_st *captured;
    int device;
};

struct CUevent_st {
    struct CUstream_st *stream;
    uint64_t at; /* count of the stream's work before the event */
    bool timed;
    std::shared_ptr<int64_t> reached_ns; /* timed: when it completed, ns; 0: pending */
};

namespace
{

std::set<struct CUstream_st *> streams;
thread_local struct CUstream_st *capturing; /* by this thread; NULL: none */

/* Run the work before `at` until some of it must wait; true if all of it is done. */
bool advance(struct CUstream_st *s, uint64_t at)
{
    while (s->done < at) {
        if (!s->work.front()())
            return false;
        s->work.pop_front();
        s->done++;
    }
    return true;
}

/* Poll until is_done() is true; called without the lock. */
void wait_for(const std::function<bool()> &is_done)
{
    for (;;) {
        {
            guard g(lock);

            if (is_done())
                return;
        }
        /* NCCL processes share memory and send no notification */
        (void)usleep(50);
    }
}

void run_until(struct CUstream_st *s, uint64_t at)
{
    wait_for([=] { return advance(s, at); });
}

} // namespace

namespace cuda_emulator
{

bool is_capturing()
{
    return capturing;
}

bool invalidates_capture()
{
    guard g(lock);

    if (!capturing)
        return false;
    capturing->captured->is_invalidated = true;
    (void)fail(cudaErrorStreamCaptureUnsupported);
    return true;
}

void run_stream(cudaStream_t s)
{
    run_until(s, s->enqueued);
}

void run_all_streams()
{
    wait_for([] {
        bool done = true;

        for (struct CUstream_st *s : streams)
            done = (s->device != device_in_use() || advance(s, s->enqueued)) && done;
        return done;
    });
}

cudaError_t enqueue(cudaStream_t stream, std::function<void()> work)
{
    guard g(lock);

    if (!stream || stream->device != device_in_use()) /* we use no default stream */
        return fail(cudaErrorInvalidResourceHandle);
    if (stream->captured) {
        stream->captured->work.push_back(std::move(work));
        return cudaSuccess;
    }
    stream->work.push_back([work] {
        work();
        return true;
    });
    stream->enqueued++;
    return cudaSuccess;
}

cudaError_t enqueue_polled(cudaStream_t stream, std::function<bool()> work)
{
    guard g(lock);

    if (streams.count(stream) == 0)
        return fail(cudaErrorInvalidResourceHandle);
    if (stream->captured)
        return fail(cudaErrorStreamCaptureUnsupported);
    stream->work.push_back(std::move(work));
    stream->enqueued++;
    return cudaSuccess;
}

int device_of(cudaStream_t stream)
{
    guard g(lock);

    return streams.count(stream) == 0 ? -1 : stream->device;
}

} // namespace cuda_emulator

/* ---- streams and events ---- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *ret, unsigned flags)
{
    guard g(lock);

    (void)flags;
    *ret = new CUstream_st();
    (*ret)->device = device_in_use();
    streams.insert(*ret);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    run_stream(stream);

    guard g(lock);

    streams.erase(stream);
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    if (stream->captured) {
        stream->captured->is_invalidated = true;
        return fail(cudaErrorStreamCaptureUnsupported);
    }
    run_stream(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    guard g(lock);
    struct CUstream_st *recorded = event->stream;
    uint64_t at = event->at;

    (void)flags;
    if (!recorded || (recorded->captured && recorded != stream))
        return recorded ? fail(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
    if (stream->captured)
        return enqueue(stream, [=] {
            if (recorded != stream)
                (void)advance(recorded, at);
        });
    return enqueue_polled(stream, [=] { return recorded == stream || advance(recorded, at); });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *ret, unsigned flags)
{
    *ret = new CUevent_st();
    (*ret)->timed = (flags & cudaEventDisableTiming) == 0;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    guard g(lock);

    event->stream = stream;
    if (event->timed) {
        std::shared_ptr<int64_t> reached_ns = std::make_shared<int64_t>(0);
        cudaError_t result = enqueue(stream, [=] { *reached_ns = clock_now_ns(); });

        if (result != cudaSuccess)
            return result;
        event->reached_ns = reached_ns;
    }
    event->at = stream->enqueued;
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ret, cudaEvent_t from, cudaEvent_t to)
{
    guard g(lock);

    if (!from->reached_ns || !to->reached_ns)
        return fail(cudaErrorInvalidResourceHandle);
    if (*from->reached_ns == 0 || *to->reached_ns == 0)
        return fail(cudaErrorNotReady);
    *ret = (float)((double)(*to->reached_ns - *from->reached_ns) * 1e-6);
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    if (event->stream && event->stream->captured && invalidates_capture())
        return cudaErrorCapturedEvent;
    if (event->stream)
        run_until(event->stream, event->at);
    return cudaSuccess;
}

/* As in CUDA, cudaErrorNotReady becomes the last error of this thread. */
cudaError_t cudaEventQuery(cudaEvent_t event)
{
    guard g(lock);

    return !event->stream || advance(event->stream, event->at) ? cudaSuccess
                                                               : fail(cudaErrorNotReady);
}

/* ---- graphs: the work of one stream ---- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode)
{
    guard g(lock);

    if (mode != cudaStreamCaptureModeThreadLocal || capturing) /* the only mode that we use */
        return fail(cudaErrorInvalidValue);
    stream->captured = new CUgraph_st();
    capturing = stream;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *ret)
{
    guard g(lock);

    *ret = stream->captured;
    stream->captured = nullptr;
    capturing = nullptr;
    if (*ret && (*ret)->is_invalidated) {
        delete *ret;
        *ret = nullptr;
    }
    return *ret ? cudaSuccess : fail(cudaErrorStreamCaptureInvalidated);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *ret, cudaGraph_t graph, unsigned long long flags)
{
    (void)flags;
    *ret = new CUgraphExec_st{graph->work};
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph)
{
    run_all_streams();
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream)
{
    return enqueue(stream, [=] {
        for (const std::function<void()> &work : graph->work)
            work();
    });
}
