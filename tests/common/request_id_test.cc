#include "common/base/request_id.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace flotilla {
namespace {

TEST(RequestIdTest, TakesWhatIsInUse) {
  for (const char* id :
       {"a", "req_0123", "f81d4fae-7dec-11d0-a765-00a0c91e6bf6", "01ARZ3NDEKTSV4RRFFQ69G5FAV",
        "Root=1-67891233-abcdef012345678912345678", "YWJj+/==", "svc:job@host~1.2"})
    EXPECT_TRUE(IsRequestId(id)) << id;
  EXPECT_TRUE(IsRequestId(std::string(kMaxRequestIdBytes, 'x')));
}

TEST(RequestIdTest, RefusesWhatCouldHarm) {
  for (const std::string& id :
       {std::string(), std::string(kMaxRequestIdBytes + 1, 'x'), std::string("a b"),
        std::string("a\nb"), std::string("a\"b"), std::string("a\\b"), std::string("a\0b", 3),
        std::string("\x1b[31m"), std::string("é"), std::string("{}"), std::string("a;b,c")})
    EXPECT_FALSE(IsRequestId(id)) << id;
}

TEST(RequestIdTest, NewOnesDiffer) {
  const std::string id = NewRequestId();
  EXPECT_THAT(id, testing::MatchesRegex("req_[0-9a-f]{32}"));
  EXPECT_TRUE(IsRequestId(id));
  EXPECT_NE(id, NewRequestId());
}

}  // namespace
}  // namespace flotilla
