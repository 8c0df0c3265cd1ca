#include "deploy/launcher/served/load_run.h"

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/json.hpp>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <random>
#include <utility>

#include "common/base/clock.h"
#include "common/http/stream_client.h"

namespace flotilla {
namespace {

namespace asio = boost::asio;
namespace json = boost::json;

constexpr std::chrono::milliseconds kProgressTime{100};
constexpr size_t kMostErrorBytes = 4096;

std::string BodyOf(const RandomRequest& request, const LoadRunOptions& options) {
  return json::serialize(
      json::object{{"model", options.model},
                   {"prompt", json::array(request.prompt.begin(), request.prompt.end())},
                   {"max_tokens", request.output_len},
                   {"temperature", options.temperature},
                   {"ignore_eos", true},
                   {"stream", true},
                   {"stream_options", json::object{{"include_usage", true}}}});
}

const json::value* Find(const json::value& value, std::string_view pointer) {
  boost::system::error_code error;
  const json::value* found = value.find_pointer({pointer.data(), pointer.size()}, error);
  return error ? nullptr : found;
}

uint32_t NumberAt(const json::value& value, std::string_view pointer) {
  const json::value* found = Find(value, pointer);
  return found != nullptr && found->is_int64() ? static_cast<uint32_t>(found->as_int64()) : 0;
}

class Load {
 public:
  Load(const std::vector<RandomRequest>& requests, const LoadRunOptions& options,
       asio::ip::tcp::resolver::results_type addresses)
      : requests_(requests),
        options_(options),
        addresses_(std::move(addresses)),
        arrivals_(ArrivalTimes(requests.size(), options.load.request_rate, options.seed)),
        answers_(requests.size()),
        next_arrival_(io_),
        progress_timer_(io_) {}

  std::vector<ServedRequest> Run() {
    start_ns_ = RealClock::Now();
    WatchProgress();
    Pump();
    io_.run();
    std::erase_if(answers_, [](const ServedRequest& request) { return request.end_ns == 0; });
    return std::move(answers_);
  }

 private:
  // Sends what has arrived and may run.
  void Pump() {
    const uint32_t most = options_.load.max_concurrency;
    while (next_ < requests_.size() && (most == 0 || running_ < most)) {
      const int64_t wait_ns = start_ns_ + arrivals_[next_] - RealClock::Now();
      if (wait_ns > 0) {
        next_arrival_.expires_after(std::chrono::nanoseconds(wait_ns));
        next_arrival_.async_wait([this](const auto& error) {
          if (!error) Pump();
        });
        return;
      }
      Start(next_++);
    }
  }

  void Start(size_t index) {
    if (idle_.empty()) {
      clients_.push_back(std::make_unique<StreamClient>(&io_, options_.url, addresses_));
      idle_.push_back(clients_.back().get());
    }
    StreamClient* client = idle_.back();
    idle_.pop_back();
    ++running_;
    ServedRequest* answer = &answers_[index];
    const auto reader = std::make_shared<AnswerReader>(answer);
    const auto on_body = [this, reader](unsigned, std::string_view bytes) {
      const uint64_t before = reader->pieces();
      reader->OnBody(bytes, RealClock::Now());
      pieces_ += reader->pieces() - before;
      return true;
    };
    const auto on_end = [this, reader, client](const StreamClient::Answer& end) {
      reader->OnEnd(end.status, end.error, RealClock::Now());
      idle_.push_back(client);
      --running_;
      ++ended_;
      Pump();
      if (ended_ == requests_.size()) progress_timer_.cancel();
    };
    answer->sent_ns = RealClock::Now();
    client->Send({.method = "POST",
                  .target = "/v1/completions",
                  .body = BodyOf(requests_[index], options_),
                  .authorization = BearerToken(options_.api_key)},
                 on_body, on_end);
  }

  void WatchProgress() {
    progress_timer_.expires_after(kProgressTime);
    progress_timer_.async_wait([this](const auto& error) {
      // Cancelled, or too late to be.
      if (error || ended_ == requests_.size()) return;
      if (options_.stop != nullptr && options_.stop->load()) return io_.stop();
      if (options_.progress) options_.progress({ended_, running_, pieces_});
      WatchProgress();
    });
  }

