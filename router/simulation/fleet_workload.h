// Conversations for a simulated fleet: who asks what, and when.
//
// A conversation belongs to a group, whose members begin with the same system prompt (a tenant, an
// application); groups differ in size as Zipf has it. Each turn's prompt is all that was said
// before, answers included, and the user's next words. The next turn comes a while after the
// answer.
//
// Units: seconds of virtual time, tokens. Threads: one. The same seed gives the same conversations.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace flotilla {

struct WorkloadOptions {
  uint64_t num_requests = 100'000;  // turns of all conversations
  double rate = 100;                // of them, arrivals a second, about
  double turns = 5;                 // of a conversation, the mean
  double think_s = 10;              // from an answer to the next turn, the mean
  uint32_t groups = 100;            // of equal system prompts; 0: none share any
  uint32_t system_tokens = 1000;
  double user_tokens = 100, output_tokens = 150;  // of a turn, the means
  // This share of the turns has ten times the mean of user's tokens, the others less.
  double long_share = 0;
  uint64_t seed = 1;
};

// The next turn of a conversation.
struct Turn {
  uint64_t conversation = 0;
  uint32_t group = 0;
  uint32_t prefix_tokens = 0;  // of the prompt: the group's system prompt
  uint32_t prompt_tokens = 0;
  uint32_t output_tokens = 0;
};

class FleetWorkload {
 public:
  explicit FleetWorkload(const WorkloadOptions& options);

  // Seconds until the next conversation begins; negative: none does any more.
  double NextGap();
  Turn Begin();
  // The conversation goes on after `last` was answered: fills *next and *pause_s. False: it is over
  // (or there are requests enough).
  bool GoOn(const Turn& last, Turn* next, double* pause_s);

 private:
  double Exponential(double mean) { return std::exponential_distribution<>(1 / mean)(random_); }
  uint32_t Length(double mean);
  void Fill(Turn* turn, uint32_t history);

  const WorkloadOptions options_;
  std::mt19937_64 random_;
  std::vector<double> group_weights_;
  std::discrete_distribution<uint32_t> group_;
  uint64_t begun_ = 0;     // conversations
  uint64_t requests_ = 0;  // made
};

}  // namespace flotilla
