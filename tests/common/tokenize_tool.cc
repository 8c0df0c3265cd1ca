// The tokenizer as a filter, for tests in other languages (tokenizer_live_test.py).
//
//   tokenize_tool MODEL.gguf|TOKENIZER.json < requests > answers
// A request is a byte for the operation, a u32 length and that many bytes; an answer is a u32
// length and that many bytes, or the length 0xFFFFFFFF and then an error message in the same form.
// All numbers are little-endian.
//   'e'  text → its ids as i32, without bos; control tokens in the text become ids
//   'p'  the same, control tokens stay text
//   'b'  the same as 'e', with what add_special adds
//   'd'  ids as i32 → Decode(skip_special = false)
//   's'  ids as i32 → Decode(skip_special = true)
//   'i'  ids as i32 → the pieces of IncrementalDetokenizer for a whole sequence, joined
//   'r'  ids as i32 → the pieces of one for what follows a prompt, joined
//   't'  text → encoding it: CPU nanoseconds, number of ids, and bytes that the text's ids decode
//        to, as i64
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/checkpoint/gguf.h"
#include "common/text/incremental_detokenizer.h"
#include "common/text/tokenizer.h"
#include "common/text/tokenizer_json.h"

namespace flotilla {
namespace {

bool ReadExactly(void* out, size_t bytes) { return std::fread(out, 1, bytes, stdin) == bytes; }

void WriteBytes(std::string_view bytes) {
  const uint32_t size = static_cast<uint32_t>(bytes.size());
  std::fwrite(&size, sizeof(size), 1, stdout);
  std::fwrite(bytes.data(), 1, bytes.size(), stdout);
}

// Of this thread, so that other work on the machine does not count.
int64_t CpuNanoseconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

StatusOr<std::string> TimedEncode(const Tokenizer& tokenizer, const std::string& text) {
  const int64_t start = CpuNanoseconds();
  ASSIGN_OR_RETURN(const std::vector<TokenId> ids, tokenizer.Encode(text));
  const int64_t numbers[] = {CpuNanoseconds() - start, static_cast<int64_t>(ids.size()),
                             static_cast<int64_t>(tokenizer.Decode(ids, true).size())};
  return std::string(reinterpret_cast<const char*>(numbers), sizeof(numbers));
}

StatusOr<std::string> Answer(const Tokenizer& tokenizer, char operation, const std::string& body) {
  if (operation == 'e' || operation == 'p' || operation == 'b') {
    Tokenizer::EncodeOptions options;
    options.parse_special = operation != 'p';
    options.add_special = operation == 'b';
    ASSIGN_OR_RETURN(const std::vector<TokenId> ids, tokenizer.Encode(body, options));
    return std::string(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(TokenId));
  }
  if (operation == 't') return TimedEncode(tokenizer, body);
  std::vector<TokenId> ids(body.size() / sizeof(TokenId));
  if (!ids.empty()) std::memcpy(ids.data(), body.data(), ids.size() * sizeof(TokenId));
  if (operation == 'd' || operation == 's') return tokenizer.Decode(ids, operation == 's');
  if (operation != 'i' && operation != 'r') return absl::InvalidArgumentError("unknown operation");
  using Begins = IncrementalDetokenizer::Begins;
  IncrementalDetokenizer detokenizer(&tokenizer, /*skip_special=*/false,
                                     operation == 'i' ? Begins::kSequence : Begins::kAfterPrompt);
  std::string text;
  for (TokenId id : ids) text += detokenizer.Push(id);
  return text + detokenizer.Finish();
}

StatusOr<std::unique_ptr<Tokenizer>> Open(const std::string& path) {
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  if (path.ends_with(".json")) {
    return CreateTokenizerFromJson(
        {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()});
  }
  ASSIGN_OR_RETURN(const GgufFile gguf, GgufFile::Parse(file.bytes(), {.metadata_only = true}));
  return CreateTokenizer(gguf);
}

int Run(const char* path) {
  const StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Open(path);
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
    std::fprintf(stderr, "usage: tokenize_tool MODEL.gguf|TOKENIZER.json < requests > answers\n");
    return 2;
  }
  return flotilla::Run(argv[1]);
}
