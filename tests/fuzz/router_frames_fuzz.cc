// libFuzzer: any frames on the stream between a router and a replica, taken as ConnectReactor takes
// them: hello with streams to go on with, submits, keyed ones too, aborts, pings; broken
// connections and newer ones between them. What is accepted suits the workers too, and no byte is
// counted that is not there.
//
// The input is a list of protobuf messages (fuzz_input.h); an empty one ends the connection. Every
// stream gets two tokens after each frame and its end after five.
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "common/base/log.h"
#include "scheduler_proc/front/router_channel.h"
#include "tests/fakes/byte_vocabulary.h"
#include "tests/fuzz/checked_by_worker.h"
#include "tests/fuzz/fuzz_input.h"

namespace flotilla {
namespace {

const Tokenizer& Vocabulary() {
  static const auto* const vocabulary = new testing::ByteVocabulary();
  return *vocabulary;
}

class Connection final : public FrameConnection {
 public:
  void Write(v1::EngineFrame&& frame) override {
    CHECK(frame.IsInitialized() && !frame.SerializeAsString().empty());
    writing_ = true;
  }
  void Close(const Status& status) override {
    CHECK(!status.ok());
    closed_ = true;
  }
  bool TakeWritten() { return std::exchange(writing_, false); }
  bool closed() const { return closed_; }

 private:
  bool writing_ = false;
  bool closed_ = false;
};

class Replica {
 public:
  void Take(const v1::RouterFrame& frame) {
    for (const v1::RouterFrame& each : frame.batch().frames()) TakeOne(each);
    TakeOne(frame);
  }
  void Goodbye() {
    v1::EngineFrame goodbye;
    goodbye.mutable_goodbye()->set_draining(true);
    hub_.Broadcast(goodbye);
    Step();
  }
  void Disconnect() {
    if (channel_ != nullptr) channel_->Detach(connection_.get());
    channel_ = nullptr;
  }
  // Time goes by: tokens, heartbeats, everything is sent.
  void Step() {
    clock_.AdvanceNs(600 * kNsPerMs);
    for (auto& [id, live] : live_) {
      if (live.tokens > 5) continue;
      for (int i = 0; i < 2; ++i) {
        live.kept.Append(Piece(id, ++live.tokens));
        live.channel->Append(live.stream, Piece(id, live.tokens));
      }
      live.channel->Flush();
      Repeat(&live.kept);
    }
    hub_.Tick(clock_.NowNs());
    CHECK(hub_.size() <= options_.max_routers);
    if (channel_ == nullptr) return;
    while (connection_->TakeWritten()) channel_->OnWritten(connection_.get(), true);
    CHECK(!channel_->connected() || channel_->unsent_bytes() == 0);
  }

 private:
  struct Live {
    std::shared_ptr<RouterChannel> channel;
    uint64_t stream = 0;
    int32_t tokens = 0;
    StreamLog kept{0, 0};  // as of a request with an idempotency key
  };

  // All of it once more, for somebody who has nothing of it.
  static void Repeat(StreamLog* kept) {
    CHECK(kept->RewindTo(0, 0));
    CHECK(kept->kept_bytes() >= kept->unsent_bytes());
    while (kept->HasUnsent()) {
      v1::Delta delta;
      kept->Take(/*max_bytes=*/1, &delta);
    }
    CHECK(kept->unsent_bytes() == 0);
  }

  void TakeOne(const v1::RouterFrame& frame) {
    if (channel_ == nullptr || connection_->closed()) {
      if (frame.has_hello()) Hello(frame.hello());
    } else if (frame.has_submit()) {
      Submit(frame.submit());
    } else if (frame.has_abort()) {
      Abort(frame.abort());
    } else if (frame.has_ping()) {
      v1::EngineFrame pong;
      pong.mutable_pong()->set_sent_ns(frame.ping().sent_ns());
      channel_->SendControl(std::move(pong));
    } else if (frame.has_hello()) {  // of a connection that takes over, or of another router
      Hello(frame.hello());
    }
  }
  void Hello(const v1::Hello& hello) {
    auto connection = std::make_unique<Connection>();
    std::shared_ptr<RouterChannel> channel;
    if (!hub_.Attach(connection.get(), hello, {}, &channel).ok()) return;
    if (channel != channel_) Disconnect();
    channel_ = std::move(channel);
    connection_ = std::move(connection);
  }

  void Abort(const v1::AbortStream& abort) {
    if (abort.detach()) return channel_->Drop(abort.stream_id());
    const ReqId id = channel_->Find(abort.stream_id());
    if (id != 0) End(id);
  }

  void Submit(const v1::Submit& submit) {
    const ReqId id = next_id_++;
    const uint32_t resumed =
        submit.resume_size() > 0 ? static_cast<uint32_t>(submit.resume(0).output_ids_size()) : 0;
    if (!channel_->Open(connection_.get(), submit.stream_id(), id, resumed).ok())
      return Disconnect();
    CHECK(channel_->ReplayRoom() <= options_.max_unsent_bytes);
    if (submit.has_keyed()) channel_->Share(submit.stream_id(), id);
    live_.try_emplace(id, Live{channel_, submit.stream_id()});
    for (const Tokenizer* tokenizer : {static_cast<const Tokenizer*>(nullptr), &Vocabulary()}) {
      const auto checked =
          submit.has_embed() ? CheckEmbed(submit.request(), submit.embed(), limits_, tokenizer)
                             : CheckRequest(submit.request(), submit.resume(), limits_, tokenizer);
      if (checked.ok()) fuzz::CheckByWorker(*checked, limits_);
    }
    channel_->CountSubmit(connection_.get());
  }

  // Every other request asks for logprobs; the prompt's of the others are a large result.
  static v1::Delta Piece(ReqId id, int32_t number) {
    const bool logprobs = id % 2 == 1;
    v1::Delta delta;
    v1::ChoiceDelta* choice = delta.add_choices();
    choice->add_token_ids(number);
    choice->set_text("ab");
    if (logprobs) choice->add_logprobs()->set_token_id(number);
    if (number == 1 && logprobs) delta.add_prompt_logprobs()->set_token_id(7);
    if (number == 1 && !logprobs) delta.set_large_result_id(id);
    if (number > 5) delta.add_embedding(0.5f);
    delta.set_last(number > 5);
    return delta;
  }

  void End(ReqId id) { live_[id].tokens = 6; }

  const RequestLimits limits_ = {
      .model_name = "m", .vocab_size = Vocabulary().vocab_size(), .context_length = fuzz::kContext};
  const RouterChannelOptions options_ = {.max_unsent_bytes = 100, .max_routers = 2};
  FakeClock clock_{kNsPerSecond};
  std::unordered_map<ReqId, Live> live_;
  ReqId next_id_ = 1;
  RouterHub hub_{
      options_,
      {&clock_, [](v1::Load* load) { load->set_total_pages(9); }, [this](ReqId id) { End(id); }},
      [] {}};
  std::unique_ptr<Connection> connection_;
  std::shared_ptr<RouterChannel> channel_;
};

}  // namespace
}  // namespace flotilla

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  flotilla::InitLog({.process = "fuzz", .level = "error"});
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flotilla;
  fuzz::FuzzInput input(data, size);
  Replica replica;
  v1::RouterFrame frame;
  while (!input.empty()) {
    const fuzz::Piece piece = input.GetPiece();
    const std::string_view bytes = piece.view();
    if (bytes.empty())
      replica.Disconnect();
    else if (frame.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
      replica.Take(frame);
    replica.Step();
  }
  replica.Goodbye();
  return 0;
}
