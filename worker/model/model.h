/*
 * model: what is trained, with forward beside backward, parameters and gradients in one slab each.
 * Specs are those of spec.h; parameters and buffers are named, shaped and ordered as in the PyTorch
 * code that each one follows: linear, mlp, cnn and lenet fc1.weight, conv1.weight, bn1.weight, ...;
 * mlp-bn as in an nn.Sequential, 0.weight, 1.running_mean, ...; resnet and vgg as torchvision; gpt
 * as nanoGPT (transformer.h.0.attn.c_attn.weight; the output layer is transformer.wte.weight).
 * Inputs are numbers, images channel by channel; of gpt they are the ids of tokens, as float32.
 * Threads: one caller per struct model; `ready` call-backs come on that thread.
 */
#ifndef SPARRING_WORKER_MODEL_MODEL_H
#define SPARRING_WORKER_MODEL_MODEL_H

#include "common/base/random.h"
#include "common/base/shared_memory.h"
#include "common/tensor/tensor.h"
#include "worker/compute/compute.h"

struct model;

/* compute is borrowed until model_close.  STATUS_CONFIG names the spec and the position at fault.
 */
enum status model_open(const char *spec, struct compute *compute, size_t max_batch,
                       struct model **ret_model, struct error *err);
void model_close(struct model *m); /* NULL allowed */

const struct tensor_table *model_table(const struct model *m);
size_t model_inputs(const struct model *m); /* features of a sample */
size_t model_classes(const struct model *m);
size_t model_positions(const struct model *m);  /* labels of a sample: 1, or a sequence's tokens */
size_t model_vocabulary(const struct model *m); /* inputs are ids below it; 0: they are numbers */

/* Floating-point operations of one sample's forward and backward as the field counts them: of
 * matrix products and convolutions only, 2 per multiply-add, backward twice forward (though no
 * gradient of the input is computed), attention without its causal half saved. */
uint64_t model_flops(const struct model *m);

/* The first layer's weight (out, inputs): column j is read in forward for nothing but a product
 * with feature j, and in backward not at all.  NULL: the first layer is of another kind. */
const struct tensor_view *model_input_weight(const struct model *m);

/* Host slabs in the table's layout.  On the CPU they are the memory that the layers use; on a GPU
 * they are staging copies, moved by the calls below. */
float *model_params(struct model *m);
float *model_grads(struct model *m);

/* Buffers: what forward keeps beside the parameters (running statistics); count 0: none.  Host
 * memory, float32 but for num_batches_tracked, int64. */
const struct tensor_table *model_buffer_table(const struct model *m);
float *model_buffers(struct model *m); /* NULL: none */

/* What a checkpoint holds: parameters and buffers, views into memory at model_params. */
const struct tensor_table *model_state_table(const struct model *m);

/* The memory that parameters, gradients and buffers lie in; NULL with a GPU. */
const struct shared_memory *model_memory(const struct model *m);

/* Put that memory out of reach of processes that have mapped it (shared_memory_renew); addresses
 * and contents stay.  A no-op with a GPU. */
enum status model_fence_memory(struct model *m, struct error *err);

/* LayerDrop: model_step skips each hidden layer (a residual block, a transformer's layer) that is
 * as wide as its input with probability p, drawn per call from `seed`; model_evaluate skips none.
 * Source: Fan, Grave and Joulin 2019. */
void model_set_layer_drop(struct model *m, double p, uint64_t seed);

/* Per view of model_table: whether it had a gradient since the last step without `accumulate`;
 * gradients of the others are zero. */
const bool *model_used(const struct model *m);

/* Initialise as PyTorch would after torch.manual_seed(seed): bit for bit where layers keep their
 * own initialisation (mlp, cnn), from the same distributions where an architecture has its own. */
enum status model_init(struct model *m, uint64_t seed, enum random_rounding rounding,
                       struct error *err);

/* The host parameters were changed: make the device see them. */
enum status model_params_changed(struct model *m, struct error *err);

/* Called during forward of model_step: parameters [offset, offset + count) of the slab are read
 * when it has returned.  Once for each operation that is the first to read them, before it is
 * computed, and before backward with the whole slab. */
typedef enum status model_await_fn(void *user, size_t offset, size_t count, struct error *err);

/* Where the gradients of a model go whose optimizer runs on the device. */
enum gradient_path {
    GRADIENTS_STAY,   /* nowhere: nobody else has any */
    GRADIENTS_STAGED, /* to model_grads, part by part; their mean comes back by
                         model_grads_arrived */
    GRADIENTS_SHARED, /* nowhere: `ready` says what is final at model_device_grads, and others read
                         it there and put the mean in its place */
};

