// libFuzzer: any ZeroMQ frames between scheduler and detokenizer, each end's parser, and what the
// detokenizer makes of them. What is taken has one spelling; every answer is one that the scheduler
// takes, with valid text, for a stream that was opened, and stop strings that it has.
//
// The input is a list of frames (fuzz_input.h) to a detokenizer with small limits; a frame that is
// no request is tried as a reply.
#include <string>
#include <unordered_map>

#include "common/base/check.h"
#include "common/text/detok_frames.h"
#include "common/text/incremental_detokenizer.h"
#include "detokenizer_proc/detokenizer_core.h"
#include "tests/fakes/byte_vocabulary.h"
#include "tests/fuzz/fuzz_input.h"

namespace flotilla {
namespace {

constexpr DetokLimits kLimits = {.max_streams = 4, .max_stop_bytes = 32, .max_ended = 4};

const Tokenizer& Vocabulary() {
  static const auto* const vocabulary = new testing::ByteVocabulary();
  return *vocabulary;
}

bool IsUtf8(const std::string& text) {
  std::string replaced;
  return DecodeUtf8Replacing(text, &replaced) == text.size() && replaced == text;
}

class Detokenizer {
 public:
  void Apply(const DetokRequest& request) {
    for (const DetokStreamEvent& event : request.events) {
      if (event.kind == DetokStreamEvent::Kind::kOpen) num_stops_[event.stream] = event.stop.size();
    }
    const DetokenizerCore::Outcome outcome = core_.Apply(request);
    CHECK(core_.num_streams() <= kLimits.max_streams);
    CHECK(outcome.rejected_events <= request.events.size());
    CHECK(outcome.reply.texts.size() <= request.events.size());
    CHECK(outcome.reply.generation == request.generation);
    for (const DetokText& text : outcome.reply.texts) CheckText(text);
    std::string frame;
    BuildDetokReply(outcome.reply, &frame);
    DetokReply parsed;
    CHECK_OK(ParseDetokReply(frame, &parsed));
    CHECK(parsed.texts.size() == outcome.reply.texts.size());
  }
  void Reset() {
    core_.Reset();
    CHECK(core_.num_streams() == 0);
  }

 private:
  void CheckText(const DetokText& text) const {
    const auto stops = num_stops_.find(text.stream);
    CHECK(stops != num_stops_.end());
    CHECK(IsUtf8(text.text));
    CHECK(text.stop_index >= -1 && text.stop_index < static_cast<int64_t>(stops->second));
    CHECK(text.last || text.stop_index < 0);
  }

  DetokenizerCore core_{&Vocabulary(), kLimits};
  std::unordered_map<uint64_t, size_t> num_stops_;
};

void FuzzReply(std::string_view bytes) {
  DetokReply reply;
  if (!ParseDetokReply(bytes, &reply).ok()) return;
  std::string frame;
  BuildDetokReply(reply, &frame);
  CHECK(frame == bytes);
  for (const DetokText& text : reply.texts) CHECK(IsUtf8(text.text) && text.stop_index >= -1);
}

}  // namespace
}  // namespace flotilla

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flotilla;
  fuzz::FuzzInput input(data, size);
  Detokenizer detokenizer;
  DetokRequest request;
  std::string frame;
  while (!input.empty()) {
    const fuzz::Piece piece = input.GetPiece();
    if (!ParseDetokRequest(piece.view(), &request).ok()) {
      FuzzReply(piece.view());
      continue;
    }
    BuildDetokRequest(request, &frame);
    CHECK(frame == piece.view());
    detokenizer.Apply(request);
  }
  detokenizer.Reset();
  return 0;
}
