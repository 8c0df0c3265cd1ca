// Counts heap allocations of all threads of this program, C's and C++'s, by standing in for malloc
// (glibc's own does the work). For programs without a sanitizer, which has a malloc of its own.
// Include it in one file of a program. Threads: any.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace flotilla::testing {

inline std::atomic<uint64_t> num_allocations{0};

}  // namespace flotilla::testing

extern "C" {
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* memory, size_t size);
void* __libc_memalign(size_t alignment, size_t size);

void* malloc(size_t size) noexcept {
  flotilla::testing::num_allocations.fetch_add(1);
  return __libc_malloc(size);
}
void* calloc(size_t count, size_t size) noexcept {
  flotilla::testing::num_allocations.fetch_add(1);
  return __libc_calloc(count, size);
}
void* realloc(void* memory, size_t size) noexcept {
  flotilla::testing::num_allocations.fetch_add(1);
  return __libc_realloc(memory, size);
}
void* aligned_alloc(size_t alignment, size_t size) noexcept {
  flotilla::testing::num_allocations.fetch_add(1);
  return __libc_memalign(alignment, size);
}
}
