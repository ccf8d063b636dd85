/*
 * cuda_device: query of the device that compute opened, for the collectives of the module.
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
