// libFuzzer: any bytes as the head of a GGUF, as a replica sends it to routers. A tokenizer that
// can be made of it encodes and decodes, and each of its ids is one of its vocabulary.
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/check.h"
#include "common/checkpoint/gguf.h"
#include "common/text/incremental_detokenizer.h"
#include "common/text/tokenizer.h"

namespace flotilla {
namespace {

constexpr std::string_view kText =
    "Hello the hello  world, 12 ab\n\u00e9e\u0301<|im_end|><|e<pad> \U0001F600'll \u3042";

// The last word is so long that its pieces are merged in another way.
std::string Text() { return std::string(kText) + " " + std::string(300, 'h') + "ethe"; }

std::string InPieces(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  IncrementalDetokenizer detokenizer(&tokenizer, /*skip_special=*/false,
                                     IncrementalDetokenizer::Begins::kSequence);
  std::string text;
  for (TokenId id : ids) text += detokenizer.Push(id);
  return text + detokenizer.Finish();
}

void CheckTokenizer(const Tokenizer& tokenizer) {
  const auto known = [&](TokenId id) {
    return id >= 0 && static_cast<uint32_t>(id) < tokenizer.vocab_size();
  };
  for (TokenId id : tokenizer.eos_ids()) CHECK(known(id));
  CHECK(tokenizer.bos_id() == -1 || known(tokenizer.bos_id()));
  for (bool parse_special : {false, true}) {
    const auto ids = tokenizer.Encode(Text(), {.parse_special = parse_special});
    CHECK(ids.ok() || absl::IsResourceExhausted(ids.status()));
    if (!ids.ok()) continue;
    for (TokenId id : *ids) CHECK(known(id));
    const std::string text = tokenizer.Decode(*ids, /*skip_special=*/false);
    CHECK(InPieces(tokenizer, *ids) == text);
    CHECK(tokenizer.Decode(*ids, /*skip_special=*/true).size() <= text.size());
  }
  CHECK(!tokenizer.Encode("\xff").ok());
  CHECK(tokenizer.TokenBytes(-1).empty());
  CHECK(tokenizer.TokenBytes(static_cast<TokenId>(tokenizer.vocab_size())).empty());
}

}  // namespace
}  // namespace flotilla

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flotilla;
  const auto gguf = GgufFile::Parse({data, size}, {.metadata_only = true});
  if (!gguf.ok()) return 0;
  const auto tokenizer = CreateTokenizer(*gguf);
  if (tokenizer.ok()) CheckTokenizer(**tokenizer);
  return 0;
}