  const std::vector<RandomRequest>& requests_;
  const LoadRunOptions& options_;
  asio::io_context io_{1};
  const asio::ip::tcp::resolver::results_type addresses_;
  const std::vector<int64_t> arrivals_;
  std::vector<ServedRequest> answers_;
  asio::steady_timer next_arrival_, progress_timer_;
  std::vector<std::unique_ptr<StreamClient>> clients_;
  std::vector<StreamClient*> idle_;
  int64_t start_ns_ = 0;
  size_t next_ = 0, running_ = 0, ended_ = 0;
  uint64_t pieces_ = 0;
};

}  // namespace

std::vector<int64_t> ArrivalTimes(size_t requests, double request_rate, uint64_t seed) {
  std::vector<int64_t> times(requests, 0);
  if (request_rate <= 0) return times;
  std::mt19937_64 random(seed);
  double seconds = 0;
  for (int64_t& time : times) {
    time = static_cast<int64_t>(seconds * 1e9);
    // The inverse of the exponential's distribution: the same on every machine, unlike the
    // library's.
    const double uniform = static_cast<double>(random() >> 11) * 0x1p-53;
    seconds -= std::log1p(-uniform) / request_rate;
  }
  return times;
}

void AnswerReader::OnBody(std::string_view bytes, int64_t now_ns) {
  if (start_.size() < kMostErrorBytes) start_.append(bytes.substr(0, kMostErrorBytes));
  events_.Append(bytes, [&](std::string_view data) { OnEvent(data, now_ns); });
}

void AnswerReader::OnEvent(std::string_view data, int64_t now_ns) {
  if (data == "[DONE]") {
    done_ = true;
    return;
  }
  boost::system::error_code error;
  const json::value event = json::parse({data.data(), data.size()}, error);
  if (error) {
    request_->error = "an event is not JSON";
    return;
  }
  if (Find(event, "/error") != nullptr) {
    request_->error = StrCat("in the stream: ", ErrorMessageOf(data).value_or(""));
    return;
  }
  if (const json::value* usage = Find(event, "/usage"); usage != nullptr && usage->is_object()) {
    request_->prompt_tokens = NumberAt(event, "/usage/prompt_tokens");
    request_->output_tokens = NumberAt(event, "/usage/completion_tokens");
    request_->cached_tokens = NumberAt(event, "/usage/prompt_tokens_details/cached_tokens");
  }
  const json::value* text = Find(event, "/choices/0/text");
  if (text == nullptr || !text->is_string() || text->as_string().empty()) return;
  if (pieces_++ == 0)
    request_->first_ns = now_ns;
  else
    request_->gaps_ns.push_back(now_ns - request_->last_ns);
  request_->last_ns = now_ns;
}

void AnswerReader::OnEnd(unsigned http_status, const std::string& connection_error,
                         int64_t now_ns) {
  request_->end_ns = now_ns;
  if (!request_->error.empty()) return;
  if (http_status != 0 && http_status != 200) {
    const std::optional<std::string> message = ErrorMessageOf(start_);
    request_->error = StrCat("HTTP ", http_status, message ? ": " + *message : "");
  } else if (!connection_error.empty()) {
    request_->error = StrCat("the connection: ", connection_error);
  } else if (!done_) {
    request_->error = "the stream ended without [DONE]";
  } else if (pieces_ == 0) {
    request_->error = "an answer without text";
  } else if (request_->output_tokens == 0) {
    request_->output_tokens = static_cast<uint32_t>(pieces_);  // a server that tells no usage
  }
}

StatusOr<std::vector<ServedRequest>> RunLoad(const std::vector<RandomRequest>& requests,
                                             const LoadRunOptions& options) {
  asio::io_context io;
  boost::system::error_code error;
  auto addresses = asio::ip::tcp::resolver(io).resolve(options.url.host,
                                                       std::to_string(options.url.port), error);
  if (error)
    return absl::UnavailableError(StrCat("can't find ", options.url.host, ": ", error.message()));
  return Load(requests, options, std::move(addresses)).Run();
}

}  // namespace flotilla
