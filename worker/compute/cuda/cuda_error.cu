/*
 * cuda_error: conversion of CUDA and cuBLAS codes to our status.  Their texts are one line each and
 * follow the name of the call in the message.
 */
#include "worker/compute/cuda/cuda_error.h"

static enum status status_kind(cudaError_t result)
{
    switch (result) {
    case cudaErrorMemoryAllocation:
        return STATUS_NO_MEMORY;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorSystemNotReady:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorDevicesUnavailable:
    case cudaErrorStubLibrary:
    case cudaErrorNoKernelImageForDevice:
        return STATUS_UNAVAILABLE;
    default:
        return STATUS_INTERNAL;
    }
}

enum status status_from_cuda(cudaError_t result, const char *call, struct error *err)
{
    if (result == cudaSuccess)
        return STATUS_OK;
    return error_set(err, status_kind(result), "%s: %s (%s)", call, cudaGetErrorString(result),
                     cudaGetErrorName(result));
}

enum status status_from_cublas(cublasStatus_t result, const char *call, struct error *err)
{
    if (result == CUBLAS_STATUS_SUCCESS)
        return STATUS_OK;
    return error_set(err, result == CUBLAS_STATUS_ALLOC_FAILED ? STATUS_NO_MEMORY : STATUS_INTERNAL,
                     "%s: %s (%s)", call, cublasGetStatusString(result),
                     cublasGetStatusName(result));
}
