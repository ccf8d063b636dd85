/*
 * checkpoint: a training run on disk, so that another process can go on where it was.
 *
 * A folder of one job holds step-<updates>.safetensors files and `latest`, a text file that names
 * the newest.  A file has the model's tensors under their PyTorch names, the optimizer's state as
 * optimizer.<state>.<tensor>, and in "__metadata__" the facts below, each as text.  Both are
 * written atomically (common/base/file.h), first the one, then the other, and only then are older
 * checkpoints removed: whenever the process or the host dies, `latest` names a whole file.
 *
 * No shared state, no locking; one writer per folder.
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
#define CHECKPOINT_OPTIMIZER "optimizer." /* what names of optimizer state begin with */

/* What a run was and how far it had come.  Counts of samples are per rank unless said. */
struct checkpoint_facts {
    char version[64]; /* of the program */
    char model[CHECKPOINT_TEXT_MAX], data[CHECKPOINT_TEXT_MAX];
    char rest[32];           /* what became of samples that did not divide: pad, drop, keep */
    char sync[32];           /* local, allreduce, ps */
    char optimizer[32];      /* sgd, adam, adamw */
    char precision[32];      /* of values; parameters and states are float32 always */
    uint64_t step;           /* updates made */
    uint64_t optimizer_step; /* that the optimizer has made; more where each push was one, fewer
                                where gradients of fp16 overflowed */
    uint64_t overflowed;     /* updates left out for that; and as torch.amp.GradScaler has them: */
    uint64_t growth_tracker; /* updates since the scale changed */
    double loss_scale;       /* 1 in other precisions */
    uint64_t epoch;          /* from 0: the one that is next, or under way */
    uint64_t position;       /* of each part of that epoch: samples that are behind it */
    uint64_t parts;          /* that the epoch is divided into */
    uint64_t samples;        /* of the data set */
    uint64_t world_size, batch_size, accumulate_steps, seed;
    uint64_t shuffle, nesterov; /* 0, 1 */
    double learning_rate, momentum, dampening, weight_decay, beta1, beta2, epsilon, layer_drop;
};

/*
 * Save into `folder`, which is made where it is missing; then the `keep` newest checkpoints stay
 * there, 0: all: this one and those of the greatest numbers of updates below it, and only then any
 * above it, of a run that went back; and `spared`, a file's path, wherever it is (NULL: none).  The
 * parts' names must differ.  *ret_bytes is the file's size.  STATUS_IO, STATUS_NO_SPACE name the
 * file, STATUS_UNSUPPORTED one of more than CHECKPOINT_BYTES_MAX; what was there before stays, and
 * `latest` with it.
 */
enum status checkpoint_save(const char *folder, size_t keep, const char *spared,
                            const struct checkpoint_facts *facts,
                            const struct safetensors_part *parts, size_t length,
                            uint64_t *ret_bytes, struct error *err);

/* The file that `path` means: itself, or of a folder the one that `latest` names, or without
 * `latest` the one of the most updates there.  STATUS_NOT_FOUND: there is no such file, or no
 * checkpoint; STATUS_DATA: `latest` is no name of a checkpoint. */
enum status checkpoint_find(const char *path, char ret[CHECKPOINT_PATH_MAX], struct error *err);

/* STATUS_DATA names the file and the field that is missing or outside its range. */
enum status checkpoint_read_facts(const struct safetensors *s, struct checkpoint_facts *ret,
                                  struct error *err);

/* How much it matters that a run goes on with another value of a field. */
enum checkpoint_weight {
    CHECKPOINT_PROGRESS, /* not at all: it says how far the run had come */
    CHECKPOINT_MAY_DIFFER,
    CHECKPOINT_WITHIN_EPOCH, /* the position in an epoch means other samples then */
    CHECKPOINT_MUST_AGREE,
};

struct strbuf;

/* Append each field of that weight that differs, as ", <field> is <now> (was <then>)"; returns
 * how many. */
size_t checkpoint_list_differences(const struct checkpoint_facts *then,
                                   const struct checkpoint_facts *now,
                                   enum checkpoint_weight weight, struct strbuf *text);

#endif
