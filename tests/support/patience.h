// How long a test waits for what must come: long enough for a busy machine, and for a sanitizer,
// under which a tokenizer alone takes half a minute to build. Nothing takes so long unless it
// fails.
#pragma once

#include <chrono>

namespace flotilla {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;  // a tenth of a repetition is enough then
#else
inline constexpr bool kSanitized = false;
#endif
inline constexpr std::chrono::seconds kPatience{kSanitized ? 180 : 20};

}  // namespace flotilla
