#include "common/base/request_id.h"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "common/base/check.h"

namespace flotilla {
namespace {

// The kernel's, of which a thread takes some at once.
uint64_t RandomWord() {
  thread_local std::array<uint64_t, 32> words;
  thread_local size_t left = 0;
  if (left == 0) {
    CHECK(getrandom(words.data(), sizeof(words), 0) == static_cast<ssize_t>(sizeof(words)));
    left = words.size();
  }
  return words[--left];
}

}  // namespace

bool IsRequestId(std::string_view text) {
  static constexpr std::string_view kMarks = "-_.:/+=@~";
  return !text.empty() && text.size() <= kMaxRequestIdBytes &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  kMarks.find(c) != std::string_view::npos;
         });
}

void AppendHex(uint64_t word, std::string* out) {
  for (int shift = 60; shift >= 0; shift -= 4)
    out->push_back("0123456789abcdef"[word >> shift & 15]);
}

std::string NewRequestId() {
  std::string id = "req_";
  AppendHex(RandomWord(), &id);
  AppendHex(RandomWord(), &id);
  return id;
}

}  // namespace flotilla
