#include "router/fleet/tokenizer_cache.h"

#include <boost/asio/post.hpp>
#include <utility>

#include "common/base/log.h"
#include "router/fleet/collect_call.h"

namespace flotilla {
namespace {

// A vocabulary of a million tokens with its merges stays well below.
constexpr uint64_t kMaxTokenizerBytes = 256ull << 20;

}  // namespace

void TokenizerCache::Get(const v1::ModelFile& file, std::shared_ptr<v1::Engine::Stub> stub,
                         Callback callback) {
  Entry& entry = entries_[file.sha256()];
  if (entry.model.has_value()) {
    boost::asio::post(executor_,
                      [callback = std::move(callback), model = *entry.model] { callback(model); });
    return;
  }
  entry.waiting.push_back({file, std::move(stub), std::move(callback)});
  if (entry.waiting.size() == 1) Fetch(entry.waiting.front());
}

void TokenizerCache::Fetch(const Waiting& first) {
  const v1::ModelFile& file = first.file;
  const std::shared_ptr<v1::Engine::Stub> stub = first.stub;
  if (file.bytes() > kMaxTokenizerBytes) {
    boost::asio::post(executor_, [this, sha256 = file.sha256()] {
      Finish(sha256, absl::ResourceExhaustedError("the replica's tokenizer file is too large"));
    });
    return;
  }
  auto request = std::make_shared<v1::FetchModelFileRequest>();
  request->set_sha256(file.sha256());
  auto bytes = std::make_shared<std::string>();
  bytes->reserve(file.bytes());
  auto take = [bytes, limit = file.bytes()](v1::FileChunk& chunk) {
    if (bytes->size() + chunk.data().size() > limit) return false;
    bytes->append(chunk.data());
    return true;
  };
  auto done = [this, bytes, request, stub, sha256 = file.sha256()](const grpc::Status& status) {
    if (status.ok()) {
      Log().debug("tokenizer fetched {}", Kv("bytes", bytes->size()));
      Build(sha256, bytes);
    } else {
      Finish(sha256, absl::UnavailableError(
                         StrCat("can't fetch the tokenizer file: ", status.error_message())));
    }
  };
  CollectCall<v1::FileChunk>::Start(
      [&](grpc::ClientContext* context, grpc::ClientReadReactor<v1::FileChunk>* reactor) {
        stub->async()->FetchModelFile(context, request.get(), reactor);
      },
      executor_, calls_, std::move(take), std::move(done));
}

void TokenizerCache::Build(std::string sha256, std::shared_ptr<std::string> bytes) {
  calls_->Add();
  boost::asio::post(*pool_, [this, sha256 = std::move(sha256), bytes = std::move(bytes)] {
    Result result = LoadTextModel(*bytes, sha256);
    boost::asio::post(executor_,
                      [this, sha256, result = std::move(result)] { Finish(sha256, result); });
    calls_->Remove();
  });
}

void TokenizerCache::Finish(const std::string& sha256, const Result& result) {
  const auto found = entries_.find(sha256);
  if (found == entries_.end()) return;
  if (result.ok()) {
    found->second.model = *result;
    for (const Waiting& each : std::exchange(found->second.waiting, {})) each.callback(result);
    return;
  }
  const Waiting failed = std::move(found->second.waiting.front());
  found->second.waiting.pop_front();
  if (found->second.waiting.empty())
    entries_.erase(found);
  else
    Fetch(found->second.waiting.front());
  failed.callback(result);
}

}  // namespace flotilla
