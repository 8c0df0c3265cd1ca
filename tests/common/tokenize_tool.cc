// The tokenizer as a filter, for tests in other languages (tokenizer_live_test.py).
//
//   tokenize_tool MODEL.gguf < requests > answers
// A request is a byte for the operation, a u32 length and that many bytes; an answer is a u32
// length and that many bytes, or the length 0xFFFFFFFF and then an error message in the same form.
// All numbers are little-endian.
//   'e'  text → its ids as i32; control tokens in the text become ids
//   'p'  the same, control tokens stay text
//   'd'  ids as i32 → Decode(skip_special = false)
//   's'  ids as i32 → Decode(skip_special = true)
//   'i'  ids as i32 → the pieces of IncrementalDetokenizer, joined
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/checkpoint/gguf.h"
#include "common/text/incremental_detokenizer.h"
#include "common/text/tokenizer.h"

namespace flotilla {
namespace {

bool ReadExactly(void* out, size_t bytes) { return std::fread(out, 1, bytes, stdin) == bytes; }

void WriteBytes(std::string_view bytes) {
  const uint32_t size = static_cast<uint32_t>(bytes.size());
  std::fwrite(&size, sizeof(size), 1, stdout);
  std::fwrite(bytes.data(), 1, bytes.size(), stdout);
}

StatusOr<std::string> Answer(const Tokenizer& tokenizer, char operation, const std::string& body) {
  if (operation == 'e' || operation == 'p') {
    Tokenizer::EncodeOptions options;
    options.parse_special = operation == 'e';
    ASSIGN_OR_RETURN(const std::vector<TokenId> ids, tokenizer.Encode(body, options));
    return std::string(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(TokenId));
  }
  std::vector<TokenId> ids(body.size() / sizeof(TokenId));
  std::memcpy(ids.data(), body.data(), ids.size() * sizeof(TokenId));
  if (operation == 'd' || operation == 's') return tokenizer.Decode(ids, operation == 's');
  if (operation != 'i') return absl::InvalidArgumentError("unknown operation");
  IncrementalDetokenizer detokenizer(&tokenizer, /*skip_special=*/false);
  std::string text;
  for (TokenId id : ids) text += detokenizer.Push(id);
  return text + detokenizer.Finish();
}

int Run(const char* path) {
  StatusOr<MappedFile> file = MappedFile::Open(path);
  StatusOr<GgufFile> gguf =
      file.ok() ? GgufFile::Parse(file->bytes(), {.metadata_only = true}) : file.status();
  StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      gguf.ok() ? CreateTokenizer(*gguf) : gguf.status();
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s: %s\n", path, tokenizer.status().ToString().c_str());
    return 2;
  }
  char operation;
  while (ReadExactly(&operation, 1)) {
    uint32_t size = 0;
    if (!ReadExactly(&size, sizeof(size))) return 1;
    std::string body(size, '\0');
    if (!ReadExactly(body.data(), size)) return 1;
    const StatusOr<std::string> answer = Answer(**tokenizer, operation, body);
    if (answer.ok()) {
      WriteBytes(*answer);
    } else {
      const uint32_t error = UINT32_MAX;
      std::fwrite(&error, sizeof(error), 1, stdout);
      WriteBytes(std::string(answer.status().message()));
    }
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace flotilla

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: tokenize_tool MODEL.gguf < requests > answers\n");
    return 2;
  }
  return flotilla::Run(argv[1]);
}
