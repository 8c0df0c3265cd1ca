// The link to the detokenizer, frame by frame.
#include "scheduler_proc/output/detok_link.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>
#include <zmq.hpp>

#include "common/base/check.h"

namespace flotilla {
namespace {

// A link, and the other ends of its sockets in a detokenizer's place.
class DetokLinkTest : public testing::Test {
 protected:
  DetokLinkTest() {
    CHECK(mkdtemp(folder_.data()) != nullptr);
    const std::string requests = "ipc://" + folder_ + "/q", replies = "ipc://" + folder_ + "/p";
    link_ = *DetokLink::Bind(requests, replies);
    in_.set(zmq::sockopt::rcvtimeo, 10'000);
    in_.connect(requests);
    out_.connect(replies);
  }
  ~DetokLinkTest() override { std::filesystem::remove_all(folder_); }

  void SayHello() {
    DetokReply hello;
    hello.kind = DetokReply::Kind::kHello;
    BuildDetokReply(hello, &frame_);
    out_.send(zmq::buffer(frame_), zmq::send_flags::none);
    while (!link_->connected()) link_->Receive(&texts_);
  }

  std::string folder_ = (std::filesystem::temp_directory_path() / "detok-link-XXXXXX").string();
  std::unique_ptr<DetokLink> link_;
  zmq::context_t context_;
  zmq::socket_t in_{context_, zmq::socket_type::pull}, out_{context_, zmq::socket_type::push};
  std::string frame_;
  std::vector<DetokText> texts_;
};

TEST_F(DetokLinkTest, AStreamThatIsNotAnsweredIsOpenedAgain) {
  SayHello();
  link_->Open(7, {}, {});
  link_->Push(7, 'a');
  link_->Flush();
  zmq::message_t message;
  DetokRequest request;
  ASSERT_TRUE(in_.recv(message));  // taken, never answered
  ASSERT_TRUE(ParseDetokRequest(message.to_string_view(), &request).ok());
  const uint64_t first = request.generation;
  int64_t now = 1;
  link_->Tick(now);
  link_->Tick(now + kDetokAnswerNs - 1);
  EXPECT_EQ(in_.recv(message, zmq::recv_flags::dontwait), std::nullopt);
  link_->Tick(now + kDetokAnswerNs);
  ASSERT_TRUE(in_.recv(message));
  ASSERT_TRUE(ParseDetokRequest(message.to_string_view(), &request).ok());
  EXPECT_EQ(request.generation, first + 1);
  ASSERT_EQ(request.events.size(), 1u);
  EXPECT_EQ(request.events[0].kind, DetokStreamEvent::Kind::kOpen);
  EXPECT_EQ(request.events[0].tokens, (std::vector<TokenId>{'a'}));
  // One that is slow is given twice as long.
  now += kDetokAnswerNs + 1;
  link_->Tick(now);
  link_->Tick(now + 2 * kDetokAnswerNs - 1);
  EXPECT_EQ(in_.recv(message, zmq::recv_flags::dontwait), std::nullopt);
  // The late answer of the first generation is dropped, that of the second taken; so is one that
  // names a stop string which the stream does not have.
  DetokReply reply;
  reply.generation = first;
  reply.texts.resize(1);
  reply.texts[0].stream = 7;
  reply.texts[0].num_tokens = 1;
  reply.texts[0].text = "a";
  const auto send = [&](uint64_t generation, int32_t stop_index) {
    reply.generation = generation;
    reply.texts[0].stop_index = stop_index;
    BuildDetokReply(reply, &frame_);
    out_.send(zmq::buffer(frame_), zmq::send_flags::none);
  };
  send(first, -1);
  send(first + 1, 0);
  send(first + 1, -1);
  while (texts_.empty()) link_->Receive(&texts_);
  link_->Receive(&texts_);
  ASSERT_EQ(texts_.size(), 1u);
  EXPECT_EQ(texts_[0].stop_index, -1);
  EXPECT_EQ(link_->bad_frames(), 1u);
  EXPECT_EQ(link_->live_streams(), 1u);
}

// One frame of all would keep the detokenizer from saying that it lives, or be too large to be
// taken.
TEST_F(DetokLinkTest, LongHistoriesGoInSeveralFrames) {
  const std::vector<int32_t> history(kDetokFrameBytes / sizeof(int32_t) * 3 / 4, 'a');
  for (uint64_t stream = 1; stream <= 5; ++stream) link_->Open(stream, {}, history);
  SayHello();
  std::set<uint64_t> opened;
  std::set<uint64_t> generations;
  size_t frames = 0;
  while (opened.size() < 5) {
    zmq::message_t message;
    DetokRequest request;
    ASSERT_TRUE(in_.recv(message)) << opened.size() << " came";
    ASSERT_TRUE(ParseDetokRequest(message.to_string_view(), &request).ok());
    EXPECT_LE(request.events.size(), 2u);
    generations.insert(request.generation);
    for (const DetokStreamEvent& event : request.events) {
      EXPECT_EQ(event.tokens.size(), history.size());
      opened.insert(event.stream);
    }
    ++frames;
  }
  EXPECT_EQ(frames, 3u);
  EXPECT_EQ(generations.size(), 1u) << "another one would begin anew";
}

}  // namespace
}  // namespace flotilla
