/*
 * A step as a CUDA graph: the work stream captures the calls between begin and end.  Labels and the
 * update's numbers are copied from page-locked memory at fixed addresses, which is filled before
 * each launch.  A graph is valid until scratch memory is reallocated, parameters are registered or
 * fp16's scale changes.
 */
#include "worker/compute/cuda/cuda_internal.h"

#include <stdlib.h>
#include <string.h>

struct compute_graph {
    cudaGraphExec_t instance;
    float gradient_scale;           /* baked into the graph */
    uint64_t memory_generation;     /* the device's, at the capture */
    struct compute_traffic traffic; /* of a launch */
};

enum status cuda_graph_begin(struct compute *c, struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    enum status status = cuda_gradient_scale_wait(cuda, err);

    if (status == STATUS_OK)
        status =
            status_from_cuda(cudaStreamBeginCapture(cuda->work, cudaStreamCaptureModeThreadLocal),
                             "cudaStreamBeginCapture", err);
    if (status != STATUS_OK)
        (void)cudaGetLastError(); /* clear the error, so that it does not fail the next call */
    cuda->capturing = status == STATUS_OK;
    cuda->traffic_at_capture = cuda->traffic;
    return status;
}

enum status cuda_graph_end(struct compute *c, struct compute_graph **ret, struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    struct compute_graph *graph =
        static_cast<struct compute_graph *>(calloc(1, sizeof(struct compute_graph)));
    struct compute_traffic captured_traffic = cuda->traffic;
    cudaGraph_t captured = NULL;
    enum status status =
        status_from_cuda(cudaStreamEndCapture(cuda->work, &captured), "cudaStreamEndCapture", err);

    cuda->traffic = cuda->traffic_at_capture; /* captured calls have transferred nothing */
    cuda->capturing = false;
    if (status == STATUS_OK && !graph)
        status =
            error_set(err, STATUS_NO_MEMORY, "a graph: cannot allocate %zu bytes", sizeof(*graph));
    if (status == STATUS_OK)
        status = status_from_cuda(cudaGraphInstantiate(&graph->instance, captured, 0),
                                  "cudaGraphInstantiate", err);
    if (captured)
        (void)cudaGraphDestroy(captured);
    (void)cudaGetLastError(); /* of a captured call: clear it, so that it does not fail the next
                                 call */
    if (status != STATUS_OK) {
        free(graph);
        return status;
    }
    graph->gradient_scale = cuda->gradient_scale;
    graph->memory_generation = cuda->memory_generation;
    graph->traffic.up_bytes = captured_traffic.up_bytes - cuda->traffic.up_bytes;
    graph->traffic.down_bytes = captured_traffic.down_bytes - cuda->traffic.down_bytes;
    *ret = graph;
    return STATUS_OK;
}

enum status cuda_graph_launch(struct compute *c, const struct compute_graph *graph,
                              const int32_t *labels, size_t rows,
                              const struct optimizer_config *config, double learning_rate,
                              uint64_t step, struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    enum status status = cuda_gradient_scale_wait(cuda, err);

    if (status != STATUS_OK)
        return status;
    if (graph->memory_generation != cuda->memory_generation)
        return error_set(
            err, STATUS_UNAVAILABLE,
            "the graph is from before the device's scratch memory grew: capture it again");
    if (rows > cuda->rows_capacity)
        return error_set(err, STATUS_INVALID,
                         "a graph's launch with %zu rows, there is room for %zu", rows,
                         cuda->rows_capacity);
    if (graph->gradient_scale != cuda->gradient_scale)
        return error_set(err, STATUS_UNAVAILABLE,
                         "the graph is of another scale of gradients: capture it again");
    if (labels)
        memcpy(cuda->pinned_labels, labels, rows * sizeof(*labels));
    if (config)
        status = cuda_set_terms(cuda, config, learning_rate, step, err);
    if (status == STATUS_OK)
        status =
            status_from_cuda(cudaGraphLaunch(graph->instance, cuda->work), "cudaGraphLaunch", err);
    if (status == STATUS_OK) {
        cuda->traffic.up_bytes += graph->traffic.up_bytes;
        cuda->traffic.down_bytes += graph->traffic.down_bytes;
    }
    if (status == STATUS_OK && config)
        status = cuda_update_issued(cuda, err);
    return status;
}

void cuda_graph_free(struct compute *c, struct compute_graph *graph)
{
    (void)cudaStreamSynchronize(cuda_of(c)->work);
    (void)cudaGraphExecDestroy(graph->instance);
    free(graph);
}
