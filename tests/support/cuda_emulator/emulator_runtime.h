/*
 * emulator_runtime: functions shared by the parts of the emulated runtime: emulator_streams.cc
 * (streams, events, graphs), emulator_memory.cc (memory, copies) and emulator_runtime.cc (devices,
 * errors, launches).  One lock guards all state; it is never held while waiting.
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

/* Store the error as the last one of this thread, and return it. */
cudaError_t fail(cudaError_t error);

/* Current device of the calling thread. */
int device_in_use();

/* ---- emulator_memory.cc ---- */

/* True if the range lies in one allocation of device memory. */
bool is_owned(const void *memory, size_t size);

/* ---- emulator_streams.cc ---- */

/* Wait for the work of a stream, or of all streams of this thread's device; without the lock. */
void run_stream(cudaStream_t s);
void run_all_streams();

/* Enqueue work that is retried until it returns true. */
cudaError_t enqueue_polled(cudaStream_t stream, std::function<bool()> work);

/* To be called by functions that CUDA forbids during a capture: those that allocate or free memory,
 * or wait for captured work.  If this thread captures a stream, returns true, stores the error and
 * invalidates the capture. */
bool invalidates_capture();

/* Device of a stream; -1: not a stream. */
int device_of(cudaStream_t stream);

} // namespace cuda_emulator

#endif
