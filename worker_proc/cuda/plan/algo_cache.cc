#include "worker_proc/cuda/plan/algo_cache.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>

#include "common/base/check.h"
#include "common/base/trusted_file.h"
#include "common/base/wire.h"
#include "common/base/xxh64.h"

namespace flotilla::cuda {
namespace {

constexpr uint64_t kMagic = 0x314f474c41544c46;  // "FLTALGO1"
constexpr uint32_t kVersion = 1;
constexpr uint32_t kMaxChoices = 1 << 16;
constexpr uint64_t kMaxBytes = uint64_t{16} << 20;

Status Damaged(const char* what) {
  return absl::DataLossError(StrCat("cache of algorithms: ", what));
}

}  // namespace

const GemmAlgo* AlgoCache::Find(const GemmKey& key) const {
  const auto at = choices_.find(key);
  return at == choices_.end() ? nullptr : &at->second;
}

void AlgoCache::Remember(const GemmKey& key, const GemmAlgo& algo) {
  if (choices_.size() >= kMaxChoices && !choices_.contains(key)) return;
  choices_[key] = algo;
  changed_ = true;
}

// Of body: key, then entries by rising GemmKey.
std::string AlgoCache::Build() const {
  std::string body;
  WireWriter writer(&body);
  writer.PutBytes(device_);
  writer.PutBytes(version_);
  writer.Put(static_cast<uint32_t>(choices_.size()));
  for (const auto& [key, algo] : choices_) {
    writer.Put(key);
    writer.Put(algo);
  }
  std::string bytes;
  WireWriter header(&bytes);
  header.Put(kMagic);
  header.Put(kVersion);
  header.Put(static_cast<uint32_t>(body.size()));
  header.Put(Xxh64(body));
  return bytes + body;
}

Status AlgoCache::Parse(std::string_view bytes) {
  WireReader header(bytes);
  const auto magic = header.Get<uint64_t>();
  const auto version = header.Get<uint32_t>();
  const auto size = header.Get<uint32_t>();
  const auto checksum = header.Get<uint64_t>();
  if (!header.ok() || magic != kMagic) return Damaged("it is none");
  if (version != kVersion) {
    return absl::FailedPreconditionError("cache of algorithms: of another version of ours");
  }
  const std::string_view body = bytes.substr(bytes.size() - header.remaining());
  if (body.size() != size) return Damaged("it is cut off or too long");
  if (Xxh64(body) != checksum) return Damaged("the checksum");
  WireReader reader(body);
  const std::string_view device = reader.GetBytes();
  const std::string_view library = reader.GetBytes();
  const auto count = reader.Get<uint32_t>();
  if (!reader.ok() || count > kMaxChoices) return Damaged("its sizes");
  if (device != device_ || library != version_) {
    return absl::FailedPreconditionError(StrCat("cache of algorithms: of ", device, " with ",
                                                library, ", not ", device_, " with ", version_));
  }
  std::map<GemmKey, GemmAlgo> choices;
  for (uint32_t i = 0; i < count && reader.ok(); ++i) {
    const auto key = reader.Get<GemmKey>();
    const auto algo = reader.Get<GemmAlgo>();
    choices[key] = algo;
  }
  if (!reader.AtEnd() || choices.size() != count) return Damaged("its entries");
  choices_ = std::move(choices);
  changed_ = false;
  return OkStatus();
}

Status AlgoCache::Load(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return absl::NotFoundError(StrCat("no cache of algorithms in ", path));
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return Damaged("it is gone");
  RETURN_IF_ERROR(CheckTrusted(info));
  const std::streamoff size = file.tellg();
  if (size < 0 || static_cast<uint64_t>(size) > kMaxBytes) return Damaged("its size");
  std::string bytes(static_cast<size_t>(size), '\0');
  file.seekg(0);
  if (!file.read(bytes.data(), size)) return Damaged("it can't be read");
  return Parse(bytes);
}

Status AlgoCache::Save(const std::string& path) {
  // A name of its own: of several that write at once, the last rename counts, and each is whole.
  const std::string temporary = StrCat(path, ".", getpid(), ".tmp");
  const std::string bytes = Build();
  const auto failed = [&](const char* what) {
    Status status =
        absl::PermissionDeniedError(StrCat(what, " ", temporary, ": ", std::strerror(errno)));
    unlink(temporary.c_str());
    return status;
  };
  std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
  if (!file) return failed("can't create");
  if (!file.write(bytes.data(), static_cast<std::streamsize>(bytes.size())).flush()) {
    return failed("can't write");
  }
  file.close();
  if (rename(temporary.c_str(), path.c_str()) != 0) return failed("can't rename");
  changed_ = false;
  return OkStatus();
}

uint32_t WeightCopies(uint64_t weight_bytes, uint64_t l2_bytes) {
  CHECK(weight_bytes > 0);
  // Between two uses of a copy, the others take twice the cache: replacement is not exact. But
  // thousands of copies of a matrix that launches decide about take longer than all its products.
  constexpr uint64_t kMostCopies = 256;
  const uint64_t copies = 1 + (2 * l2_bytes + weight_bytes - 1) / weight_bytes;
  return static_cast<uint32_t>(std::min(copies, kMostCopies));
}

}  // namespace flotilla::cuda
