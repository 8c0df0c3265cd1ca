#include "common/base/request_id.h"

#include <sys/random.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>

#include "common/base/check.h"

namespace flotilla {

bool IsRequestId(std::string_view text) {
  static constexpr std::string_view kMarks = "-_.:/+=@~";
  return !text.empty() && text.size() <= kMaxRequestIdBytes &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  kMarks.find(c) != std::string_view::npos;
         });
}

std::string NewRequestId() {
  uint64_t words[2];
  CHECK(getrandom(words, sizeof(words), 0) == static_cast<ssize_t>(sizeof(words)));
  char text[40];
  std::snprintf(text, sizeof(text), "req_%016llx%016llx", static_cast<unsigned long long>(words[0]),
                static_cast<unsigned long long>(words[1]));
  return text;
}

}  // namespace flotilla
