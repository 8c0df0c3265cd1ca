// Memory that this process can still get: the machine's, and what its cgroups (v2 or v1) leave.
//
// Units: bytes. Threads: any. Errors: none; a file that is absent limits nothing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

namespace flotilla {

// root: where proc/ and sys/ are found; tests give their own.
uint64_t AvailableMemoryBytes(const std::string& root = "/");

// The tightest limit of its cgroups; none if there is none below the machine's memory.
std::optional<uint64_t> MemoryLimitBytes(const std::string& root = "/");

// What the processes of a replica take besides weights and KV cache: programs, libraries, heaps,
// buffers (docs/deploying.md; docs/sizing.md has it measured).
inline constexpr uint64_t kReplicaOverheadBytes = uint64_t{300} << 20;
// Fewer bytes of weights a worker are packed in no time. From so many on they may be mapped from a
// file (worker_proc/cpu/pack_cache.h), which is one copy for all replicas.
inline constexpr uint64_t kLeastPackBytes = uint64_t{1} << 30;
// The KV cache that nobody chose, where one context does not take more. Fresh memory can take
// seconds a GiB to touch, and the start waits for it.
inline constexpr uint64_t kAutomaticKvBytes = uint64_t{512} << 20;
// available: when all else is loaded. May be too little for one context, which is refused.
constexpr uint64_t AutomaticKvBytes(uint64_t available, uint64_t context_bytes) {
  return std::min(available / 4, std::max(kAutomaticKvBytes, context_bytes));
}

}  // namespace flotilla
