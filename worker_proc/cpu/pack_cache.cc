#include "worker_proc/cpu/pack_cache.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_format.h"
#include "common/base/default_model.h"
#include "common/base/flags.h"
#include "common/base/log.h"
#include "common/base/xxh64.h"
#include "common/checkpoint/gguf_shards.h"

namespace flotilla::cpu {
namespace {

constexpr size_t kSampleBytes = 64;  // of a tensor, at its begin and at its end

// By the file's name alone: a model's folder may be mounted in several places.
std::string StatLine(const std::string& path) {
  const std::string name = std::filesystem::path(path).filename().string();
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return StrCat(name, " gone\n");
  return StrCat(name, " ", info.st_size, " ", info.st_mtim.tv_sec, ".", info.st_mtim.tv_nsec, "\n");
}

std::vector<std::string> FilesOf(const std::string& model_path) {
  std::error_code error;
  if (!std::filesystem::is_directory(model_path, error)) return GgufShardPaths(model_path);
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(model_path, error)) {
    const auto extension = entry.path().extension();
    if (extension == ".safetensors" || extension == ".json") files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<std::string> PathsOf(const PackCacheOptions& options, const std::string& type) {
  if (options.dir == "off" || options.model_identity.empty()) return {};
  std::filesystem::path model(options.model_path);
  if (!model.has_filename()) model = model.parent_path();  // "models/a/"
  const std::string name = model.filename().string();
  const std::string what = StrCat(".", type, ".", options.rank, "of", options.ranks, ".pack");
  const std::string elsewhere =
      StrCat(name, ".", absl::StrFormat("%016x", Xxh64(model.string())), what);
  if (options.dir != "auto") return {StrCat(options.dir, "/", elsewhere)};
  std::error_code error;
  const bool folder = std::filesystem::is_directory(model, error);
  std::vector<std::string> paths = {((folder ? model : model.parent_path()) / (name + what))};
  const StatusOr<std::string> user = UserCacheDir();
  if (user.ok()) paths.push_back(StrCat(*user, "/", elsewhere));
  return paths;
}

}  // namespace

std::string ModelIdentity(const std::string& path, const Checkpoint& checkpoint) {
  std::string text;
  for (const std::string& file : FilesOf(path)) text += StatLine(file);
  for (const TensorView& view : checkpoint.tensors()) {
    const size_t sample = std::min(kSampleBytes, view.data.size());
    const uint64_t begin = Xxh64(view.data.data(), sample);
    uint64_t both = Xxh64(view.data.data() + view.data.size() - sample, sample, begin);
    if (view.scales != nullptr) {
      const std::vector<float>& factors = view.scales->factors;
      both = Xxh64(factors.data(), factors.size() * sizeof(float), both);
    }
    absl::StrAppend(&text, absl::string_view(view.name.data(), view.name.size()), " ",
                    static_cast<uint32_t>(view.dtype), " ", view.rows, " ", view.cols, " ", both,
                    "\n");
  }
  return absl::StrFormat("%016x", Xxh64(text));
}

PackCache::PackCache(const PackCacheOptions& options, const std::string& type, ThreadPool* pool,
                     const Heartbeat& heartbeat)
    : options_(options), pool_(pool), heartbeat_(heartbeat), paths_(PathsOf(options, type)) {
  contents_.key =
      StrCat("flotilla ", options.model_identity, " ", type, " ", options.rank, "/", options.ranks);
}

PackCache::~PackCache() {
  stop_.store(true, std::memory_order_relaxed);
  Wait();
}

void PackCache::Open() {
  opened_ = true;
  for (const std::string& path : paths_) {
    StatusOr<PackFile> file = PackFile::Open(path, {contents_.key, pool_, heartbeat_});
    if (file.ok()) {
      Log().info("packed weights found {} {}", Kv("file", path), Kv("mapped", file->is_mapped()));
      file_.emplace(*std::move(file));
      return;
    }
    const std::string reason(file.status().message());
    if (absl::IsDataLoss(file.status())) {
      Log().warn("packed weights are packed anew {} {}", Kv("file", path), Kv("reason", reason));
    } else if (!absl::IsNotFound(file.status())) {
      Log().info("packed weights are not used {} {}", Kv("file", path), Kv("reason", reason));
    }
  }
}

const std::byte* PackCache::Next(const PackPart& part) {
  if (!opened_) Open();
  const size_t i = contents_.parts.size();
  if (!file_ || i >= file_->size() || file_->part(i) != part) return nullptr;
  contents_.parts.push_back(part);
  contents_.data.push_back(file_->data(i));
  bytes_from_file_ += part.bytes;
  return file_->data(i);
}

void PackCache::Add(const PackPart& part, const std::byte* data) {
  contents_.parts.push_back(part);
  contents_.data.push_back(data);
  bytes_packed_ += part.bytes;
}

void PackCache::SaveInBackground() {
  if (paths_.empty() || bytes_packed_ == 0) return;
  if (options_.dir == "auto" && bytes_packed_ < options_.min_bytes) return;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  writer_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "pack-writer");
    setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 10);  // steps come first
    pool_->Unpin();
    Save();
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void PackCache::Save() {
  for (const std::string& path : paths_) {
    std::error_code error;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
    const Status status = WritePackFile(path, contents_, stop_);
    if (status.ok()) {
      Log().info("packed weights kept {} {}", Kv("file", path),
                 Kv("bytes", FormatBytes(bytes_from_file_ + bytes_packed_)));
      return;
    }
    Log().info("packed weights not kept {}", Kv("reason", std::string(status.message())));
    if (absl::IsCancelled(status) || absl::IsUnavailable(status)) return;
  }
}

void PackCache::Wait() {
  if (writer_.joinable()) writer_.join();
}

}  // namespace flotilla::cpu
