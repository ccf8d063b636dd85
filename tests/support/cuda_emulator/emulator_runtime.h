/*
 * emulator_runtime: functions that the parts of the emulated runtime share.  emulator_streams.cc
 * has streams, events and graphs, emulator_memory.cc memory and copies, emulator_runtime.cc
 * devices, errors and the rest.  Everything is under one lock, which is never held while waiting.
 */
#ifndef SPARRING_TESTS_CUDA_EMULATOR_RUNTIME_H
#define SPARRING_TESTS_CUDA_EMULATOR_RUNTIME_H

#include "tests/support/cuda_emulator/cuda_emulator.h"

#include <functional>
#include <mutex>

namespace cuda_emulator
{

typedef std::lock_guard<std::recursive_mutex> guard;

/* ---- emulator_runtime.cc ---- */

extern std::recursive_mutex lock;

/* The error, kept as this thread's last one. */
cudaError_t fail(cudaError_t error);

/* The calling thread's. */
int device_in_use();

/* ---- emulator_memory.cc ---- */

/* Is all of it device memory of one allocation? */
bool is_owned(const void *memory, size_t size);

/* ---- emulator_streams.cc ---- */

/* Wait for what was put on a stream, or on all of this thread's device; without the lock. */
void run_stream(cudaStream_t s);
void run_everything();

/* Work that returns whether it has ended; it is retried until it has. */
cudaError_t enqueue_polled(cudaStream_t stream, std::function<bool()> work);

/* Of calls that CUDA forbids to a thread that captures a stream: those that take or free memory and
 * that wait for what is captured.  True, with the error kept: this thread does, and its capture
 * fails. */
bool spoils_capture();

/* Of which device; -1: no stream. */
int device_of(cudaStream_t stream);

} // namespace cuda_emulator

#endif
