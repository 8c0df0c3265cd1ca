// Names of KV pages: a page's hash depends on all tokens up to its end and on the tenant, so that
// equal hashes mean equal prefixes. Scheduler (cache events) and router (where a prompt's pages
// are) compute the same.
//
// 64 bits without a secret: who makes two prompts collide misleads the choice of a replica and
// nothing else; what is cached is compared token by token. Threads: any. Errors: none.
#pragma once

#include <cstdint>
#include <string_view>

#include "common/base/xxh64.h"

namespace flotilla {

// What the first page follows.
inline uint64_t RootPageHash(std::string_view tenant) { return Xxh64(tenant, 0x666C6F74); }
inline uint64_t NextPageHash(uint64_t previous, const int32_t* tokens, uint32_t page_size) {
  return Xxh64(tokens, page_size * sizeof(int32_t), previous);
}

}  // namespace flotilla
