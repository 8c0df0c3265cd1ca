// Round trip of the detokenizer's frames, and every truncation and single-byte change of them.
#include "common/text/detok_frames.h"

#include <gtest/gtest.h>

#include <random>

namespace flotilla {
namespace {

DetokRequest SomeRequest() {
  DetokStreamEvent open;
  open.kind = DetokStreamEvent::Kind::kOpen;
  open.stream = 0x1122334455667788;
  open.request_id = "req_1";
  open.skip_special = false;
  open.emitted_tokens = 2;
  open.stop = {"\n\n", "", "stop"};
  open.include_stop = true;
  open.min_tokens = 3;
  open.tokens = {1, 2, 3};
  DetokStreamEvent tokens;
  tokens.stream = 7;
  tokens.offset = 41;
  tokens.tokens = {9, -1};
  tokens.last = true;
  DetokStreamEvent close;
  close.kind = DetokStreamEvent::Kind::kClose;
  close.stream = 9;
  return {.generation = 5, .events = {open, tokens, close}};
}

DetokReply SomeReply() {
  DetokReply reply;
  reply.generation = 6;
  reply.texts.push_back({.stream = 1, .num_tokens = 3, .text = "é", .held_back = "\xf0\x9f"});
  reply.texts.push_back(
      {.stream = 2, .num_tokens = 4, .text = "", .held_back = "", .stop_index = 1, .last = true});
  return reply;
}

TEST(DetokFramesTest, RequestComesBack) {
  std::string frame;
  BuildDetokRequest(SomeRequest(), &frame);
  DetokRequest read;
  ASSERT_TRUE(ParseDetokRequest(frame, &read).ok());
  EXPECT_EQ(read.generation, 5u);
  ASSERT_EQ(read.events.size(), 3u);
  const DetokStreamEvent& open = read.events[0];
  EXPECT_EQ(open.kind, DetokStreamEvent::Kind::kOpen);
  EXPECT_EQ(open.stream, 0x1122334455667788u);
  EXPECT_EQ(open.request_id, "req_1");
  EXPECT_FALSE(open.skip_special);
  EXPECT_EQ(open.emitted_tokens, 2u);
  EXPECT_EQ(open.stop, (std::vector<std::string>{"\n\n", "", "stop"}));
  EXPECT_TRUE(open.include_stop);
  EXPECT_EQ(open.min_tokens, 3u);
  EXPECT_EQ(open.tokens, (std::vector<TokenId>{1, 2, 3}));
  EXPECT_FALSE(open.last);
  EXPECT_EQ(read.events[1].offset, 41u);
  EXPECT_EQ(read.events[1].tokens, (std::vector<TokenId>{9, -1}));
  EXPECT_TRUE(read.events[1].last);
  EXPECT_EQ(read.events[2].kind, DetokStreamEvent::Kind::kClose);
  EXPECT_EQ(read.events[2].stream, 9u);
}

TEST(DetokFramesTest, ReplyComesBack) {
  std::string frame;
  BuildDetokReply(SomeReply(), &frame);
  DetokReply read;
  ASSERT_TRUE(ParseDetokReply(frame, &read).ok());
  EXPECT_EQ(read.kind, DetokReply::Kind::kText);
  EXPECT_EQ(read.generation, 6u);
  ASSERT_EQ(read.texts.size(), 2u);
  EXPECT_EQ(read.texts[0].text, "é");
  EXPECT_EQ(read.texts[0].held_back, "\xf0\x9f");
  EXPECT_EQ(read.texts[0].stop_index, -1);
  EXPECT_EQ(read.texts[1].num_tokens, 4u);
  EXPECT_EQ(read.texts[1].stop_index, 1);
  EXPECT_TRUE(read.texts[1].last);

  DetokReply hello;
  hello.kind = DetokReply::Kind::kHello;
  hello.incarnation = 3;
  BuildDetokReply(hello, &frame);
  ASSERT_TRUE(ParseDetokReply(frame, &read).ok());
  EXPECT_EQ(read.kind, DetokReply::Kind::kHello);
  EXPECT_EQ(read.incarnation, 3u);
  EXPECT_TRUE(read.texts.empty());
}

TEST(DetokFramesTest, EveryTruncationAndAnyTailIsRefused) {
  std::string request, reply;
  BuildDetokRequest(SomeRequest(), &request);
  BuildDetokReply(SomeReply(), &reply);
  DetokRequest read_request;
  DetokReply read_reply;
  for (size_t n = 0; n < request.size(); ++n) {
    // A copy of its own size, so that AddressSanitizer sees a read past its end.
    const std::vector<char> cut(request.begin(), request.begin() + n);
    EXPECT_EQ(ParseDetokRequest({cut.data(), n}, &read_request).code(),
              absl::StatusCode::kInvalidArgument);
  }
  for (size_t n = 0; n < reply.size(); ++n) {
    const std::vector<char> cut(reply.begin(), reply.begin() + n);
    EXPECT_EQ(ParseDetokReply({cut.data(), n}, &read_reply).code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_FALSE(ParseDetokRequest(request + '\0', &read_request).ok());
  EXPECT_FALSE(ParseDetokReply(reply + '\0', &read_reply).ok());
  EXPECT_FALSE(ParseDetokRequest(reply, &read_request).ok());
  EXPECT_FALSE(ParseDetokReply(request, &read_reply).ok());
}

// Found while tests/fuzz/detok_frames_fuzz.cc was written.
TEST(DetokFramesTest, TextMustBeUtf8AndAStopStringANumber) {
  std::string frame;
  DetokReply read;
  for (const char* text : {"\xff", "\xc3", "a\xed\xa0\x80"}) {
    DetokReply reply = SomeReply();
    reply.texts[1].text = text;
    BuildDetokReply(reply, &frame);
    EXPECT_EQ(ParseDetokReply(frame, &read).code(), absl::StatusCode::kInvalidArgument) << text;
  }
  DetokReply reply = SomeReply();
  reply.texts[1].stop_index = -2;
  BuildDetokReply(reply, &frame);
  EXPECT_EQ(ParseDetokReply(frame, &read).code(), absl::StatusCode::kInvalidArgument);
}

TEST(DetokFramesTest, ChangedBytesNeverCrash) {
  std::string request, reply;
  BuildDetokRequest(SomeRequest(), &request);
  BuildDetokReply(SomeReply(), &reply);
  std::mt19937 random(5);
  int refused = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string a = request, b = reply;
    for (uint32_t n = 1 + random() % 3; n > 0; --n) {
      a[random() % a.size()] = static_cast<char>(random());
      b[random() % b.size()] = static_cast<char>(random());
    }
    DetokRequest read_request;
    DetokReply read_reply;
    refused += !ParseDetokRequest(a, &read_request).ok();
    refused += !ParseDetokReply(b, &read_reply).ok();
  }
  EXPECT_GT(refused, 10000);
}

}  // namespace
}  // namespace flotilla
