/*
 * manifest: everything that ranks must agree on before the first step, as an ordered list of
 * (field, value) texts.  It is sent as lines "field<TAB>value\n"; ranks compare lists and report
 * *every* difference with both ranks, not only the first.
 *
 * Library.  Needs base, tensor and optimizer.  Called by the worker, which builds and compares the
 * manifests, and the parameter server, which compares those of its workers.
 */
#ifndef SPARRING_COMMON_MANIFEST_MANIFEST_H
#define SPARRING_COMMON_MANIFEST_MANIFEST_H

#include "common/base/error.h"
#include "common/base/strbuf.h"
#include "common/optimizer/optimizer.h"
#include "common/tensor/tensor.h"

#include <stddef.h>

/* Add a field; tabs and newlines in its texts become spaces. */
void manifest_add(struct strbuf *manifest, const char *field, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* One field per tensor, "tensor fc1.weight" -> "(128, 784) float32" (one dimension: "(128,)"), in
 * model order, and the count. */
void manifest_add_tensors(struct strbuf *manifest, const struct tensor_table *table);

/* The optimizer's settings that change results: those that its kind uses. */
void manifest_add_optimizer(struct strbuf *manifest, const struct optimizer_config *config);

/* Number of differing fields; each is written to `report` as one line
 * "tensor fc1.weight: rank 0 has (128, 784) float32, rank 2 has (64, 784) float32" (a missing one:
 * "nothing").  At most 20 lines, then "and N more".  Lists of equal fields in another order count
 * as one difference.  a and b may come from a wire: any NUL-terminated bytes. */
size_t manifest_compare(const char *a, unsigned rank_a, const char *b, unsigned rank_b,
                        struct strbuf *report);

#endif
