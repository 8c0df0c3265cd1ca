// CUDA's codes as Status: no memory is ResourceExhausted, no such device (or driver) Unavailable,
// the rest Internal with CUDA's own words.
//
// Threads: any.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <string_view>

#include "common/base/status.h"

namespace flotilla::cuda {

inline Status ToStatus(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return OkStatus();
  cudaGetLastError();  // it is said here, and is no later kernel's
  const std::string text = StrCat(what, ": ", cudaGetErrorString(error));
  switch (error) {
    case cudaErrorMemoryAllocation:
      return absl::ResourceExhaustedError(text);
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorInsufficientDriver:
      return absl::UnavailableError(text);
    default:
      return absl::InternalError(text);
  }
}

// Of the launches since it was last asked. That something queued is not done yet is no error.
inline Status LaunchStatus() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaErrorNotReady ? OkStatus() : ToStatus(error, "a kernel's launch");
}

}  // namespace flotilla::cuda
