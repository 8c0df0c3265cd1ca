// DetokenizerCore: cases by hand, then random streams against a naive model that sees all the text.
#include "detokenizer_proc/detokenizer_core.h"

#include <gtest/gtest.h>

#include <optional>
#include <random>

#include "common/base/utf8.h"
#include "tests/fakes/byte_vocabulary.h"

namespace flotilla {
namespace {

using Kind = DetokStreamEvent::Kind;
using testing::ByteVocabulary;

std::vector<TokenId> Bytes(std::string_view text) {
  std::vector<TokenId> ids;
  for (char c : text) ids.push_back(static_cast<uint8_t>(c));
  return ids;
}

DetokStreamEvent Open(uint64_t stream, std::vector<std::string> stop = {},
                      std::vector<TokenId> history = {}, uint32_t emitted = 0) {
  DetokStreamEvent event;
  event.kind = Kind::kOpen;
  event.stream = stream;
  event.stop = std::move(stop);
  event.tokens = std::move(history);
  event.emitted_tokens = emitted;
  return event;
}

DetokStreamEvent Tokens(uint64_t stream, uint32_t offset, std::vector<TokenId> tokens,
                        bool last = false) {
  DetokStreamEvent event;
  event.kind = Kind::kTokens;
  event.stream = stream;
  event.offset = offset;
  event.tokens = std::move(tokens);
  event.last = last;
  return event;
}

class DetokenizerCoreTest : public ::testing::Test {
 protected:
  std::vector<DetokText> Apply(std::vector<DetokStreamEvent> events) {
    outcome_ = core_.Apply({.generation = 1, .events = std::move(events)});
    EXPECT_EQ(outcome_.reply.generation, 1u);
    return outcome_.reply.texts;
  }
  // The answer to an event of one stream.
  DetokText One(DetokStreamEvent event) {
    std::vector<DetokText> texts = Apply({std::move(event)});
    EXPECT_EQ(texts.size(), 1u);
    return texts.empty() ? DetokText() : texts[0];
  }

