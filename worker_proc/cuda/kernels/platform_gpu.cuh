// The words that our kernels use beside CUDA's own, for nvcc. emulation/device_language.h has the
// same for g++. Units, threads: as CUDA's. Errors: of a launch, cudaGetLastError's; the caller
// asks.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <type_traits>
#include <unordered_map>

#include "worker_proc/cuda/kernels/launch.h"

#define FLOTILLA_PLATFORM gpu
// Before a loop whose array of results must stay in registers.
#define FLOTILLA_UNROLL _Pragma("unroll")

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
__device__ __forceinline__ uint32_t BFloat16PairBits(float first, float second) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  uint32_t bits;
  memcpy(&bits, &pair, sizeof(bits));
  return bits;
}
__device__ __forceinline__ uint32_t HalfPairBits(float first, float second) {
  const __half2 pair = __floats2half2_rn(first, second);
  uint32_t bits;
  memcpy(&bits, &pair, sizeof(bits));
  return bits;
}
__device__ __forceinline__ float HalfBitsToFloat(uint16_t bits) {
  return __half2float(__ushort_as_half(bits));
}
// Rounded on their own: never one operation with what comes before or after.
__device__ __forceinline__ float MulRounded(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ float AddRounded(float a, float b) { return __fadd_rn(a, b); }

__device__ __forceinline__ uint32_t FloatBits(float x) { return __float_as_uint(x); }
__device__ __forceinline__ float FloatOfBits(uint32_t bits) { return __uint_as_float(bits); }
__device__ __forceinline__ uint32_t CountBits(uint32_t bits) {
  return static_cast<uint32_t>(__popc(bits));
}
__device__ __forceinline__ void AtomicAdd64(uint64_t* address, uint64_t value) {
  static_assert(sizeof(unsigned long long) == sizeof(uint64_t));
  atomicAdd(reinterpret_cast<unsigned long long*>(address), value);
}

// A kernel may begin before the one before it on the stream is done. Nothing that others write may
// be touched before AfterPrevious, which every kernel calls, and all its blocks, before anything
// else or after having asked for what nobody writes. From StartNext on the next one may begin.
__device__ __forceinline__ void StartNext() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void AfterPrevious() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Instead of AfterPrevious, by a block that touches nothing: it may end before the kernel before
// does. But the first waits, so that this kernel is done only when that one is.
__device__ __forceinline__ void TouchNothing() {
  if (blockIdx.x == 0 && blockIdx.y == 0) AfterPrevious();
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
// Between blocks: what other blocks wrote before a fence of theirs, past this processor's own
// cache.
__device__ __forceinline__ void FenceDevice() { __threadfence(); }
__device__ __forceinline__ float LoadFresh(const float* from) { return __ldcg(from); }
__device__ __forceinline__ uint64_t NanoTime() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}
__device__ __forceinline__ void Relax() { __nanosleep(40); }

// Two bytes from an even address on, the first in the lower half.
__device__ __forceinline__ uint32_t LoadTwo(const uint8_t* bytes, uint32_t at) {
  return *reinterpret_cast<const uint16_t*>(bytes + at);
}

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

// 16 aligned bytes to shared memory, zeros if not `valid`, while the thread goes on. What was begun
// before a CopyCommit is there after a CopyWait that leaves only `later` commits open; for other
// threads, after a barrier besides.
template <typename T>
__device__ __forceinline__ void CopyAsync16(T* to, const T* from, bool valid) {
  const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void CopyCommit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <uint32_t later>
__device__ __forceinline__ void CopyWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(later) : "memory");
}

