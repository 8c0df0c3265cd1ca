#include "deploy/launcher/workload/random_workload.h"

#include <charconv>
#include <random>

namespace flotilla {
namespace {

bool ParseLength(std::string_view text, uint32_t* length) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *length);
  return error == std::errc() && end == text.data() + text.size() && *length > 0;
}

// Within [0, count), count below 2^32: the multiply-shift of Lemire (2019), whose bias of
// count / 2^32 is no matter here. std::uniform_int_distribution differs between libraries.
uint32_t Draw(std::mt19937_64* random, uint64_t count) {
  return static_cast<uint32_t>(((*random)() >> 32) * count >> 32);
}

uint32_t DrawLength(std::mt19937_64* random, const LengthRange& range) {
  return range.min + Draw(random, uint64_t{range.max} - range.min + 1);
}

}  // namespace

StatusOr<LengthRange> ParseLengthRange(std::string_view flag, std::string_view text) {
  const size_t colon = text.find(':');
  const std::string_view low = text.substr(0, colon);
  const std::string_view high = colon == std::string_view::npos ? low : text.substr(colon + 1);
  LengthRange range;
  if (!ParseLength(low, &range.min) || !ParseLength(high, &range.max) || range.min > range.max) {
    return absl::InvalidArgumentError(
        StrCat(flag, ": '", text, "' is neither a length nor a range MIN:MAX of tokens"));
  }
  return range;
}

StatusOr<std::vector<RandomRequest>> MakeRandomRequests(const RandomWorkload& workload,
                                                        uint32_t vocab_size,
                                                        uint32_t max_model_len) {
  const uint64_t prompt = uint64_t{workload.shared_prefix} + workload.input_len.max;
  if (prompt + workload.output_len.max > max_model_len) {
    return absl::InvalidArgumentError(
        StrCat("--input-len and --output-len: ", prompt, " + ", workload.output_len.max,
               " tokens are more than the context of ", max_model_len));
  }
  std::mt19937_64 random(workload.seed);
  std::vector<RandomRequest> requests(workload.requests);
  std::mt19937_64 prefix_random(~workload.seed);
  std::vector<int32_t> prefix(workload.shared_prefix);
  for (int32_t& id : prefix) id = static_cast<int32_t>(Draw(&prefix_random, vocab_size));
  for (RandomRequest& request : requests) {
    request.prompt = prefix;
    request.prompt.resize(prefix.size() + DrawLength(&random, workload.input_len));
    for (size_t i = prefix.size(); i < request.prompt.size(); ++i)
      request.prompt[i] = static_cast<int32_t>(Draw(&random, vocab_size));
    request.output_len = DrawLength(&random, workload.output_len);
  }
  return requests;
}

}  // namespace flotilla
