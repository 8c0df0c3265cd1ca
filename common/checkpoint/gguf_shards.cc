#include "common/checkpoint/gguf_shards.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "common/checkpoint/gguf_cursor.h"

namespace flotilla {
namespace {

using internal::Quote;

constexpr std::string_view kFirst = "-00001-of-";
constexpr std::string_view kEnd = ".gguf";
constexpr size_t kDigits = 5;
constexpr uint64_t kMaxShards = 1024;

struct Split {
  uint64_t number = 0;  // from 0
  uint64_t count = 1;
};

StatusOr<Split> SplitOf(const GgufFile& gguf) {
  Split split;
  if (gguf.metadata().contains("split.no")) {
    ASSIGN_OR_RETURN(split.number, gguf.GetUint("split.no"));
  }
  if (gguf.metadata().contains("split.count")) {
    ASSIGN_OR_RETURN(split.count, gguf.GetUint("split.count"));
  }
  if (split.count == 0) split.count = 1;  // "not split", as some tools write it
  if (split.count > kMaxShards || split.number >= split.count) {
    return absl::InvalidArgumentError(StrCat("metadata split.no is ", split.number,
                                             " of split.count ", split.count, "; at most ",
                                             kMaxShards, " files, counted from 0"));
  }
  return split;
}

std::string ShardName(std::string_view stem, uint64_t number, uint64_t count) {
  return absl::StrFormat("%s-%05d-of-%05d.gguf", std::string(stem), number + 1, count);
}

StatusOr<GgufFile> ParseShard(const MappedFile& file, uint64_t number, uint64_t count) {
  ASSIGN_OR_RETURN(GgufFile gguf, GgufFile::Parse(file.bytes(), {.metadata_only = false}));
  ASSIGN_OR_RETURN(const Split split, SplitOf(gguf));
  if (split.number != number || split.count != count) {
    return absl::InvalidArgumentError(
        StrCat("says that it is file ", split.number + 1, " of ", split.count, ", not ", number + 1,
               " of ", count, "; give all files of a model the names they came with"));
  }
  return gguf;
}

// How many files there are, of which this must be the first.
StatusOr<uint64_t> CountOfFirst(const GgufFile& gguf, const std::string& path) {
  ASSIGN_OR_RETURN(const Split split, SplitOf(gguf));
  if (split.number > 0) {
    return absl::InvalidArgumentError(StrCat("is file ", split.number + 1, " of a model in ",
                                             split.count, "; give the first, whose name ends in ",
                                             ShardName("", 0, split.count)));
  }
  if (split.count > 1 && GgufShardPaths(path).size() != split.count) {
    return absl::InvalidArgumentError(
        StrCat("is the first of a model in ", split.count, " files, so its name must end in ",
               ShardName("", 0, split.count), ", and the others must lie beside it"));
  }
  return split.count;
}

}  // namespace

std::vector<std::string> GgufShardPaths(const std::string& path) {
  const size_t tail = kFirst.size() + kDigits + kEnd.size();
  uint64_t count = 0;
  if (path.size() > tail && path.ends_with(kEnd) &&
      path.compare(path.size() - tail, kFirst.size(), kFirst) == 0 &&
      absl::SimpleAtoi(path.substr(path.size() - kEnd.size() - kDigits, kDigits), &count) &&
      count >= 1 && count <= kMaxShards) {
    const std::string_view stem = std::string_view(path).substr(0, path.size() - tail);
    std::vector<std::string> paths;
    for (uint64_t i = 0; i < count; ++i) paths.push_back(ShardName(stem, i, count));
    return paths;
  }
  return {path};
}

std::string GgufStem(const std::string& name) {
  if (!name.ends_with(kEnd)) return name;
  const size_t number = GgufShardPaths(name).size() > 1 ? kFirst.size() + kDigits : 0;
  return name.substr(0, name.size() - kEnd.size() - number);
}

Status CheckFirstShard(const GgufFile& gguf, const std::string& path) {
  return CountOfFirst(gguf, path).status();
}

StatusOr<GgufShards> GgufShards::Open(const std::string& path) {
  GgufShards shards;
  ASSIGN_OR_RETURN(MappedFile first, MappedFile::Open(path));
  StatusOr<GgufFile> gguf = GgufFile::Parse(first.bytes(), {.metadata_only = false});
  if (!gguf.ok()) return Annotate(gguf.status(), path);
  const StatusOr<uint64_t> count = CountOfFirst(*gguf, path);
  if (!count.ok()) return Annotate(count.status(), path);
  shards.gguf = *std::move(gguf);
  shards.files.push_back(std::move(first));
  if (*count == 1) return shards;
  const std::vector<std::string> paths = GgufShardPaths(path);
  for (uint64_t i = 1; i < *count; ++i) {
    ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(paths[i]));
    StatusOr<GgufFile> shard = ParseShard(file, i, *count);
    const Status joined = shard.ok() ? shards.gguf.Join(*shard) : shard.status();
    if (!joined.ok()) return Annotate(joined, paths[i]);
    shards.files.push_back(std::move(file));
  }
  if (!shards.gguf.metadata().contains("split.tensors.count")) return shards;
  ASSIGN_OR_RETURN(const uint64_t expected, shards.gguf.GetUint("split.tensors.count"));
  if (expected != shards.gguf.tensors().size()) {
    return absl::InvalidArgumentError(StrCat(path, ": its files have ",
                                             shards.gguf.tensors().size(), " tensors but ",
                                             expected, " are told; download the model again"));
  }
  return shards;
}

}  // namespace flotilla
