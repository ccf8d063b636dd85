/*
 * checkpoint: the state of a training run on disk, from which another process can resume.
 *
 * A folder of one job holds step-<updates>.safetensors files and `latest`, a text file that names
 * the newest.  A file has the model's tensors under their PyTorch names, the optimizer's state as
 * optimizer.<state>.<tensor>, and in "__metadata__" the facts below, each as text.  Both are
 * written atomically (common/base/file.h), in this order, and only then are older checkpoints
 * removed: whenever the process or the host crashes, `latest` names a whole file.
 *
 * No shared state, no locking; one writer per folder.
 *
 * Library.  Promises atomic saving and strict reading of safetensors files.  Needs base, tensor and
 * jansson.  Called by the worker's training loop and the parameter server's persistence.
 */
#ifndef SPARRING_COMMON_CHECKPOINT_CHECKPOINT_H
#define SPARRING_COMMON_CHECKPOINT_CHECKPOINT_H

#include "common/base/error.h"
#include "common/checkpoint/safetensors.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CHECKPOINT_PATH_MAX  4096
#define CHECKPOINT_TEXT_MAX  1024
#define CHECKPOINT_BYTES_MAX ((size_t)16 << 30)
#define CHECKPOINT_LATEST    "latest"     /* file of the name of the newest one */
#define CHECKPOINT_OPTIMIZER "optimizer." /* prefix of the names of optimizer state */

/* The settings and the progress of a run.  Counts of samples are per rank unless noted. */
struct checkpoint_facts {
    char version[64]; /* of the program */
    char model[CHECKPOINT_TEXT_MAX], data[CHECKPOINT_TEXT_MAX];
    char rest[32];           /* policy for samples that do not divide evenly: pad, drop, keep */
    char sync[32];           /* local, allreduce, ps */
    char optimizer[32];      /* sgd, adam, adamw */
    char precision[32];      /* of values; parameters and states are float32 always */
    uint64_t step;           /* updates made */
    uint64_t optimizer_step; /* steps of the optimizer; more than `step` when each push is one,
                                fewer when fp16 gradients overflowed */
    uint64_t overflowed;     /* updates skipped after an overflow */
    uint64_t growth_tracker; /* updates since the scale changed, as in torch.amp.GradScaler */
    double loss_scale;       /* 1 in other precisions */
    uint64_t epoch;          /* from 0: the current or next one */
    uint64_t position;       /* samples of each part of that epoch that have been used */
    uint64_t parts;          /* number of parts that the epoch is divided into */
    uint64_t samples;        /* of the data set */
    uint64_t world_size, batch_size, accumulate_steps, seed;
    uint64_t shuffle, nesterov; /* 0, 1 */
    double learning_rate, momentum, dampening, weight_decay, beta1, beta2, epsilon, layer_drop;
};

/*
 * Save into `folder`, which is created if missing, and remove all but the `keep` newest checkpoints
 * (0: keep all): this one, then those with the most updates below it, then those above it (of a run
 * that was resumed at an earlier step).  `kept_path` is a file that is never removed (NULL: none).
 * The parts' names must differ.  *ret_bytes is the file's size.  STATUS_IO, STATUS_NO_SPACE name
 * the file; STATUS_UNSUPPORTED: more than CHECKPOINT_BYTES_MAX.  On failure existing checkpoints
 * and `latest` are unchanged.
 */
enum status checkpoint_save(const char *folder, size_t keep, const char *kept_path,
                            const struct checkpoint_facts *facts,
                            const struct safetensors_part *parts, size_t length,
                            uint64_t *ret_bytes, struct error *err);

/* The checkpoint file for `path`: the file itself; for a folder, the file that `latest` names, or
 * without `latest` the file with the most updates.  STATUS_NOT_FOUND: no such file, or no
 * checkpoint; STATUS_DATA: `latest` does not contain the name of a checkpoint. */
enum status checkpoint_find(const char *path, char ret[CHECKPOINT_PATH_MAX], struct error *err);

/* STATUS_DATA names the file and the field that is missing or outside its range. */
enum status checkpoint_read_facts(const struct safetensors *s, struct checkpoint_facts *ret,
                                  struct error *err);

/* Whether a resumed run may have another value of a field. */
enum checkpoint_agreement {
    CHECKPOINT_PROGRESS, /* not compared: the progress of the run */
    CHECKPOINT_MAY_DIFFER,
    CHECKPOINT_WITHIN_EPOCH, /* must agree inside an epoch, where it determines the samples */
    CHECKPOINT_MUST_AGREE,
};

struct strbuf;

/* Append each differing field of that agreement class as ", <field> is <now> (was <then>)"; returns
 * their number. */
size_t checkpoint_list_differences(const struct checkpoint_facts *then,
                                   const struct checkpoint_facts *now,
                                   enum checkpoint_agreement weight, struct strbuf *text);

#endif
