// How long a test waits for what must come: long enough for a busy machine, and for a sanitizer,
// under which a tokenizer alone takes half a minute to build. Nothing takes so long unless it
// fails.
#pragma once

#include <chrono>

namespace flotilla {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr std::chrono::seconds kPatience{180};
#else
inline constexpr std::chrono::seconds kPatience{20};
#endif

}  // namespace flotilla
