#include "scheduler_proc/exchange/inbox.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <thread>

namespace flotilla {
namespace {

SubmitCommand Submit(ReqId id) {
  SubmitCommand command;
  command.spec.id = id;
  return command;
}

TEST(Inbox, RefusesSubmitsBeyondTheBoundButNeverAborts) {
  int wakes = 0;
  Inbox inbox(2, [&] { ++wakes; });
  EXPECT_TRUE(inbox.Submit(Submit(1)).ok());
  EXPECT_TRUE(inbox.Submit(Submit(2)).ok());
  EXPECT_EQ(inbox.Submit(Submit(3)).code(), absl::StatusCode::kResourceExhausted);
  inbox.Abort(1, Finish::kAbort);
  inbox.Truncate(2, 5);
  EXPECT_EQ(wakes, 4);
  std::vector<Command> commands;
  inbox.Drain(&commands);
  ASSERT_EQ(commands.size(), 4u);
  EXPECT_EQ(std::get<AbortCommand>(commands[2]).id, 1u);
  EXPECT_EQ(std::get<TruncateCommand>(commands[3]).num_tokens, 5u);
  EXPECT_TRUE(inbox.Submit(Submit(4)).ok());  // there is room again
}

TEST(Inbox, ManyProducersKeepTheirOrder) {
  std::atomic<bool> woken{false};
  Inbox inbox(1 << 20, [&] { woken.store(true); });
  constexpr ReqId kEach = 2000, kProducers = 4;
  std::vector<std::thread> producers;
  for (ReqId p = 0; p < kProducers; ++p)
    producers.emplace_back([&inbox, p] {
      for (ReqId i = 0; i < kEach; ++i) {
        EXPECT_TRUE(inbox.Submit(Submit(p * kEach + i)).ok());
        inbox.Abort(p * kEach + i, Finish::kAbort);
      }
    });
  std::map<ReqId, ReqId> next;
  size_t got = 0;
  while (got < 2 * kEach * kProducers) {
    std::vector<Command> commands;
    inbox.Drain(&commands);
    for (Command& command : commands) {
      ++got;
      if (auto* submit = std::get_if<SubmitCommand>(&command)) {
        EXPECT_EQ(submit->spec.id % kEach, next[submit->spec.id / kEach]++);
      } else {
        const ReqId id = std::get<AbortCommand>(command).id;
        EXPECT_EQ(id % kEach + 1, next[id / kEach]);  // right after its submit
      }
    }
  }
  for (std::thread& p : producers) p.join();
  EXPECT_TRUE(woken.load());
}

}  // namespace
}  // namespace flotilla
