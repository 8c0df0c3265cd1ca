// The words that our kernels use beside CUDA's own, for nvcc. emulation/device_language.h has the
// same for g++. Units, threads: as CUDA's. Errors: of a launch, cudaGetLastError's; the caller
// asks.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "worker_proc/cuda/kernels/launch.h"

#define FLOTILLA_PLATFORM gpu

namespace flotilla::cuda {

template <typename T>
using SharedSpan = T*;

// SharedSpan<type> name, with `size` elements that the block's threads share.
#define FLOTILLA_SHARED(type, name, size) __shared__ type name[size]

extern __shared__ uint4 dynamic_shared_memory[];

// Cuts the launch's dynamic shared memory into arrays, one after another.
class DynamicShared {
 public:
  template <typename T>
  __device__ SharedSpan<T> Take(size_t size) {
    T* const array = reinterpret_cast<T*>(reinterpret_cast<char*>(dynamic_shared_memory) + bytes_);
    bytes_ += (sizeof(T) * size + 15) / 16 * 16;
    return array;
  }

 private:
  size_t bytes_ = 0;
};

__device__ __forceinline__ float FastExp(float x) { return __expf(x); }
__device__ __forceinline__ float FastTanh(float x) { return tanhf(x); }
__device__ __forceinline__ float ReciprocalSqrt(float x) { return rsqrtf(x); }
__device__ __forceinline__ uint16_t FloatToBFloat16Bits(float x) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}
__device__ __forceinline__ uint16_t FloatToHalfBits(float x) {
  return __half_as_ushort(__float2half_rn(x));
}
__device__ __forceinline__ float HalfBitsToFloat(uint16_t bits) {
  return __half2float(__ushort_as_half(bits));
}

__device__ __forceinline__ uint32_t FloatBits(float x) { return __float_as_uint(x); }
__device__ __forceinline__ float FloatOfBits(uint32_t bits) { return __uint_as_float(bits); }
__device__ __forceinline__ void AtomicAdd64(uint64_t* address, uint64_t value) {
  static_assert(sizeof(unsigned long long) == sizeof(uint64_t));
  atomicAdd(reinterpret_cast<unsigned long long*>(address), value);
}

// Between devices and the host.
__device__ __forceinline__ uint32_t LoadAcquire(const uint32_t* address) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
__device__ __forceinline__ void StoreRelease(uint32_t* address, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
__device__ __forceinline__ void FenceSystem() { __threadfence_system(); }
__device__ __forceinline__ uint64_t NanoTime() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}
__device__ __forceinline__ void Relax() { __nanosleep(40); }

// 16 aligned bytes at once.
template <typename T>
__device__ __forceinline__ Pack<T> Load16(const T* from) {
  const uint4 bits = *reinterpret_cast<const uint4*>(from);
  Pack<T> values;
  memcpy(values.v, &bits, 16);
  return values;
}
template <typename T>
__device__ __forceinline__ void Store16(T* to, const Pack<T>& values) {
  uint4 bits;
  memcpy(&bits, values.v, 16);
  *reinterpret_cast<uint4*>(to) = bits;
}

// Of this platform's name: one program may hold both.
namespace FLOTILLA_PLATFORM {

template <typename Args>
void Launch(const LaunchShape& shape, void (*kernel)(Args), const Args& args, Stream stream) {
  constexpr uint32_t kDefaultSharedBytes = 48 << 10;
  if (shape.shared_bytes > kDefaultSharedBytes) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         static_cast<int>(shape.shared_bytes));
  }
  kernel<<<dim3(shape.grid_x, shape.grid_y), shape.block, shape.shared_bytes,
           static_cast<cudaStream_t>(stream)>>>(args);
}

}  // namespace FLOTILLA_PLATFORM
}  // namespace flotilla::cuda
