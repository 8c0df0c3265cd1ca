// Searching finds what std::string's functions find, in all texts of few letters.
#include "common/template/search.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace flotilla::jinja {
namespace {

std::string RandomText(std::mt19937& random, size_t max_size) {
  std::string text(random() % (max_size + 1), 'a');
  const uint32_t rare = 2 + random() % 8;
  for (char& c : text) c = random() % rare == 0 ? 'b' : 'a';
  return text;
}

TEST(TemplateSearchTest, FindsWhatStringFinds) {
  std::mt19937 random(1);
  int found = 0;
  for (int i = 0; i < 50'000; ++i) {
    const std::string text = RandomText(random, 200);
    // Now and then a part that is there, longer than what RFindText searches without its table.
    std::string part = RandomText(random, i % 3 == 0 ? 60 : 5);
    if (i % 5 == 0 && !text.empty()) part = text.substr(random() % text.size(), 33 + i % 30);
    const size_t from = random() % (text.size() + 3);
    ASSERT_EQ(FindText(text, part, from), text.find(part, from)) << text << "\n" << part << from;
    ASSERT_EQ(RFindText(text, part), text.rfind(part)) << text << "\n" << part;
    found += part.size() > 32 && text.find(part) != std::string::npos;
  }
  EXPECT_GT(found, 1000);
}

TEST(TemplateSearchTest, Edges) {
  EXPECT_EQ(FindText("", ""), 0u);
  EXPECT_EQ(FindText("abc", "", 3), 3u);
  EXPECT_EQ(FindText("abc", "", 4), std::string_view::npos);
  EXPECT_EQ(RFindText("abc", ""), 3u);
  EXPECT_EQ(RFindText("", "a"), std::string_view::npos);
  const std::string text(100, 'a');
  EXPECT_EQ(RFindText(text, text), 0u);
  EXPECT_EQ(RFindText(text, text.substr(50)), 50u);
  EXPECT_EQ(RFindText(text, text + "a"), std::string_view::npos);
}

}  // namespace
}  // namespace flotilla::jinja
