/*
 * cuda_error: conversion of CUDA and cuBLAS results to our status, used where the calls are made.
 * Usage: return status_from_cuda(cudaMalloc(&p, n), "cudaMalloc", err);
 */
#ifndef SPARRING_WORKER_COMPUTE_CUDA_CUDA_ERROR_H
#define SPARRING_WORKER_COMPUTE_CUDA_CUDA_ERROR_H

#include "common/base/error.h"

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

enum status status_from_cuda(cudaError_t result, const char *call, struct error *err);
enum status status_from_cublas(cublasStatus_t result, const char *call, struct error *err);

#endif
