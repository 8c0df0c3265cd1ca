#include "router/discovery/service_watch.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

namespace flotilla {
namespace {

using std::chrono::milliseconds;

constexpr size_t kMaxListBytes = 64 << 20;
constexpr size_t kMaxEventBytes = 4 << 20;  // one slice: at most 1,000 endpoints
constexpr int64_t kWatchMarginMs = 10'000;  // beyond which a server ought to have ended it

}  // namespace

ServiceWatch::ServiceWatch(Options options, OnResult on_result)
    : options_(std::move(options)),
      client_(options_.api),
      slices_(options_.name),
      namespace_(options_.name.kube_namespace),
      on_result_(std::move(on_result)),
      thread_([this] { Run(); }) {}

void ServiceWatch::Stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    on_result_ = nullptr;
  }
  wake_.notify_all();
  client_.Interrupt();
  thread_.join();
}

void ServiceWatch::Run() {
  int64_t backoff_ms = 0;
  do {
    Status status = List();
    while (status.ok()) {
      const auto begin = std::chrono::steady_clock::now();
      status = Watch();
      // A server that ends watches at once is not asked without a pause.
      if (std::chrono::steady_clock::now() - begin >= milliseconds(options_.backoff_min_ms))
        backoff_ms = 0;
      else if (status.ok())
        break;
    }
    // The server wants a list first, which is nothing to tell.
    if (!status.ok() && !absl::IsAborted(status)) Report(std::move(status));
    backoff_ms = std::clamp(backoff_ms * 2, options_.backoff_min_ms, options_.backoff_max_ms);
  } while (Pause(backoff_ms));
}

bool ServiceWatch::Pause(int64_t ms) {
  std::random_device random;
  const int64_t half = ms / 2;
  const int64_t wait_ms = half + std::uniform_int_distribution<int64_t>(0, ms - half)(random);
  std::unique_lock lock(mutex_);
  return !wake_.wait_for(lock, milliseconds(wait_ms), [this] { return !on_result_; });
}

void ServiceWatch::Report(FoundReplicas found) {
  const std::lock_guard lock(mutex_);
  if (on_result_) on_result_(std::move(found));
}

Status ServiceWatch::FindNamespace() {
  if (!namespace_.empty()) return OkStatus();
  ASSIGN_OR_RETURN(namespace_, KubeNamespace(options_.api));
  return OkStatus();
}

std::string ServiceWatch::Target(std::string_view query) const {
  return StrCat("/apis/discovery.k8s.io/v1/namespaces/", namespace_,
                "/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3D",
                options_.name.service, query);
}

Status ServiceWatch::List() {
  RETURN_IF_ERROR(FindNamespace());
  std::string body;
  RETURN_IF_ERROR(client_.Get(Target(""), milliseconds(options_.list_timeout_ms),
                              [&](std::string_view bytes) -> Status {
                                if (body.size() + bytes.size() > kMaxListBytes)
                                  return absl::UnavailableError("its list is too long");
                                body.append(bytes);
                                return OkStatus();
                              }));
  RETURN_IF_ERROR(slices_.TakeList(body));
  Report(slices_.Addresses());
  return OkStatus();
}

Status ServiceWatch::Watch() {
  const std::string query = StrCat("&watch=true&allowWatchBookmarks=true&timeoutSeconds=",
                                   std::max<int64_t>(1, options_.watch_ms / 1000),
                                   "&resourceVersion=", slices_.resource_version());
  std::string rest;
  return client_.Get(Target(query), milliseconds(options_.watch_ms + kWatchMarginMs),
                     [&](std::string_view bytes) { return TakeLines(bytes, &rest); });
}

// Events are lines; `rest` keeps one that has not ended.
Status ServiceWatch::TakeLines(std::string_view bytes, std::string* rest) {
  rest->append(bytes);
  size_t begin = 0;
  for (size_t end; (end = rest->find('\n', begin)) != std::string::npos; begin = end + 1) {
    const std::string_view line = std::string_view(*rest).substr(begin, end - begin);
    if (line.empty()) continue;
    const std::vector<std::string> before = slices_.Addresses();
    RETURN_IF_ERROR(slices_.TakeEvent(line));
    if (std::vector<std::string> now = slices_.Addresses(); now != before) Report(std::move(now));
  }
  rest->erase(0, begin);
  if (rest->size() > kMaxEventBytes) return absl::UnavailableError("an event is too long");
  return OkStatus();
}

}  // namespace flotilla
