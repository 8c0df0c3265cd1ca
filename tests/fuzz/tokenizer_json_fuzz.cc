// libFuzzer: any bytes as a tokenizer.json. What is taken must encode and decode.
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "common/base/check.h"
#include "common/base/utf8.h"
#include "common/text/tokenizer_json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto tokenizer = flotilla::CreateTokenizerFromJson(
      std::string_view(reinterpret_cast<const char*>(data), size));
  if (!tokenizer.ok()) {
    CHECK(tokenizer.status().code() == absl::StatusCode::kInvalidArgument);
    return 0;
  }
  constexpr std::string_view kText = "Hello  12 ▁ab\n\u00e9e\u0301<|end|>[tool] \U0001F600'll";
  for (bool parse_special : {false, true}) {
    const auto ids = (*tokenizer)->Encode(kText, {.parse_special = parse_special});
    if (!ids.ok()) continue;
    for (flotilla::TokenId id : *ids)
      CHECK(id >= 0 && static_cast<uint32_t>(id) < (*tokenizer)->vocab_size());
    CHECK(!flotilla::FindInvalidUtf8((*tokenizer)->Decode(*ids, false)).has_value());
  }
  return 0;
}
