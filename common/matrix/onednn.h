/*
 * onednn: oneDNN's C interface, as version 3 has it.  On version 2 (Debian 12) the functions that
 * version 3 (Ubuntu 24.04) has changed are made of those that it replaced.  For matrix and for the
 * convolutions of the CPU device.
 */
#ifndef SPARRING_COMMON_MATRIX_ONEDNN_H
#define SPARRING_COMMON_MATRIX_ONEDNN_H

#include "common/base/error.h"

#include <oneapi/dnnl/dnnl.h>
#include <stdint.h>
#include <stdlib.h>

/* `what`: of which oneDNN's failure is. */
static inline enum status onednn_fail(dnnl_status_t code, const char *what, struct error *err)
{
    if (code == dnnl_out_of_memory)
        return error_set(err, STATUS_NO_MEMORY, "no memory for %s", what);
    return error_set(err, STATUS_INTERNAL, "oneDNN cannot do %s (its status %d)", what, (int)code);
}

/* What dnnl_memory_set_data_handle takes, which is not const: oneDNN writes results only. */
static inline void *onednn_handle(const void *data)
{
    return (void *)(uintptr_t)data;
}

/* How a tensor lies in memory: owned by whoever has made it; borrowed. */
#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t onednn_layout;
typedef const_dnnl_memory_desc_t onednn_layout_ref;
#else
typedef dnnl_memory_desc_t *onednn_layout;
typedef const dnnl_memory_desc_t *onednn_layout_ref;

static inline dnnl_status_t dnnl_memory_desc_create_with_tag(onednn_layout *ret, int dimensions,
                                                             const dnnl_dims_t sizes,
                                                             dnnl_data_type_t type,
                                                             dnnl_format_tag_t tag)
{
    *ret = malloc(sizeof(**ret));
    return *ret ? dnnl_memory_desc_init_by_tag(*ret, dimensions, sizes, type, tag)
                : dnnl_out_of_memory;
}

static inline dnnl_status_t dnnl_memory_desc_create_with_strides(onednn_layout *ret, int dimensions,
                                                                 const dnnl_dims_t sizes,
                                                                 dnnl_data_type_t type,
                                                                 const dnnl_dims_t strides)
{
    *ret = malloc(sizeof(**ret));
    return *ret ? dnnl_memory_desc_init_by_strides(*ret, dimensions, sizes, type, strides)
                : dnnl_out_of_memory;
}

static inline dnnl_status_t dnnl_memory_desc_destroy(onednn_layout layout)
{
    free(layout);
    return dnnl_success;
}

#define dnnl_post_ops_append_sum dnnl_post_ops_append_sum_v3

static inline dnnl_status_t
dnnl_matmul_primitive_desc_create(dnnl_primitive_desc_t *ret, dnnl_engine_t engine,
                                  onednn_layout_ref src, onednn_layout_ref weights,
                                  onednn_layout_ref bias, onednn_layout_ref dst,
                                  const_dnnl_primitive_attr_t attr)
{
    dnnl_matmul_desc_t d;
    dnnl_status_t code = dnnl_matmul_desc_init(&d, src, weights, bias, dst);

    return code == dnnl_success ? dnnl_primitive_desc_create(ret, &d, attr, engine, NULL) : code;
}

static inline dnnl_status_t dnnl_convolution_forward_primitive_desc_create(
    dnnl_primitive_desc_t *ret, dnnl_engine_t engine, dnnl_prop_kind_t kind, dnnl_alg_kind_t alg,
    onednn_layout_ref src, onednn_layout_ref weights, onednn_layout_ref bias, onednn_layout_ref dst,
    const dnnl_dims_t strides, const dnnl_dims_t dilates, const dnnl_dims_t left,
    const dnnl_dims_t right, const_dnnl_primitive_attr_t attr)
{
    dnnl_convolution_desc_t d;
    dnnl_status_t code = dnnl_dilated_convolution_forward_desc_init(
        &d, kind, alg, src, weights, bias, dst, strides, dilates, left, right);

    return code == dnnl_success ? dnnl_primitive_desc_create(ret, &d, attr, engine, NULL) : code;
}

static inline dnnl_status_t dnnl_convolution_backward_data_primitive_desc_create(
    dnnl_primitive_desc_t *ret, dnnl_engine_t engine, dnnl_alg_kind_t alg, onednn_layout_ref src,
    onednn_layout_ref weights, onednn_layout_ref dst, const dnnl_dims_t strides,
    const dnnl_dims_t dilates, const dnnl_dims_t left, const dnnl_dims_t right,
    const_dnnl_primitive_desc_t hint, const_dnnl_primitive_attr_t attr)
{
    dnnl_convolution_desc_t d;
    dnnl_status_t code = dnnl_dilated_convolution_backward_data_desc_init(
        &d, alg, src, weights, dst, strides, dilates, left, right);

    return code == dnnl_success ? dnnl_primitive_desc_create(ret, &d, attr, engine, hint) : code;
}

static inline dnnl_status_t dnnl_convolution_backward_weights_primitive_desc_create(
    dnnl_primitive_desc_t *ret, dnnl_engine_t engine, dnnl_alg_kind_t alg, onednn_layout_ref src,
    onednn_layout_ref weights, onednn_layout_ref bias, onednn_layout_ref dst,
    const dnnl_dims_t strides, const dnnl_dims_t dilates, const dnnl_dims_t left,
    const dnnl_dims_t right, const_dnnl_primitive_desc_t hint, const_dnnl_primitive_attr_t attr)
{
    dnnl_convolution_desc_t d;
    dnnl_status_t code = dnnl_dilated_convolution_backward_weights_desc_init(
        &d, alg, src, weights, bias, dst, strides, dilates, left, right);

    return code == dnnl_success ? dnnl_primitive_desc_create(ret, &d, attr, engine, hint) : code;
}
#endif

#endif
