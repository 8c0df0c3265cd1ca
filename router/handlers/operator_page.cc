#include "router/handlers/operator_page.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "absl/strings/str_format.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/unix_time.h"
#include "router/base/json_writer.h"
#include "router/observe/request_timing.h"

namespace flotilla {
namespace {

constexpr std::string_view kUiPath = "/ui";
constexpr std::string_view kUiHeaders =
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Cache-Control: no-cache\r\n";

// Null: there is none.
const UiFile* FindUiFile(std::string_view path) {
  if (!path.starts_with("/ui/")) return nullptr;
  path.remove_prefix(4);
  const std::string_view name = path.empty() ? "index.html" : path;
  const auto files = UiFiles();
  const auto found = std::find_if(files.begin(), files.end(),
                                  [&](const UiFile& file) { return file.name == name; });
  return found == files.end() ? nullptr : &*found;
}

std::string_view ContentType(std::string_view name) {
  if (name.ends_with(".html")) return "text/html; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  if (name.ends_with(".svg")) return "image/svg+xml";
  return "text/javascript; charset=utf-8";
}

const char* CircuitName(ReplicaHealth::Circuit circuit) {
  switch (circuit) {
    case ReplicaHealth::Circuit::kClosed:
      return "closed";
    case ReplicaHealth::Circuit::kHalfOpen:
      return "half_open";
    default:
      return "open";
  }
}

const char* JsonBool(bool value) { return value ? "true" : "false"; }

std::string ReplicaJson(const ReplicaClient& replica, const std::string& name) {
  const v1::Load& load = replica.load();
  const ReplicaView view = replica.view();
  std::string out = StrCat("{\"index\":", view.index, ",\"replica\":");
  AppendJsonString(name, &out);
  StrAppend(
      &out,
      ",\"model\":", JsonString(replica.model() == nullptr ? std::string() : replica.model()->name),
      ",\"state\":\"", replica.state_name(), "\",\"circuit\":\"",
      CircuitName(replica.health().circuit(RealClock::Now())),
      "\",\"draining\":", JsonBool(replica.draining()),
      ",\"retired\":", JsonBool(replica.retired()), ",\"requests_active\":", replica.active(),
      ",\"requests_running\":", load.running_requests(),
      ",\"requests_waiting\":", load.waiting_requests(),
      ",\"queued_tokens\":", load.queued_tokens(), ",\"running_tokens\":", load.running_tokens(),
      ",\"unreported_tokens\":", view.unreported_tokens, ",\"kv_pages_free\":", load.free_pages(),
      ",\"kv_pages_total\":", load.total_pages(),
      ",\"generated_tokens\":", replica.generated_tokens());
  return out.append(
      absl::StrFormat(",\"first_token_seconds\":%.6f}", replica.first_token_s(RealClock::Now())));
}

std::string SecondsBetween(int64_t begin_ns, int64_t end_ns) {
  return absl::StrFormat("%.9f", static_cast<double>(end_ns - begin_ns) * 1e-9);
}

std::string RequestJson(const FinishedRequest& request) {
  std::string out = StrCat("{\"number\":", request.number, ",\"request_id\":");
  AppendJsonString(request.request_id, &out);
  StrAppend(&out, ",\"choice\":", request.choice, ",\"model\":", JsonString(request.model),
            ",\"replica\":", JsonString(request.replica), ",\"outcome\":\"", request.outcome,
            "\",\"arrival_unix_ms\":", request.arrival_unix_ms,
            ",\"prompt_tokens\":", request.usage.prompt_tokens(),
            ",\"completion_tokens\":", request.usage.completion_tokens(),
            ",\"cached_tokens\":", request.usage.cached_tokens(),
            ",\"total_seconds\":", SecondsBetween(request.arrival_ns, request.end_ns),
            ",\"first_token_seconds\":",
            request.first_token_ns == 0
                ? "null"
                : SecondsBetween(request.arrival_ns, request.first_token_ns),
            ",\"timing\":",
            request.timing.finished_ns() == 0
                ? "null"
                : TimingJson(request.timing, request.arrival_ns, request.end_ns));
  return out.append("}");
}

}  // namespace

bool IsUiFile(std::string_view path) { return path == kUiPath || FindUiFile(path) != nullptr; }

void ReplyUiFile(const HttpHead& head, HttpExchange* exchange) {
  if (head.path == kUiPath) {
    exchange->ReplyWith(StrCat(kUiHeaders, "Location: ui/\r\n"), 308, "text/plain", "");
    return;
  }
  const UiFile& file = *FindUiFile(head.path);
  const bool has_it = head.if_none_match.find(file.etag) != std::string::npos;
  exchange->ReplyWith(StrCat(kUiHeaders, "ETag: ", file.etag, "\r\n"), has_it ? 304 : 200,
                      ContentType(file.name), has_it ? std::string_view() : file.bytes);
}

std::string FleetJson(const Dispatcher& dispatcher, bool draining,
                      const std::optional<std::string>& tenant) {
  std::string replicas, requests;
  // Two engines of one host, or pods that do not know better, have the same name.
  std::unordered_map<std::string_view, size_t> uses;
  for (const auto& [index, replica] : dispatcher.replicas()) ++uses[replica->replica_id()];
  for (const auto& [index, replica] : dispatcher.replicas()) {
    AppendComma(&replicas);
    const std::string& id = replica->replica_id();
    replicas += ReplicaJson(*replica,
                            uses[id] > 1 ? StrCat(id, " (", replica->options().address, ")") : id);
  }
  for (const FinishedRequest& request : dispatcher.finished().requests()) {
    if (tenant.has_value() && request.tenant != *tenant) continue;
    AppendComma(&requests);
    requests += RequestJson(request);
  }
  return StrCat("{\"version\":\"" FLOTILLA_VERSION "\",\"draining\":", JsonBool(draining),
                ",\"now_unix_ms\":", UnixMs(), ",\"requests_active\":", dispatcher.active(),
                ",\"requests_parked\":", dispatcher.parked(), ",\"replicas\":[", replicas,
                "],\"requests\":[", requests, "]}");
}

}  // namespace flotilla
