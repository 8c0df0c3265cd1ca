// gRPC on HTTP/2 as a client: messages in any pieces, every way in which a call ends.
#include "router/fleet/grpc_session.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "flotilla/v1/engine.pb.h"
#include "tests/support/http2_frames.h"

namespace flotilla {
namespace {

using grpc::StatusCode;
using testing::Frame;
using testing::GrpcMessage;
using testing::HeadersFrame;

constexpr size_t kMaxMessageBytes = 100'000;

std::string Settings() { return Frame(testing::kSettings, 0, 0, ""); }
std::string Head() {
  return HeadersFrame({{":status", "200"}, {"content-type", "application/grpc"}});
}
std::string Data(std::string_view bytes) { return Frame(testing::kData, 0, 1, bytes); }
std::string Trailers(const testing::HeaderList& headers) {
  return HeadersFrame(headers, testing::kEndStream);
}

// The call's headers, without which there is no answer.
std::string Begin(GrpcSession* session) {
  std::string out;
  session->TakeOutput(&out);
  return out;
}

class GrpcSessionTest : public ::testing::Test {
 protected:
  GrpcSessionTest()
      : session_({.path = "/package.Service/Method",
                  .authority = "server:1",
                  .max_message_bytes = kMaxMessageBytes},
                 [this](std::string_view message) { messages_.emplace_back(message); }) {
    sent_ = Begin(&session_);
  }
  // The status with which the call ends once all of that came.
  grpc::Status EndOf(const std::string& bytes) {
    session_.Receive(bytes);
    session_.TakeOutput(&sent_);
    EXPECT_TRUE(session_.ended().has_value());
    return session_.ended().value_or(grpc::Status::OK);
  }

