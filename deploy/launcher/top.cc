#include "deploy/launcher/top.h"

#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/json.hpp>
#include <cstdio>
#include <optional>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/http/http_client.h"
#include "deploy/launcher/log_mux.h"

namespace flotilla {
namespace {

namespace json = boost::json;

std::atomic<bool> g_top_stopped{false};
void OnTopSignal(int) { g_top_stopped.store(true); }

double Number(const json::object& object, const char* name) {
  const json::value* value = object.if_contains(name);
  return value != nullptr && value->is_number() ? value->to_number<double>() : 0;
}

// What others have written must not steer the terminal.
bool Steers(char32_t code_point) {
  return code_point < ' ' || (code_point >= 0x7f && code_point < 0xa0);
}

std::string Text(const json::object& object, const char* name) {
  const json::value* value = object.if_contains(name);
  const std::string text =  // JSON's reader checked that it is UTF-8
      value != nullptr && value->is_string() ? std::string(value->as_string()) : "";
  std::string out;
  for (size_t at = 0, length = 0; at < text.size(); at += length) {
    const char32_t code_point = CodePointAt(text, at, &length);
    out += Steers(code_point) ? "?" : text.substr(at, length);
  }
  return out;
}

// At most so many characters.
std::string Cut(const std::string& text, size_t width) {
  size_t at = 0;
  for (size_t length = 0; at < text.size() && width > 0; at += length, --width)
    CodePointAt(text, at, &length);
  return text.substr(0, at);
}

// Exactly so many.
std::string Cell(const std::string& text, size_t width) {
  const std::string cut = Cut(text, width);
  return cut + std::string(width - static_cast<size_t>(CountCodePoints(cut)), ' ');
}

constexpr size_t kReplicaWidth = 14, kMostReplicaWidth = 48;

size_t ReplicaWidth(const json::array& replicas) {
  size_t width = kReplicaWidth;
  for (const json::value& value : replicas) {
    if (!value.is_object()) continue;
    const std::string name = Text(value.as_object(), "replica");
    width = std::max(width, static_cast<size_t>(CountCodePoints(name)));
  }
  return std::min(width, kMostReplicaWidth);
}

const json::array& Array(const json::object& object, const char* name) {
  static const json::array kNone;
  const json::value* value = object.if_contains(name);
  return value != nullptr && value->is_array() ? value->as_array() : kNone;
}

// A second; nullopt without a sample before, or if the replica is another now.
std::optional<double> TokenRate(const json::object& replica, const json::object& now,
                                const json::object* before) {
  if (before == nullptr) return std::nullopt;
  const double seconds = (Number(now, "now_unix_ms") - Number(*before, "now_unix_ms")) / 1000;
  for (const json::value& then : Array(*before, "replicas")) {
    if (!then.is_object() || Number(then.as_object(), "index") != Number(replica, "index"))
      continue;
    const double tokens =
        Number(replica, "generated_tokens") - Number(then.as_object(), "generated_tokens");
    if (seconds > 0 && tokens >= 0) return tokens / seconds;
  }
  return std::nullopt;
}

std::string RateText(const std::optional<double>& rate) {
  return rate ? absl::StrFormat("%.1f", *rate) : "-";
}

std::string StateOf(const json::object& replica) {
  const std::string circuit = Text(replica, "circuit");
  return circuit == "open" || circuit == "half_open" ? "circuit " + circuit
                                                     : Text(replica, "state");
}

std::string ReplicaLine(const json::object& replica, const std::optional<double>& rate,
                        size_t width) {
  const double total = Number(replica, "kv_pages_total");
  const double used = total > 0 ? 1 - Number(replica, "kv_pages_free") / total : 0;
  return absl::StrFormat("%s %s %s %7.0f %7.0f %7.0f %6.1f%% %8s %9.0f",
                         Cell(Text(replica, "replica"), width), Cell(Text(replica, "model"), 24),
                         Cell(StateOf(replica), 17), Number(replica, "requests_active"),
                         Number(replica, "requests_running"), Number(replica, "requests_waiting"),
                         100 * used, RateText(rate), 1000 * Number(replica, "first_token_seconds"));
}

std::string RequestLine(const json::object& request) {
  const json::value* timing = request.if_contains("timing");
  const auto stage = [&](const char* name) {
    return timing != nullptr && timing->is_object()
               ? absl::StrFormat("%.0f", 1000 * Number(timing->as_object(), name))
               : std::string("-");
  };
  return absl::StrFormat("%s %s %7.0f %7.0f %7.0f %8s %8s %8s %9.0f",
                         Cell(Text(request, "request_id"), 36), Cell(Text(request, "outcome"), 10),
                         Number(request, "prompt_tokens"), Number(request, "cached_tokens"),
                         Number(request, "completion_tokens"), stage("queue_seconds"),
                         stage("prefill_seconds"), stage("decode_seconds"),
                         1000 * Number(request, "total_seconds"));
}

StatusOr<json::object> FetchFleet(const HttpUrl& url, const TopOptions& options) {
  ASSIGN_OR_RETURN(const HttpPage answer,
                   GetHttp(url, "/ui/fleet.json", options.server.api_key, &g_top_stopped));
  if (answer.status == 404) return absl::InternalError("this router has --ui off");
  if (answer.status == 401) return absl::InternalError("this router wants a key: --api-key");
  boost::system::error_code error;
  json::value value = json::parse(answer.body, error);
  if (answer.status != 200 || error || !value.is_object())
    return absl::InternalError(StrCat("/ui/fleet.json answered ", answer.status));
  return std::move(value.as_object());
}

TopSize TerminalSize() {
  winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row == 0) return {1000, 200};
  return {size.ws_row, size.ws_col};
}

void Wait(double seconds) { poll(nullptr, 0, static_cast<int>(seconds * 1000)); }

// The terminal's other screen, so that what was there comes back.
class OtherScreen {
 public:
  OtherScreen() { std::fputs("\x1b[?1049h\x1b[?25l", stdout); }
  ~OtherScreen() {
    std::fputs("\x1b[?25h\x1b[?1049l", stdout);
    std::fflush(stdout);
  }
  OtherScreen(OtherScreen&&) = delete;
  static void Show(const std::string& text) {
    std::printf("\x1b[H%s\x1b[J", text.c_str());
    std::fflush(stdout);
  }
};

}  // namespace

