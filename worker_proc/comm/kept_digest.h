// A checkpoint's digest, kept in a file for the processes that a launcher starts again and again:
// hashing a large model takes as long as reading it.
//
// Threads: any; processes may share the file. Ownership: values. Errors: none: what can't be kept
// is computed each time.
#pragma once

#include <functional>
#include <string>

#include "common/checkpoint/checkpoint.h"

namespace flotilla {

// path: of the file; empty: nothing is kept. on_piece: as Checkpoint::Digest.
std::string KeptDigest(const Checkpoint& checkpoint, const std::string& path,
                       const std::function<void()>& on_piece);

}  // namespace flotilla
