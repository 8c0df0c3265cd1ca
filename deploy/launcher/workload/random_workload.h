// The requests of `flotilla bench offline` and `bench serve`: prompts of random tokens and outputs
// of random lengths.
//
// Units: tokens. Pure: the same options give the same requests everywhere. Errors: InvalidArgument
// naming the flag. Source: the workload of nano-vllm's bench.py (lengths and ids drawn uniformly,
// no end of sequence), with a generator of our own.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace flotilla {

struct LengthRange {
  uint32_t min = 0, max = 0;  // both may be drawn
};
// "100:1024", or "128" for 128:128. At least 1.
StatusOr<LengthRange> ParseLengthRange(std::string_view flag, std::string_view text);

struct RandomWorkload {
  uint32_t requests = 64;
  LengthRange input_len, output_len;
  uint32_t shared_prefix = 0;  // that all prompts begin with, beside input_len
  uint64_t seed = 0;
};

struct RandomRequest {
  std::vector<int32_t> prompt;
  uint32_t output_len = 0;
};

// Every request must fit into max_model_len tokens.
StatusOr<std::vector<RandomRequest>> MakeRandomRequests(const RandomWorkload& workload,
                                                        uint32_t vocab_size,
                                                        uint32_t max_model_len);

}  // namespace flotilla
