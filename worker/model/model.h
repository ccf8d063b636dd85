/*
 * model: forward and backward of one model, with all parameters and all gradients in one slab each.
 * Specs are those of spec.h; parameters and buffers are named, shaped and ordered as in the PyTorch
 * code that each one follows: linear, mlp, cnn and lenet fc1.weight, conv1.weight, bn1.weight, ...;
 * mlp-bn as in an nn.Sequential, 0.weight, 1.running_mean, ...; resnet and vgg as torchvision; gpt
 * as nanoGPT (transformer.h.0.attn.c_attn.weight; the output layer is transformer.wte.weight); a
 * profile as its file says.
 * Inputs are numbers, images channel by channel; inputs of gpt are token ids, as float32.  Needs
 * compute, tensor, optimizer, base and jansson.  Called by worker/train.
 * Threads: one caller per struct model; `ready` call-backs run on that thread.
 */
#ifndef SPARRING_WORKER_MODEL_MODEL_H
#define SPARRING_WORKER_MODEL_MODEL_H

#include "common/base/random.h"
#include "common/base/shared_memory.h"
#include "common/tensor/tensor.h"
#include "worker/compute/compute.h"

struct model;

/* compute is borrowed until model_close.  STATUS_CONFIG: the text names the spec and the position.
 */
enum status model_open(const char *spec, struct compute *compute, size_t max_batch,
                       struct model **ret_model, struct error *err);
void model_close(struct model *m); /* NULL allowed */

/* The parameters of a model that is not opened, for which it would need memory; the caller releases
 * *ret. */
enum status model_read_table(const char *spec, struct tensor_table *ret, struct error *err);

const struct tensor_table *model_table(const struct model *m);
size_t model_inputs(const struct model *m); /* features of a sample */
size_t model_classes(const struct model *m);
size_t model_positions(const struct model *m);  /* labels of a sample: 1, or a sequence's tokens */
size_t model_vocabulary(const struct model *m); /* inputs are ids below it; 0: inputs are numbers */

/* Floating-point operations of forward and backward of one sample, by the usual convention: matrix
 * products and convolutions only, 2 per multiply-add, backward is twice forward (although the
 * gradient of the input is not computed), attention without the saving of the causal mask. */
uint64_t model_flops(const struct model *m);

/* A number for the times of a profile, by which ranks compare them; 0: not a profile. */
uint64_t model_times_hash(const struct model *m);

/* The first layer's weight (out, inputs).  Forward reads column j only in the product with feature
 * j; backward does not read it.  NULL: the first layer is not linear. */
const struct tensor_view *model_input_weight(const struct model *m);

/* Host slabs in the table's layout.  On the CPU the layers use this memory; with a GPU it is a
 * staging copy, transferred by the calls below. */
float *model_params(struct model *m);
float *model_grads(struct model *m);

/* Buffers: state of forward other than the parameters (running statistics); count 0: none.  Host
 * memory, float32, except num_batches_tracked, which is int64. */
const struct tensor_table *model_buffer_table(const struct model *m);
float *model_buffers(struct model *m); /* NULL: none */

/* The contents of a checkpoint: parameters and buffers, views into memory at model_params. */
const struct tensor_table *model_state_table(const struct model *m);

/* The shared memory that contains parameters, gradients and buffers; NULL with a GPU. */
const struct shared_memory *model_memory(const struct model *m);

/* Detach that memory from processes that have mapped it (shared_memory_renew); addresses and
 * contents do not change.  A no-op with a GPU. */
enum status model_fence_memory(struct model *m, struct error *err);

/* LayerDrop: model_step skips each hidden layer (a residual block, a transformer's layer) whose
 * output is as wide as its input with probability p, drawn per call from `seed`; model_evaluate
 * skips none.  Source: Fan, Grave and Joulin 2019. */
void model_set_layer_drop(struct model *m, double p, uint64_t seed);

/* Per view of model_table: true if it had a gradient since the last step without `accumulate`.  The
 * gradients of the other views are zero. */
const bool *model_used(const struct model *m);

/* Initialise as PyTorch would after torch.manual_seed(seed): bit for bit where layers keep their
 * own initialisation (mlp, cnn), from the same distributions where an architecture has its own. */
enum status model_init(struct model *m, uint64_t seed, enum random_rounding rounding,
                       struct error *err);

/* Upload the host parameters and buffers after a change on the host. */
enum status model_params_changed(struct model *m, struct error *err);

/* Called during forward of model_step; parameters [offset, offset + count) of the slab may be read
 * once it has returned.  Called once before each operation that is the first to read its
 * parameters, and before backward with the whole slab. */
typedef enum status model_await_fn(void *user, size_t offset, size_t count, struct error *err);

/* How the gradients of a model whose optimizer runs on the device reach the other ranks. */
enum gradient_path {
    GRADIENTS_STAY,   /* not transferred: gradients are not synchronised */
    GRADIENTS_STAGED, /* downloaded to model_grads part by part; model_grads_arrived uploads the
                         mean */
    GRADIENTS_SHARED, /* not transferred: `ready` reports what is final at model_device_grads;
                         the collective reads it there and writes the mean in its place */
};

