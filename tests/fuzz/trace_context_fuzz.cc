// libFuzzer: any bytes as the header traceparent. What is taken is a trace's and a span's id, and
// is what version 00 of the header would say of them.
#include "common/base/check.h"
#include "router/base/trace_context.h"
#include "tests/fuzz/fuzz_input.h"

namespace flotilla {
namespace {

bool IsId(std::string_view id, size_t digits) {
  return id.size() == digits && id.find_first_not_of("0123456789abcdef") == id.npos &&
         id.find_first_not_of('0') != id.npos;
}

}  // namespace
}  // namespace flotilla

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flotilla;
  fuzz::FuzzInput input(data, size);
  const fuzz::Piece header = input.Rest();
  const auto given = ParseTraceparent(header.view());
  const auto sampled = SampleTrace(header.view(), /*ratio=*/1);
  if (given.has_value()) {
    CHECK(IsId(given->trace_id, 32) && IsId(given->parent_span_id, 16));
    const std::string again = "00-" + given->trace_id + "-" + given->parent_span_id + "-" +
                              (given->sampled ? "01" : "00");
    CHECK(ParseTraceparent(again) == given);
    CHECK(sampled == (given->sampled ? given : std::nullopt));
  } else {
    CHECK(IsId(sampled->trace_id, 32) && sampled->parent_span_id.empty() && sampled->sampled);
    CHECK(IsId(NewSpanId(), 16));
  }
  return 0;
}