/*
 * Training on the device (compute_has_optimizer): from here on model_update runs the optimizer
 * there, and model_params and the optimizer's state are what model_fetch brought last.
 * o: its configuration, and its state on the host, which goes to the device; borrowed until
 * model_close.  With GRADIENTS_STAY buffers stay on the device, too.  Not with layer drop, which
 * leaves single parameters out of an update.
 */
enum status model_keep_on_device(struct model *m, struct optimizer *o, enum gradient_path path,
                                 struct error *err);
bool model_on_device(const struct model *m);

/*
 * model_update follows a step (or the last of several that accumulate) with a finite loss; state
 * and parameters are the update's when it returns or later, and the same bits whether
 * model_plan_update has told the numbers before that step or not.  Where it has, a step that is one
 * launch makes the update with it; then parameters behind a loss that is not finite are lost, as
 * nobody should read them.
 */
void model_plan_update(struct model *m, double learning_rate, uint64_t step);
enum status model_update(struct model *m, double learning_rate, uint64_t step, struct error *err);

/* Before anybody reads model_params or the optimizer's state on the host: bring them; nothing to
 * do where they are current. */
enum status model_fetch(struct model *m, struct error *err);

/* The opposite: they were changed on the host, both. */
enum status model_restore(struct model *m, struct error *err);

/* After the step, with GRADIENTS_STAGED: elements [offset, offset + count) of model_grads are the
 * mean gradient; they go to the device beside what the host does next, and must not change until
 * the next model_step or model_clear_grads. */
enum status model_grads_arrived(struct model *m, size_t offset, size_t count, struct error *err);

/* The same of model_params and new parameters, where the optimizer does not run here.  On the CPU
 * they are there already. */
enum status model_params_arrived(struct model *m, size_t offset, size_t count, struct error *err);

/* Instead of a step: a gradient of zeros, where that of a step would be. */
enum status model_clear_grads(struct model *m, struct error *err);

float *model_device_grads(struct model *m); /* device memory in the table's layout */

/* Parameters may still be on their way into the slab when model_step is called; only where the
 * device is the host.  NULL: they are there. */
void model_set_await(struct model *m, model_await_fn *await, void *user);

/* Called in model_step when all of its work is issued and none of it has been waited for; only with
 * a GPU.  A failure is the step's.  NULL: nobody. */
typedef enum status model_issued_fn(void *user, struct error *err);
void model_set_issued(struct model *m, model_issued_fn *issued, void *user);

/* Called during backward: gradient elements [0, ready_count) of the slab are final on the host, or
 * where their path (enum gradient_path) has them.  Parameters of the elements that are new in this
 * call are read until the next call; after the last one none are. */
typedef void model_ready_fn(void *user, size_t ready_count);

/*
 * Forward and backward of one batch.
 *   x           host (batch, inputs), batch from 1 to max_batch
 *   labels      host (batch, positions)
 *   accumulate  add to the gradients of the last step (no_sync) instead of replacing them
 *   ready       NULL, or called with a rising count, at the end with the whole slab
 *   ret_loss    mean cross-entropy before the update
 * Buffers are updated, too.  The host's gradient slab is complete when it returns; of a model that
 * is kept on the device only with GRADIENTS_STAGED and `ready`.  STATUS_DATA names a label outside
 * the classes or a token outside the vocabulary; after any failure the gradients are unspecified.
 */
enum status model_step(struct model *m, const float *x, const int32_t *labels, size_t batch,
                       bool accumulate, model_ready_fn *ready, void *user, double *ret_loss,
                       struct error *err);

/*
 * On a device that can, model_step notes what it calls and issues it as one launch from the second
 * step of a kind on, with the same bits.  Where that fails it goes on call by call, and
 * model_graph_failure says why.
 */
void model_use_graphs(struct model *m, bool use);       /* false: call by call, always */
uint64_t model_graph_launches(const struct model *m);   /* steps that were one */
const char *model_graph_failure(const struct model *m); /* one line; NULL: nothing failed */

/* Time of the last model_step's forward; the rest was backward.  With a GPU: of issuing it, and of
 * a step that is one launch: of that. */
int64_t model_forward_ns(const struct model *m);

/* Forward only, by the running statistics: mean loss and number of correct predictions of one
 * batch. */
enum status model_evaluate(struct model *m, const float *x, const int32_t *labels, size_t batch,
                           double *ret_loss, size_t *ret_correct, struct error *err);

#endif
