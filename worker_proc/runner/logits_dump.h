// --logits-dump: raw logits to a file, for the tests against the reference model.
//
// Record, native endian: u32 slot, u32 position, u32 vocab, u32 0, f32 logits[vocab]; the logits of
// the token at `position`, that is about position + 1. Appended in the order of the steps,
// unbuffered across records. Threads: one. Errors: the file can't be opened or written.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace flotilla {

class LogitsDump {
 public:
  static StatusOr<LogitsDump> Open(const std::string& path);
  Status Append(uint32_t slot, uint32_t position, std::span<const float> logits);

 private:
  explicit LogitsDump(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace flotilla
