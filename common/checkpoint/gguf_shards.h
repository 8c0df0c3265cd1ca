// A GGUF in several files, as llama-gguf-split makes them: NAME-00001-of-00003.gguf and so on. The
// first has the metadata; each has a table of its own tensors. Every file says its number and how
// many there are (split.no, split.count).
//
// Threads: pure functions and constant objects. Ownership: GgufShards owns the mappings, which the
// views of its file point into. Errors: InvalidArgument or NotFound, naming the file and the fix.
#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/checkpoint/gguf.h"

namespace flotilla {

// The files of the model whose first is `path`, by its name alone: {path} if that is no shard's.
std::vector<std::string> GgufShardPaths(const std::string& path);

// A file's name without its end and its number: "m" of m.gguf and of m-00001-of-00003.gguf; other
// names as they are.
std::string GgufStem(const std::string& name);

// OK for a file that is whole or the first of several; otherwise an error that names the first.
Status CheckFirstShard(const GgufFile& gguf, const std::string& path);

struct GgufShards {
  std::vector<MappedFile> files;
  GgufFile gguf;  // the first's metadata, the tensors of all

  static StatusOr<GgufShards> Open(const std::string& path);
};

}  // namespace flotilla
