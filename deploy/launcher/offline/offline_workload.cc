#include "deploy/launcher/offline/offline_workload.h"

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

StatusOr<std::vector<OfflineRequest>> MakeOfflineRequests(const OfflineWorkload& workload,
                                                          uint32_t vocab_size,
                                                          uint32_t max_model_len) {
  const uint64_t longest = uint64_t{workload.input_len.max} + workload.output_len.max;
  if (longest > max_model_len) {
    return absl::InvalidArgumentError(
        StrCat("--input-len and --output-len: ", workload.input_len.max, " + ",
               workload.output_len.max, " tokens are more than the context of ", max_model_len));
  }
  std::mt19937_64 random(workload.seed);
  std::vector<OfflineRequest> requests(workload.requests);
  for (OfflineRequest& request : requests) {
    request.prompt.resize(DrawLength(&random, workload.input_len));
    for (int32_t& id : request.prompt) id = static_cast<int32_t>(Draw(&random, vocab_size));
    request.output_len = DrawLength(&random, workload.output_len);
  }
  return requests;
}

}  // namespace flotilla
