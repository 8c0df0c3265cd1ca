// What single deltas become: token texts, offsets, stop reasons.
#include "router/api/completions_response.h"

#include <gtest/gtest.h>

#include <boost/json/parse.hpp>

#include "router/api/chat_response.h"
#include "tests/fakes/byte_vocabulary.h"
#include "tests/fakes/fake_engine_service.h"

namespace flotilla {
namespace {

class CompletionsResponseTest : public ::testing::Test {
 protected:
  CompletionsResponseTest() {
    auto model = std::make_shared<ModelHandle>();
    model->tokenizer =
        std::shared_ptr<const Tokenizer>(GetTestModel().tokenizer.get(), [](const Tokenizer*) {});
    request_.model = model;
    request_.prompts.push_back({"Hé", *GetTestModel().tokenizer->Encode("Hé")});
    request_.params.mutable_output()->set_skip_special_tokens(true);
  }

  boost::json::value Format(const v1::Delta& delta) {
    ChoiceFormatter formatter(request_, 0);
    const ChoicePiece piece = formatter.OnDelta(delta);
    const std::string json = CompletionJson({"id", 1, "m", "fp"}, request_, {piece}, {});
    return boost::json::parse(json).at("choices").at(0);
  }
  static v1::Delta TokensOf(const std::string& text) {
    v1::Delta delta;
    v1::ChoiceDelta* choice = delta.add_choices();
    const std::vector<TokenId> ids = *GetTestModel().tokenizer->Encode(text);
    for (TokenId id : ids) {
      choice->add_token_ids(id);
      choice->add_logprobs()->set_token_id(id);
    }
    return delta;
  }

  CompletionRequest request_;
};

TEST_F(CompletionsResponseTest, OffsetsCountCodePointsAndPartsOfACharacterShareOne) {
  request_.logprobs = 0;
  const std::string text = "a😀b";
  const v1::Delta delta = TokensOf(text);
  const boost::json::value choice = Format(delta);
  const boost::json::array& tokens = choice.at("logprobs").at("tokens").as_array();
  const boost::json::array& offsets = choice.at("logprobs").at("text_offset").as_array();
  ASSERT_GE(tokens.size(), 4u) << "the emoji is several tokens in this vocabulary";
  EXPECT_EQ(offsets[0].as_int64(), 0);
  for (size_t i = 1; i + 1 < tokens.size(); ++i) {
    EXPECT_EQ(offsets[i].as_int64(), 1) << i;
    EXPECT_NE(std::string(tokens[i].as_string()).find("\xEF\xBF\xBD"), std::string::npos)
        << "a part of a character reads as U+FFFD";
  }
  EXPECT_EQ(offsets[tokens.size() - 1].as_int64(), 2);
}

TEST_F(CompletionsResponseTest, EchoedTextMovesTheOffsetsByItsCharacters) {
  request_.logprobs = 0;
  request_.echo = true;
  const boost::json::value choice = Format(TokensOf("ab"));
  const boost::json::array& offsets = choice.at("logprobs").at("text_offset").as_array();
  EXPECT_EQ(offsets.back().as_int64(), 2) << "H and é";
}

TEST_F(CompletionsResponseTest, StopReasons) {
  struct Case {
    const char* reason;
    const char* stop_string;
    const char* json;
  };
  for (const Case& c : {Case{"", "x", "null"}, Case{"END", "END", "\"END\""}, Case{"42", "x", "42"},
                        Case{"42", "42", "\"42\""}, Case{"42x", "y", "\"42x\""}}) {
    request_.params.mutable_stopping()->clear_stop();
    request_.params.mutable_stopping()->add_stop(c.stop_string);
    v1::Delta delta;
    delta.add_choices()->set_finish_reason(v1::FINISH_REASON_STOP);
    delta.mutable_choices(0)->set_stop_reason(c.reason);
    const boost::json::value choice = Format(delta);
    EXPECT_EQ(choice.at("stop_reason"), boost::json::parse(c.json)) << c.reason;
    EXPECT_EQ(choice.at("finish_reason"), "stop");
  }
}

TEST_F(CompletionsResponseTest, TwoTokensWithOneTextKeepTheFirstLogprob) {
  request_.logprobs = 5;
  v1::Delta delta = TokensOf("a");
  v1::TokenLogprobs* entry = delta.mutable_choices(0)->mutable_logprobs(0);
  entry->set_logprob(-1);
  const std::vector<TokenId> parts = *GetTestModel().tokenizer->Encode("😀");
  for (size_t i = 0; i < 2; ++i) {
    entry->add_top()->set_token_id(parts[i]);
    entry->mutable_top(static_cast<int>(i))->set_logprob(-2.0f - static_cast<float>(i));
  }
  const boost::json::object top = Format(delta).at("logprobs").at("top_logprobs").at(0).as_object();
  EXPECT_EQ(top.at("a").to_number<double>(), -1);
  EXPECT_EQ(top.at("\xEF\xBF\xBD").to_number<double>(), -2);
}

TEST_F(CompletionsResponseTest, PromptLogprobsBeyondThePromptAreDropped) {
  request_.prompt_logprobs = 0;
  v1::Delta delta;
  for (int i = 0; i < 100; ++i) delta.add_prompt_logprobs()->set_token_id(5);
  EXPECT_EQ(Format(delta).at("prompt_logprobs").as_array().size(), request_.prompts[0].ids.size());
}

TEST_F(CompletionsResponseTest, PiecesJoinToTheWhole) {
  request_.logprobs = 0;
  request_.return_token_ids = true;
  const v1::Delta all = TokensOf("one two three");
  const boost::json::value whole = Format(all);
  ChoiceFormatter formatter(request_, 0);
  ChoicePiece joined;
  for (int i = 0; i < all.choices(0).token_ids_size(); ++i) {
    v1::Delta one;
    one.add_choices()->add_token_ids(all.choices(0).token_ids(i));
    *one.mutable_choices(0)->add_logprobs() = all.choices(0).logprobs(i);
    joined.Append(formatter.OnDelta(one));
  }
  const std::string json = CompletionJson({}, request_, {joined}, {});
  EXPECT_EQ(boost::json::parse(json).at("choices").at(0), whole);
}

// As SentencePiece's: of a whole text it drops the blank before the first word.
class StrippingVocabulary final : public testing::ByteVocabulary {
 public:
  bool strips_leading_space() const override { return true; }
};

TEST(ChatResponseTest, ATokensTextKeepsItsBlank) {
  auto model = std::make_shared<ModelHandle>();
  model->tokenizer = std::make_shared<StrippingVocabulary>();
  CompletionRequest request;
  request.model = model;
  v1::TokenLogprobs entry;
  entry.set_token_id(' ');
  std::string json;
  AppendChatLogprob(entry, request, &json);
  EXPECT_EQ(boost::json::parse(json).at("token"), " ");
}

}  // namespace
}  // namespace flotilla