void AddTopFlags(CLI::App* app, TopOptions* options) {
  AddServerFlags(app, "The router", &options->server);
  app->add_option("--interval", options->interval_s, "Seconds from one look to the next")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  app->add_flag("--once", options->once,
                "Prints after one interval and ends; so it does if its output is no terminal");
}

std::string TopScreen(const json::object& now, const json::object* before, const TopSize& size) {
  std::vector<std::string> lines;
  std::vector<std::string> replicas;
  const size_t width = ReplicaWidth(Array(now, "replicas"));
  double total_rate = 0;
  for (const json::value& value : Array(now, "replicas")) {
    if (!value.is_object()) continue;
    const std::optional<double> rate = TokenRate(value.as_object(), now, before);
    total_rate += rate.value_or(0);
    replicas.push_back(ReplicaLine(value.as_object(), rate, width));
  }
  lines.push_back(absl::StrFormat(
      "flotilla %s   %d replicas   %.0f requests active, %.0f parked   %s tokens/s%s",
      Text(now, "version"), replicas.size(), Number(now, "requests_active"),
      Number(now, "requests_parked"),
      RateText(before == nullptr ? std::nullopt : std::optional<double>(total_rate)),
      now.contains("draining") && now.at("draining") == true ? "   DRAINING" : ""));
  lines.emplace_back();
  lines.push_back(absl::StrFormat("%s %-24s %-17s %7s %7s %7s %7s %8s %9s", Cell("REPLICA", width),
                                  "MODEL", "STATE", "ACTIVE", "RUNNING", "WAITING", "KV", "TOK/S",
                                  "TTFT MS"));
  lines.insert(lines.end(), replicas.begin(), replicas.end());
  lines.emplace_back();
  lines.push_back(absl::StrFormat("%-36s %-10s %7s %7s %7s %8s %8s %8s %9s", "LAST REQUESTS", "END",
                                  "PROMPT", "CACHED", "OUTPUT", "QUEUE MS", "PREFILL", "DECODE",
                                  "TOTAL MS"));
  for (const json::value& value : Array(now, "requests"))
    if (value.is_object()) lines.push_back(RequestLine(value.as_object()));
  lines.resize(std::min(lines.size(), size.rows));
  std::string screen;
  for (const std::string& line : lines) StrAppend(&screen, Cut(line, size.columns), "\n");
  return screen;
}

int Top(const TopOptions& options) {
  const StatusOr<HttpUrl> url = ParseHttpUrl(options.server.url, options.server.tls);
  if (!url.ok()) return FailCommand(url.status());
  StatusOr<json::object> before = FetchFleet(*url, options);
  if (!before.ok()) return FailCommand(before.status());
  if (options.once || isatty(STDOUT_FILENO) == 0) {
    Wait(options.interval_s);
    const StatusOr<json::object> now = FetchFleet(*url, options);
    if (!now.ok()) return FailCommand(now.status());
    std::fputs(TopScreen(*now, &*before, TerminalSize()).c_str(), stdout);
    return 0;
  }
  struct sigaction action = {};
  action.sa_handler = OnTopSignal;  // no SA_RESTART: waiting ends
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  const OtherScreen screen;
  OtherScreen::Show(TopScreen(*before, nullptr, TerminalSize()));
  for (Wait(options.interval_s); !g_top_stopped.load(); Wait(options.interval_s)) {
    StatusOr<json::object> now = FetchFleet(*url, options);
    if (absl::IsCancelled(now.status())) break;
    // The last line has no end: it would move the screen.
    const TopSize size = TerminalSize();
    std::string text = now.ok() ? TopScreen(*now, before.ok() ? &*before : nullptr, size)
                                : StrCat(std::string(now.status().message()), "; asking again\n");
    text.pop_back();
    std::string cleared;  // each line's rest too
    for (const std::string& line : std::vector<std::string>(absl::StrSplit(text, '\n')))
      StrAppend(&cleared, cleared.empty() ? "" : "\r\n", line, "\x1b[K");
    OtherScreen::Show(cleared);
    before = std::move(now);
  }
  return 0;
}

}  // namespace flotilla
