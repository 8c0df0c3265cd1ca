// Memory that this process can still get: the machine's, and what its cgroups (v2 or v1) leave.
//
// Units: bytes. Threads: any. Errors: none; a file that is absent limits nothing.
#pragma once

#include <cstdint>
#include <string>

namespace flotilla {

// root: where proc/ and sys/ are found; tests give their own.
uint64_t AvailableMemoryBytes(const std::string& root = "/");

}  // namespace flotilla