// Four blocks of 8 by 8 elements of 16 bits: lane l says where row l % 8 of block l / 8 begins, and
// has in r[i] of block i the elements of row l / 4 and columns 2 (l % 4) and the next.
template <typename T>
__device__ __forceinline__ void LoadBlocks(const T* row, uint32_t (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}

// A block of 16 by 16 elements of 16 bits in shared memory, rows `stride` apart, as the warp's
// tensor cores take it: lane l has in r[i] the elements of row l / 4 + 8 (i % 2) and columns
// 2 (l % 4) + 8 (i / 2) and the next. That is operand A of Mma; as operand B, whose columns are the
// block's rows, r[0] and r[2] are rows 0 to 7, r[1] and r[3] rows 8 to 15.
template <typename T>
__device__ __forceinline__ void LoadMatrix(SharedSpan<T> block, uint32_t stride, uint32_t (&r)[4]) {
  const uint32_t lane = threadIdx.x % 32;
  LoadBlocks(block + lane % 16 * stride + lane / 16 * 8, r);
}
// 8 rows of 32 elements, of which there are `count`, others are the first: in r[i] the elements of
// row l / 4 and columns 2 (l % 4) + 8 i and the next.
template <typename T>
__device__ __forceinline__ void LoadRows(SharedSpan<T> block, uint32_t stride, uint32_t count,
                                         uint32_t (&r)[4]) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t row = lane % 8 < count ? lane % 8 : 0;
  LoadBlocks(block + row * stride + lane / 8 * 8, r);
}
// The block transposed: in r[i] rows 2 (l % 4) + 8 (i % 2) and the next of column l / 4 + 8 (i /
// 2). As operand B, whose rows are the block's: r[0] and r[1] are columns 0 to 7, r[2] and r[3] 8
// to 15.
template <typename T>
__device__ __forceinline__ void LoadMatrixTransposed(SharedSpan<T> block, uint32_t stride,
                                                     uint32_t (&r)[4]) {
  const uint32_t lane = threadIdx.x % 32;
  const T* const row = block + lane % 16 * stride + lane / 16 * 8;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}

// The warp's d += a b, of 16 x 16 and 16 x 8 elements: lane l has in d[e] row l / 4 + 8 (e / 2),
// column 2 (l % 4) + e % 2. A row of d depends on that row of a alone.
template <typename T>
__device__ __forceinline__ void Mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1) {
  if constexpr (std::is_same_v<T, Half>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// Of this platform's name: one program may hold both.
namespace FLOTILLA_PLATFORM {

// What is asked and said of a kernel once, of the device that the process has first.
struct KernelSetup {
  // Whether it may begin before the one before it is done: whether its code, which may have been
  // compiled for an older device, has AfterPrevious.
  bool may_start_early = false;
  uint32_t shared_bytes = 32 << 10;  // that a launch may ask for
};

// A processor runs kernels side by side only while all of them share its memory out alike, so all
// want as much of it as there is for blocks.
inline const KernelSetup& SetUp(const void* kernel, uint32_t shared_bytes) {
  constexpr int kFirstEarly = 90;
  thread_local std::unordered_map<const void*, KernelSetup> setups;
  const auto [found, is_new] = setups.try_emplace(kernel);
  KernelSetup& setup = found->second;
  if (is_new) {
    cudaFuncAttributes code = {};
    cudaFuncGetAttributes(&code, kernel);
    setup.may_start_early = code.ptxVersion >= kFirstEarly;
    cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                         cudaSharedmemCarveoutMaxShared);
  }
  if (shared_bytes > setup.shared_bytes) {
    setup.shared_bytes = shared_bytes;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         static_cast<int>(shared_bytes));
  }
  return setup;
}

template <typename Args>
void Launch(const LaunchShape& shape, void (*kernel)(Args), const Args& args, Stream stream) {
  const KernelSetup& setup = SetUp(reinterpret_cast<const void*>(kernel), shape.shared_bytes);
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(shape.grid_x, shape.grid_y);
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &early;
  config.numAttrs = setup.may_start_early ? 1 : 0;
  // Its error is the next cudaGetLastError's.
  static_cast<void>(cudaLaunchKernelEx(&config, kernel, args));
}

}  // namespace FLOTILLA_PLATFORM
}  // namespace flotilla::cuda
