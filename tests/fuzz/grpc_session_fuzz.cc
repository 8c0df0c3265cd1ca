// libFuzzer: any bytes of a replica's connection, in pieces. A message is within its limit, nothing
// comes after the call's end, what is sent goes out, and the pieces make no difference to the
// messages, but for when what is wrong is answered, and so ends the call.
//
// The first byte says how long the pieces are; the rest are the bytes.
#include <algorithm>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "flotilla/v1/engine.pb.h"
#include "router/fleet/grpc_session.h"
#include "tests/fuzz/fuzz_input.h"

namespace flotilla {
namespace {

constexpr size_t kMaxMessageBytes = 1000;

struct Heard {
  std::vector<std::string> messages;
  bool ended = false;
};

Heard Hear(std::string_view bytes, size_t piece) {
  Heard heard;
  GrpcSession session({.path = "/a", .authority = "b", .max_message_bytes = kMaxMessageBytes},
                      [&](std::string_view message) {
                        CHECK(!heard.ended && message.size() <= kMaxMessageBytes);
                        heard.messages.emplace_back(message);
                      });
  v1::RouterFrame frame;
  frame.mutable_hello()->set_router_id("router");
  session.Send(frame);
  std::string out;
  session.TakeOutput(&out);
  CHECK(session.unsent_bytes() == 0);
  while (!bytes.empty()) {
    const std::string_view next = bytes.substr(0, piece);
    session.Receive(next);
    session.TakeOutput(&out);
    heard.ended = session.ended().has_value();
    bytes.remove_prefix(next.size());
  }
  return heard;
}

}  // namespace
}  // namespace flotilla

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flotilla;
  fuzz::FuzzInput input(data, size);
  const size_t piece = 1 + input.Get<uint8_t>();
  const fuzz::Piece bytes = input.Rest();
  const Heard whole = Hear(bytes.view(), size + 1), pieces = Hear(bytes.view(), piece);
  const size_t both = std::min(whole.messages.size(), pieces.messages.size());
  CHECK(std::equal(whole.messages.begin(), whole.messages.begin() + static_cast<ptrdiff_t>(both),
                   pieces.messages.begin()));
  CHECK(whole.ended || pieces.ended || whole.messages.size() == pieces.messages.size());
  return 0;
}