  std::vector<std::string> messages_;
  std::string sent_;
  GrpcSession session_;
};

TEST_F(GrpcSessionTest, MessagesComeInAnyPieces) {
  const std::string large(40'000, 'x');
  const std::string messages = GrpcMessage("one") + GrpcMessage("") + GrpcMessage(large);
  std::string bytes = Settings() + Head();
  for (size_t at = 0; at < messages.size(); at += 9000) bytes += Data(messages.substr(at, 9000));
  bytes += Data(GrpcMessage("last"));
  const std::vector<std::string> expected = {"one", "", large, "last"};
  for (const size_t piece : {size_t{1}, size_t{7}, size_t{5000}, bytes.size()}) {
    SCOPED_TRACE(piece);
    std::vector<std::string> got;
    GrpcSession session({.path = "/a", .authority = "b", .max_message_bytes = kMaxMessageBytes},
                        [&](std::string_view message) { got.emplace_back(message); });
    Begin(&session);
    for (size_t at = 0; at < bytes.size(); at += piece) session.Receive(bytes.substr(at, piece));
    EXPECT_EQ(got, expected);
    EXPECT_FALSE(session.ended().has_value());
  }
}

TEST_F(GrpcSessionTest, WhatIsSentGoesOutInOrderAsTheOtherSideHasRoom) {
  v1::RouterFrame frame;
  std::string expected;
  for (int i = 0; i < 3; ++i) {
    frame.mutable_submit()->set_tenant(std::string(50'000, static_cast<char>('a' + i)));
    session_.Send(frame);
    expected += GrpcMessage(frame.SerializeAsString());
  }
  session_.TakeOutput(&sent_);
  const size_t first_window = 65'535;
  EXPECT_EQ(session_.unsent_bytes(), expected.size() - first_window);
  EXPECT_EQ(testing::DataOf(sent_), expected.substr(0, first_window));
  const auto window_update = [](uint32_t stream) {
    return Frame(static_cast<testing::FrameType>(8), 0, stream, testing::BigEndian(1 << 20, 4));
  };
  session_.Receive(Settings() + window_update(0) + window_update(1));
  frame.mutable_submit()->set_tenant("z");
  session_.Send(frame);
  expected += GrpcMessage(frame.SerializeAsString());
  session_.TakeOutput(&sent_);
  EXPECT_EQ(session_.unsent_bytes(), 0u);
  EXPECT_EQ(testing::DataOf(sent_), expected);
}

TEST_F(GrpcSessionTest, EndsWithTheStatusBehindTheLastMessage) {
  const grpc::Status status =
      EndOf(Settings() + Head() + Data(GrpcMessage("m")) +
            Trailers({{"grpc-status", "3"}, {"grpc-message", "100%25 wrong: %C3%A4 %zz %4"}}));
  EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "100% wrong: ä %zz %4");
  EXPECT_EQ(messages_, std::vector<std::string>{"m"});
  // What comes or is to go after it is dropped.
  session_.Receive(Data(GrpcMessage("late")));
  session_.Send(v1::RouterFrame());
  EXPECT_EQ(session_.unsent_bytes(), 0u);
  EXPECT_EQ(messages_.size(), 1u);
}

TEST_F(GrpcSessionTest, EndsWithoutAMessageAtAll) {
  EXPECT_TRUE(EndOf(Settings() +
                    HeadersFrame({{":status", "200"}, {"grpc-status", "0"}}, testing::kEndStream))
                  .ok());
}

TEST_F(GrpcSessionTest, AStatusThatNobodyKnowsIsUnknown) {
  EXPECT_EQ(EndOf(Settings() + Head() + Trailers({{"grpc-status", "99"}})).error_code(),
            StatusCode::UNKNOWN);
}

TEST_F(GrpcSessionTest, NoStatusIsUnknown) {
  EXPECT_EQ(EndOf(Settings() + Head() + Trailers({{"other", "1"}})).error_code(),
            StatusCode::UNKNOWN);
}

TEST_F(GrpcSessionTest, ACompressedMessageEndsIt) {
  EXPECT_EQ(EndOf(Settings() + Head() + Data(GrpcMessage("m", 1))).error_code(),
            StatusCode::INTERNAL);
  EXPECT_TRUE(messages_.empty());
}

TEST_F(GrpcSessionTest, ATooLargeMessageEndsItBeforeItIsHere) {
  const std::string prefix = std::string(1, '\0') + testing::BigEndian(kMaxMessageBytes + 1, 4);
  const grpc::Status status = EndOf(Settings() + Head() + Data(prefix));
  EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(status.error_message(), "a message has 100001 bytes; 100000 may be");
}

TEST_F(GrpcSessionTest, BytesThatAreNoHttp2EndIt) {
  const grpc::Status status = EndOf("HTTP/1.1 400 Bad Request\r\n\r\n");
  EXPECT_EQ(status.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(status.error_message(),
            "the other side ended the connection, or does not speak HTTP/2");
}

TEST(GrpcSessionStatusTest, AnAnswerOfHttpAloneHasItsCode) {
  const std::vector<std::pair<const char*, StatusCode>> cases = {
      {"400", StatusCode::INTERNAL},          {"401", StatusCode::UNAUTHENTICATED},
      {"403", StatusCode::PERMISSION_DENIED}, {"404", StatusCode::UNIMPLEMENTED},
      {"503", StatusCode::UNAVAILABLE},       {"500", StatusCode::UNKNOWN}};
  for (const auto& [http, code] : cases) {
    SCOPED_TRACE(http);
    bool message = false;
    GrpcSession session({.path = "/a", .authority = "b", .max_message_bytes = 10},
                        [&](std::string_view) { message = true; });
    Begin(&session);
    session.Receive(Settings() + HeadersFrame({{":status", http}}) +
                    Frame(testing::kData, testing::kEndStream, 1, "a page that says why"));
    ASSERT_TRUE(session.ended().has_value());
    EXPECT_EQ(session.ended()->error_code(), code);
    EXPECT_FALSE(message);
  }
}

TEST(GrpcSessionStatusTest, ABrokenOffCallHasItsCode) {
  const std::vector<std::pair<uint32_t, StatusCode>> cases = {
      {0, StatusCode::UNAVAILABLE},         {2, StatusCode::INTERNAL},
      {7, StatusCode::UNAVAILABLE},         {8, StatusCode::CANCELLED},
      {11, StatusCode::RESOURCE_EXHAUSTED}, {12, StatusCode::PERMISSION_DENIED}};
  for (const auto& [error, code] : cases) {
    SCOPED_TRACE(error);
    GrpcSession session({.path = "/a", .authority = "b", .max_message_bytes = 10},
                        [](std::string_view) {});
    Begin(&session);
    session.Receive(Settings() + Head() +
                    Frame(testing::kReset, 0, 1, testing::BigEndian(error, 4)));
    ASSERT_TRUE(session.ended().has_value());
    EXPECT_EQ(session.ended()->error_code(), code);
  }
}

TEST_F(GrpcSessionTest, AServerThatGoesAwayBeforeItHasTheCallIsUnavailable) {
  EXPECT_EQ(EndOf(Settings() + Frame(testing::kGoaway, 0, 0,
                                     testing::BigEndian(0, 4) + testing::BigEndian(0, 4)))
                .error_code(),
            StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace flotilla