/*
 * Training on the device (compute_has_optimizer): after this call model_update runs the optimizer
 * there, and model_params and the optimizer's host state are those of the last model_fetch.
 *   o   its configuration, and its state on the host, which is uploaded; borrowed until model_close
 * With GRADIENTS_STAY the buffers stay on the device too.  Not with layer drop, which excludes
 * single parameters from an update.
 */
enum status model_keep_on_device(struct model *m, struct optimizer *o, enum gradient_path path,
                                 struct error *err);
bool model_on_device(const struct model *m);

/*
 * model_update follows a step (or the last of several that accumulate) with a finite loss.  It may
 * return before the update has run.  State and parameters have the same bits whether or not
 * model_plan_update passed the numbers before that step.  If it did, a step that is one graph
 * launch includes the update; then a loss that is not finite leaves the parameters unspecified.
 */
void model_plan_update(struct model *m, double learning_rate, uint64_t step);
enum status model_update(struct model *m, double learning_rate, uint64_t step, struct error *err);

/* Download parameters and optimizer state if the host copies are stale.  Call it before reading
 * model_params or the optimizer's state on the host. */
enum status model_fetch(struct model *m, struct error *err);

/* Upload parameters and optimizer state after a change of both on the host. */
enum status model_restore(struct model *m, struct error *err);

/* After the step, with GRADIENTS_STAGED: elements [offset, offset + count) of model_grads are the
 * mean gradient.  Their upload runs concurrently with the host; they must not change until the next
 * model_step or model_clear_grads. */
enum status model_grads_arrived(struct model *m, size_t offset, size_t count, struct error *err);

/* The same for model_params and new parameters, when the optimizer does not run on the device.  A
 * no-op on the CPU. */
enum status model_params_arrived(struct model *m, size_t offset, size_t count, struct error *err);

/* Instead of a step: fill the gradient slab with zeros, on the host, and with GRADIENTS_SHARED on
 * the device. */
enum status model_clear_grads(struct model *m, struct error *err);

float *model_device_grads(struct model *m); /* device memory in the table's layout */

/* For parameters that may still be incomplete when model_step is called; only where device memory
 * is host memory.  NULL: they are complete. */
void model_set_await(struct model *m, model_await_fn *await, void *user);

/* Called in model_step when all of its work is issued and none of it has been waited for; only with
 * a GPU. model_step returns its failure.  NULL: not called. */
typedef enum status model_issued_fn(void *user, struct error *err);
void model_set_issued(struct model *m, model_issued_fn *issued, void *user);

/* Called during backward: gradient elements [0, ready_count) of the slab are final, on the host or
 * where enum gradient_path says.  Parameters of the elements that are new in this call may be read
 * until the next call, unless model_set_ready_after_reads says otherwise; after the last call none
 * are. */
typedef void model_ready_fn(void *user, size_t ready_count);

/* True: `ready` comes when the step does not read the parameters of these elements any more, so
 * that new ones may be written there: after the gradient of the layer's input, too.  False, which a
 * new model has: as soon as the gradients are final. */
void model_set_ready_after_reads(struct model *m, bool after_reads);

/*
 * Forward and backward of one batch.
 *   x           host (batch, inputs), batch from 1 to max_batch
 *   labels      host (batch, positions)
 *   accumulate  add to the gradients of the last step (no_sync) instead of replacing them
 *   ready       NULL, or called with a rising count, finally with the whole slab
 *   ret_loss    mean cross-entropy before the update
 * Also updates the buffers.  The host's gradient slab is complete on return; for a model that is
 * kept on the device only with GRADIENTS_STAGED and `ready`.  STATUS_DATA names a label outside the
 * classes or a token outside the vocabulary; after any failure the gradients are unspecified.
 */
enum status model_step(struct model *m, const float *x, const int32_t *labels, size_t batch,
                       bool accumulate, model_ready_fn *ready, void *user, double *ret_loss,
                       struct error *err);

/*
 * On a device with graphs, model_step captures its calls and issues them as one launch from the
 * second step of a kind on, with the same bits.  If capturing fails, it goes on call by call, and
 * model_graph_failure returns the reason.
 */
void model_use_graphs(struct model *m, bool use);       /* false: always call by call */
uint64_t model_graph_launches(const struct model *m);   /* steps issued as one launch */
const char *model_graph_failure(const struct model *m); /* one line; NULL: no failure */

/* Time of the last model_step's forward; the rest was backward.  With a GPU: the time to issue it;
 * for a step that is one launch: the time of the launch. */
int64_t model_forward_ns(const struct model *m);

/* Forward only, with the running statistics: mean loss and number of correct predictions of a
 * batch. */
enum status model_evaluate(struct model *m, const float *x, const int32_t *labels, size_t batch,
                           double *ret_loss, size_t *ret_correct, struct error *err);

#endif
