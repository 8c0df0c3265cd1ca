#include "router/admission/api_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/sha256.h"
#include "tests/router/keys_file.h"

namespace flotilla {
namespace {

using ::testing::HasSubstr;

std::string Why(std::string_view text) {
  const auto keys = ParseApiKeys(text);
  EXPECT_FALSE(keys.ok()) << text;
  return keys.ok() ? "" : std::string(keys.status().message());
}

TEST(ApiKeysTest, ALineIsATenantAHashAndLimits) {
  const auto keys = ParseApiKeys(
      StrCat("# ours\n\n", KeyLine("a", "k1"),
             KeyLine("b.2", "k2", "requests-per-minute=60 tokens-per-minute=9 concurrency=2"),
             KeyLine("b.2", "k3",
                     "concurrency=2 tokens-per-minute=9 requests-per-minute=60 disabled # old")));
  ASSERT_TRUE(keys.ok()) << keys.status();
  ASSERT_EQ(keys->size(), 3u);
  EXPECT_EQ(*(*keys)[0].tenant, (Tenant{.name = "a"}));
  EXPECT_EQ(*(*keys)[1].tenant, (Tenant{"b.2", 60, 9, 2}));
  EXPECT_EQ((*keys)[1].tenant, (*keys)[2].tenant);
  EXPECT_FALSE((*keys)[1].disabled);
  EXPECT_TRUE((*keys)[2].disabled);
}

TEST(ApiKeysTest, ABadLineIsNamed) {
  EXPECT_THAT(Why("\na\n"), HasSubstr("line 2"));
  EXPECT_THAT(Why("a key"), HasSubstr("SHA-256"));
  EXPECT_THAT(Why(KeyLine("a/b", "k")), HasSubstr("tenant's name"));
  EXPECT_THAT(Why(KeyLine(std::string(65, 'a'), "k")), HasSubstr("tenant's name"));
  EXPECT_THAT(Why(KeyLine("a", "k", "rpm=1")), HasSubstr("'rpm=1'"));
  EXPECT_THAT(Why(KeyLine("a", "k", "concurrency=0")), HasSubstr("concurrency"));
  EXPECT_THAT(Why(KeyLine("a", "k", "concurrency=2x")), HasSubstr("concurrency"));
  EXPECT_THAT(Why(KeyLine("a", "k") + KeyLine("b", "k")), HasSubstr("another line too"));
  EXPECT_THAT(Why(KeyLine("a", "k") + KeyLine("a", "l", "concurrency=1")),
              HasSubstr("other limits"));
}

TEST(ApiKeysTest, BearerKeys) {
  EXPECT_EQ(BearerKey("Bearer abc"), "abc");
  EXPECT_EQ(BearerKey("bearer   abc "), "abc");
  EXPECT_EQ(BearerKey("Basic abc"), "");
  EXPECT_EQ(BearerKey("Bearer"), "");
  EXPECT_EQ(BearerKey(""), "");
}

class ApiKeysFileTest : public ::testing::Test {
 protected:
  static absl::StatusCode CodeOf(const ApiKeys& keys, std::string_view key) {
    const auto found = keys.Find(key);
    const auto* error = std::get_if<ApiError>(&found);
    return error == nullptr ? absl::StatusCode::kOk : error->code;
  }

  const KeysFile file_;
};

TEST_F(ApiKeysFileTest, AKeyIsKnownDisabledOrUnknown) {
  file_.Write(KeyLine("a", "one") + KeyLine("b", "two", "disabled"));
  ApiKeys keys(file_.path());
  ASSERT_TRUE(keys.Load().ok());
  EXPECT_EQ(std::get<std::shared_ptr<const Tenant>>(keys.Find("one"))->name, "a");
  EXPECT_EQ(CodeOf(keys, "two"), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(CodeOf(keys, "three"), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(CodeOf(keys, ""), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(CodeOf(keys, Sha256Hex("one")), absl::StatusCode::kUnauthenticated)
      << "a hash is no key";
  EXPECT_EQ(CodeOf(keys, std::string(1 << 20, 'x')), absl::StatusCode::kUnauthenticated);
}

TEST_F(ApiKeysFileTest, AFileThatChangedIsReadAgainAndABadOneChangesNothing) {
  file_.Write(KeyLine("a", "one"));
  ApiKeys keys(file_.path());
  ASSERT_TRUE(keys.Load().ok());
  EXPECT_FALSE(*keys.Reload());
  file_.Write(KeyLine("a", "two"));
  EXPECT_TRUE(*keys.Reload());
  EXPECT_EQ(CodeOf(keys, "one"), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(CodeOf(keys, "two"), absl::StatusCode::kOk);
  file_.Write("nonsense");
  EXPECT_FALSE(keys.Reload().ok());
  EXPECT_FALSE(*keys.Reload()) << "told once";
  EXPECT_EQ(CodeOf(keys, "two"), absl::StatusCode::kOk);
  file_.Write(KeyLine("a", "two"));
  EXPECT_TRUE(*keys.Reload());
  file_.Remove();
  EXPECT_FALSE(*keys.Reload()) << "it may be on its way";
  EXPECT_EQ(keys.Reload().status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(*keys.Reload()) << "told once";
  EXPECT_EQ(CodeOf(keys, "two"), absl::StatusCode::kOk);
  file_.Write("# nobody");
  EXPECT_TRUE(*keys.Reload());
  EXPECT_EQ(CodeOf(keys, "two"), absl::StatusCode::kUnauthenticated);
}

}  // namespace
}  // namespace flotilla
