/*
 * cpu_multiply: matrix products with scratch memory of the caller's; internal to the CPU device.
 */
#ifndef SPARRING_WORKER_COMPUTE_CPU_CPU_MULTIPLY_H
#define SPARRING_WORKER_COMPUTE_CPU_CPU_MULTIPLY_H

#include "worker/compute/cpu/cpu.h"

struct operand {
    const float *data;
    size_t row;      /* from one row in memory to the next */
    bool transposed; /* rows in memory are the operand's columns */
};

/* c (m, n) = or += a (m, k) * b (k, n), row-major */
struct multiplication {
    size_t m, n, k;
    struct operand a, b;
    float *c;
    size_t c_row;
    bool accumulate;
};

/* Required scratch memory in floats, 64-byte aligned. */
size_t cpu_multiply_scratch(const struct cpu *cpu, size_t m, size_t n, size_t k, bool a_transposed);

/* same_a: `a`, m and k are those of the last call with this scratch memory, so that packed `a` is
 * reused. */
void cpu_multiply(const struct cpu *cpu, const struct multiplication *p, bool same_a,
                  float *scratch);

#endif
