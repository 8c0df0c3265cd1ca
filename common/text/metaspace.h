// SentencePiece's way to write a space in a vocabulary: ▁ (U+2581).
//
// Threads: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "absl/strings/str_replace.h"

namespace flotilla {

inline constexpr std::string_view kMetaspace = "\xe2\x96\x81";

// Every ▁ becomes a space.
inline std::string MetaspaceToBytes(std::string_view written) {
  return absl::StrReplaceAll({written.data(), written.size()},
                             {{{kMetaspace.data(), kMetaspace.size()}, " "}});
}

}  // namespace flotilla
