/*
 * cuda_device: what the rest of the module asks about the device that compute opened.
 */
#ifndef SPARRING_WORKER_COMPUTE_CUDA_CUDA_DEVICE_H
#define SPARRING_WORKER_COMPUTE_CUDA_CUDA_DEVICE_H

#ifdef __cplusplus
extern "C" {
#endif

/* The device opened last in this process, or -1; any thread. */
int cuda_device_in_use(void);

#ifdef __cplusplus
}
#endif

#endif