  const ByteVocabulary vocabulary_;
  DetokenizerCore core_{&vocabulary_, {.max_streams = 3, .max_stop_bytes = 100}};
  DetokenizerCore::Outcome outcome_;
};

TEST_F(DetokenizerCoreTest, StreamsAreIndependent) {
  EXPECT_TRUE(Apply({Open(1), Open(2)}).empty());
  const auto texts = Apply({Tokens(1, 0, Bytes("ab")), Tokens(2, 0, Bytes("\xc3"))});
  ASSERT_EQ(texts.size(), 2u);
  EXPECT_EQ(texts[0].text, "ab");
  EXPECT_EQ(texts[0].num_tokens, 2u);
  EXPECT_EQ(texts[1].text, "");
  EXPECT_EQ(texts[1].held_back, "\xc3");
  const DetokText end = One(Tokens(2, 1, {}, /*last=*/true));
  EXPECT_EQ(end.text, "\xef\xbf\xbd");
  EXPECT_EQ(end.held_back, "");
  EXPECT_TRUE(end.last);
  EXPECT_EQ(core_.num_streams(), 1u);
}

TEST_F(DetokenizerCoreTest, AStopStringOverManyTokensIsHeldBackAndCut) {
  Apply({Open(1, {"<stop>"})});
  EXPECT_EQ(One(Tokens(1, 0, Bytes("a<"))).text, "a");
  DetokText text = One(Tokens(1, 2, Bytes("st")));
  EXPECT_EQ(text.text, "");
  EXPECT_EQ(text.held_back, "<st");
  text = One(Tokens(1, 4, Bytes("x<stop")));  // it was not one, this may be
  EXPECT_EQ(text.text, "<stx");
  EXPECT_EQ(text.held_back, "<stop");
  text = One(Tokens(1, 10, Bytes(">more")));
  EXPECT_EQ(text.text, "");
  EXPECT_EQ(text.stop_index, 0);
  EXPECT_EQ(text.num_tokens, 11u);  // "more" does not count
  EXPECT_TRUE(text.last);
  EXPECT_TRUE(Apply({Tokens(1, 15, Bytes("later"))}).empty());
  EXPECT_FALSE(outcome_.resync);
  EXPECT_EQ(core_.num_streams(), 0u);
}

TEST_F(DetokenizerCoreTest, IncludeStopHoldsNothingBack) {
  DetokStreamEvent open = Open(1, {"##"});
  open.include_stop = true;
  Apply({open});
  EXPECT_EQ(One(Tokens(1, 0, Bytes("a#"))).text, "a#");
  const DetokText text = One(Tokens(1, 2, Bytes("#b")));
  EXPECT_EQ(text.text, "#");
  EXPECT_EQ(text.stop_index, 0);
  EXPECT_EQ(text.num_tokens, 3u);
}

TEST_F(DetokenizerCoreTest, TheMatchThatEndsFirstWinsThenTheLongest) {
  Apply({Open(1, {"bcd", "b", "ab"})});
  const DetokText text = One(Tokens(1, 0, Bytes("xabcd")));
  EXPECT_EQ(text.text, "x");
  EXPECT_EQ(text.stop_index, 2);
  EXPECT_EQ(text.num_tokens, 3u);
}

TEST_F(DetokenizerCoreTest, HeldBackTextComesWithTheEnd) {
  Apply({Open(1, {"stop"})});
  const DetokText text = One(Tokens(1, 0, Bytes("sto"), /*last=*/true));
  EXPECT_EQ(text.text, "sto");
  EXPECT_EQ(text.stop_index, -1);
  EXPECT_TRUE(text.last);
}

TEST_F(DetokenizerCoreTest, StopStringsDoNotCountWithinMinTokens) {
  DetokStreamEvent open = Open(1, {"ab"});
  open.min_tokens = 3;
  Apply({open});
  EXPECT_EQ(One(Tokens(1, 0, Bytes("abx"))).text, "abx");
  const DetokText text = One(Tokens(1, 3, Bytes("ab")));
  EXPECT_EQ(text.stop_index, 0);
  EXPECT_EQ(text.num_tokens, 5u);
}

// Whoever resumes a request may send what it likes; to end within it would be an end that nobody
// takes.
TEST_F(DetokenizerCoreTest, AStopStringWithinWhatWasSentOnBeforeIsNone) {
  Apply({Open(1, {"ab"}, Bytes("xaby"), /*emitted=*/4)});
  EXPECT_EQ(One(Tokens(1, 4, Bytes("z"))).text, "z");
  EXPECT_EQ(One(Tokens(1, 5, Bytes("ab"))).stop_index, 0);
}

TEST_F(DetokenizerCoreTest, ControlTokensAreHiddenUnlessAskedFor) {
  DetokStreamEvent open = Open(2);
  open.skip_special = false;
  Apply({Open(1), open});
  EXPECT_EQ(One(Tokens(1, 0, {'a', ByteVocabulary::kControl, 'b'})).text, "ab");
  EXPECT_EQ(One(Tokens(2, 0, {'a', ByteVocabulary::kControl, 'b'})).text, "a<|end|>b");
}

TEST_F(DetokenizerCoreTest, KnownTokensAreSkippedAndMissingOnesAskedForAgain) {
  Apply({Open(1)});
  EXPECT_EQ(One(Tokens(1, 0, Bytes("abc"))).text, "abc");
  EXPECT_EQ(One(Tokens(1, 1, Bytes("bcd"))).text, "d");
  EXPECT_FALSE(outcome_.resync);
  EXPECT_TRUE(Apply({Tokens(1, 9, Bytes("x"))}).empty());
  EXPECT_TRUE(outcome_.resync);
  EXPECT_EQ(core_.num_streams(), 0u);
  EXPECT_EQ(One(Open(1, {}, Bytes("abcdefghix"), 4)).text, "efghix");
}

TEST_F(DetokenizerCoreTest, NamesTheRequestThatIsInTrouble) {
  DetokStreamEvent open = Open(1);
  open.request_id = "req_1";
  Apply({open, Tokens(1, 9, Bytes("x"))});
  EXPECT_EQ(outcome_.troubled_ids, std::vector<std::string>{"req_1"});
  open.emitted_tokens = 1;  // of no history
  Apply({open});
  EXPECT_EQ(outcome_.troubled_ids, std::vector<std::string>{"req_1"});
}

TEST_F(DetokenizerCoreTest, LimitsAndAnotherGeneration) {
  Apply({Open(1), Open(2), Open(3), Open(4)});
  EXPECT_EQ(outcome_.rejected_events, 1u);
  EXPECT_EQ(core_.num_streams(), 3u);
  EXPECT_TRUE(Apply({Tokens(4, 0, Bytes("a"))}).empty());
  EXPECT_FALSE(outcome_.resync);  // asking again would not help
  Apply({Open(3, {std::string(101, 'x')})});
  EXPECT_EQ(outcome_.rejected_events, 1u);
  Apply({Open(3, {}, Bytes("a"), 2)});  // more emitted than there is
  EXPECT_EQ(outcome_.rejected_events, 1u);
  DetokStreamEvent close;
  close.kind = Kind::kClose;
  close.stream = 1;
  EXPECT_TRUE(Apply({close, close}).empty());
  EXPECT_EQ(core_.num_streams(), 1u);
  // Another generation: nothing is open, and tokens of a stream that is not are asked for again.
  const DetokenizerCore::Outcome outcome =
      core_.Apply({.generation = 2, .events = {Tokens(2, 0, Bytes("a"))}});
  EXPECT_TRUE(outcome.reply.texts.empty());
  EXPECT_TRUE(outcome.resync);
  EXPECT_EQ(core_.num_streams(), 0u);
}

TEST_F(DetokenizerCoreTest, OnlyTheLatestEndedStreamsAreRemembered) {
  DetokenizerCore core(&vocabulary_, {.max_streams = 3, .max_stop_bytes = 100, .max_ended = 2});
  for (uint64_t stream = 1; stream <= 3; ++stream) {
    DetokStreamEvent open = Open(stream, {}, Bytes("x"));
    open.last = true;
    EXPECT_EQ(core.Apply({.generation = 1, .events = {open}}).reply.texts.size(), 1u);
  }
  for (uint64_t stream = 1; stream <= 3; ++stream) {
    const auto outcome = core.Apply({.generation = 1, .events = {Tokens(stream, 1, Bytes("y"))}});
    EXPECT_TRUE(outcome.reply.texts.empty());
    EXPECT_EQ(outcome.resync, stream == 1);
  }
}

// --- Random streams ---

struct Case {
  std::vector<TokenId> tokens;
  DetokStreamEvent open;
  bool ended = false;  // the last token comes with `last`
};

struct Expected {
  std::vector<std::string> emitted;  // [k]: all text sent after k tokens; without the final flush
  std::string final_text;            // with it
  std::optional<uint32_t> stopped_at;
  int32_t stop_index = -1;
};

// From the definition: the whole text is known, every place is tried.
Expected Model(const Tokenizer& vocabulary, const Case& c) {
  std::string bytes, text;
  std::vector<size_t> certain = {0};  // [k]: bytes of text certain after k tokens
  for (const TokenId& id : c.tokens) {
    if (!c.open.skip_special || !vocabulary.IsSpecial(id)) bytes += vocabulary.TokenBytes(id);
    text.clear();
    const size_t used = DecodeUtf8Replacing(bytes, &text);
    certain.push_back(text.size());
    if (&id == &c.tokens.back() && c.ended && used < bytes.size()) text += kReplacementCharacter;
  }
  // The match that ends first and counts: (end, start).
  const size_t first_end = certain[std::min<size_t>(c.open.min_tokens, c.tokens.size())];
  const bool flush_counts = c.tokens.size() > c.open.min_tokens;
  std::optional<std::pair<size_t, size_t>> match;
  Expected expected;
  for (size_t end = first_end + 1; end <= text.size() && !match.has_value(); ++end) {
    if (end > certain.back() && !flush_counts) break;
    for (size_t i = 0; i < c.open.stop.size(); ++i) {
      const std::string& stop = c.open.stop[i];
      if (stop.empty() || !std::string_view(text).substr(0, end).ends_with(stop)) continue;
      if (!match.has_value() || end - stop.size() < match->second) {
        match = {end, end - stop.size()};
        expected.stop_index = static_cast<int32_t>(i);
      }
    }
  }
  for (size_t k = 0; k <= c.tokens.size(); ++k) {
    const std::string_view seen = std::string_view(text).substr(0, certain[k]);
    if (match.has_value() && certain[k] >= match->first) {
      if (!expected.stopped_at.has_value()) expected.stopped_at = static_cast<uint32_t>(k);
      expected.emitted.push_back(
          text.substr(0, c.open.include_stop ? match->first : match->second));
      continue;
    }
    size_t open_end = 0;
    for (const std::string& stop : c.open.stop) {
      for (size_t n = std::min(stop.size(), seen.size()); n > open_end; --n)
        if (seen.ends_with(std::string_view(stop).substr(0, n))) open_end = n;
    }
    if (c.open.include_stop) open_end = 0;
    expected.emitted.emplace_back(seen.substr(0, seen.size() - open_end));
  }
  if (match.has_value() && !expected.stopped_at.has_value())
    expected.stopped_at = static_cast<uint32_t>(c.tokens.size());
  expected.final_text =
      match.has_value() ? text.substr(0, c.open.include_stop ? match->first : match->second) : text;
  return expected;
}

Case RandomCase(std::mt19937* random) {
  Case c;
  c.open = Open(5);
  const auto below = [&](uint32_t n) { return (*random)() % n; };
  for (uint32_t n = below(4); n > 0; --n) {
    std::string stop;
    for (uint32_t m = below(5); m > 0; --m) {
      const char* const parts[] = {"a", "b", "é", "€", "\n"};
      stop += parts[below(5)];
    }
    c.open.stop.push_back(stop);
  }
  c.open.skip_special = below(2) == 0;
  c.open.include_stop = below(3) == 0;
  c.open.min_tokens = below(3) == 0 ? below(12) : 0;
  c.ended = below(2) == 0;
  for (uint32_t n = below(25); n > 0; --n) {
    const TokenId some[] = {'a', 'b', 0xc3, 0xa9, 0xe2, 0x82, 0xac, '\n', 0xef, 0xbf, 0xbd};
    c.tokens.push_back(below(8) == 0 ? static_cast<TokenId>(250 + below(14)) : some[below(11)]);
  }
  return c;
}

// Sends the tokens in frames of random size; now and then the detokenizer dies and the stream is
// opened again in another one with what was answered so far.
void ExpectAsModelled(const Tokenizer& vocabulary, const Case& c, std::mt19937* random) {
  const Expected expected = Model(vocabulary, c);
  auto core = std::make_unique<DetokenizerCore>(&vocabulary);
  DetokRequest request{.generation = 1, .events = {c.open}};
  core->Apply(request);
  uint32_t sent = 0, answered = 0;
  std::string text;
  bool done = false;
  while (!done && (sent < c.tokens.size() || (c.ended && sent == c.tokens.size()))) {
    const uint32_t left = static_cast<uint32_t>(c.tokens.size()) - sent;
    const uint32_t count = left == 0 ? 0 : 1 + (*random)() % left;
    const auto from = c.tokens.begin() + sent;
    const bool last = c.ended && count == left;
    request.events = {Tokens(5, sent, {from, from + count}, last)};
    if ((*random)() % 4 == 0) {
      core = std::make_unique<DetokenizerCore>(&vocabulary);
      ++request.generation;
      DetokStreamEvent open = c.open;
      open.tokens.assign(c.tokens.begin(), from + count);
      open.emitted_tokens = answered;
      open.last = last;
      request.events = {open};
    }
    sent += count;
    const DetokenizerCore::Outcome outcome = core->Apply(request);
    for (const DetokText& answer : outcome.reply.texts) {
      text += answer.text;
      ASSERT_EQ(FindInvalidUtf8(answer.text), std::nullopt);
      ASSERT_GE(answer.num_tokens, answered);
      answered = answer.num_tokens;
      done = answer.last;
      if (answer.stop_index >= 0) {
        ASSERT_EQ(expected.stopped_at, answer.num_tokens);
        ASSERT_EQ(expected.stop_index, answer.stop_index);
      } else if (!answer.last) {
        ASSERT_EQ(text, expected.emitted[answered]);
      }
    }
    if (last) break;
  }
  ASSERT_EQ(done, c.ended || expected.stopped_at.has_value());
  if (done) {
    ASSERT_EQ(text, expected.final_text);
    ASSERT_EQ(core->num_streams(), 0u);
  }
}

TEST(DetokenizerCoreModelTest, RandomStreamsEqualTheModel) {
  const ByteVocabulary vocabulary;
  std::mt19937 random(43);
  int stopped = 0;
  for (int round = 0; round < 30000; ++round) {
    const Case c = RandomCase(&random);
    ASSERT_NO_FATAL_FAILURE(ExpectAsModelled(vocabulary, c, &random)) << "round " << round;
    stopped += Model(vocabulary, c).stopped_at.has_value();
  }
  EXPECT_GT(stopped, 2000);
}

}  // namespace
}  // namespace flotilla
