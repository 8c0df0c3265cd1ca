#include "router/api_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "common/base/sha256.h"

namespace flotilla {
namespace {

using ::testing::HasSubstr;

std::string Line(std::string_view tenant, std::string_view key, std::string_view rest = "") {
  return StrCat(tenant, " ", Sha256Hex(key), " ", rest, "\n");
}

std::string Why(std::string_view text) {
  const auto keys = ParseApiKeys(text);
  EXPECT_FALSE(keys.ok()) << text;
  return keys.ok() ? "" : std::string(keys.status().message());
}

TEST(ApiKeysTest, ALineIsATenantAHashAndLimits) {
  const auto keys = ParseApiKeys(
      StrCat("# ours\n\n", Line("a", "k1"),
             Line("b.2", "k2", "requests-per-minute=60 tokens-per-minute=9 concurrency=2"),
             Line("b.2", "k3",
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
  EXPECT_THAT(Why(Line("a/b", "k")), HasSubstr("tenant's name"));
  EXPECT_THAT(Why(Line(std::string(65, 'a'), "k")), HasSubstr("tenant's name"));
  EXPECT_THAT(Why(Line("a", "k", "rpm=1")), HasSubstr("'rpm=1'"));
  EXPECT_THAT(Why(Line("a", "k", "concurrency=0")), HasSubstr("concurrency"));
  EXPECT_THAT(Why(Line("a", "k", "concurrency=2x")), HasSubstr("concurrency"));
  EXPECT_THAT(Why(Line("a", "k") + Line("b", "k")), HasSubstr("another line too"));
  EXPECT_THAT(Why(Line("a", "k") + Line("a", "l", "concurrency=1")), HasSubstr("other limits"));
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
  void SetUp() override {
    char name[] = "/tmp/flotilla-keys-XXXXXX";
    const int fd = mkstemp(name);
    ASSERT_GE(fd, 0);
    close(fd);
    path_ = name;
  }
  void TearDown() override { std::filesystem::remove(path_); }
  void Write(const std::string& text) { std::ofstream(path_) << text; }
  static absl::StatusCode CodeOf(const ApiKeys& keys, std::string_view key) {
    const auto found = keys.Find(key);
    const auto* error = std::get_if<ApiError>(&found);
    return error == nullptr ? absl::StatusCode::kOk : error->code;
  }

  std::string path_;
};

TEST_F(ApiKeysFileTest, AKeyIsKnownDisabledOrUnknown) {
  Write(Line("a", "one") + Line("b", "two", "disabled"));
  ApiKeys keys(path_);
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
  Write(Line("a", "one"));
  ApiKeys keys(path_);
  ASSERT_TRUE(keys.Load().ok());
  EXPECT_FALSE(*keys.Reload());
  Write(Line("a", "two"));
  EXPECT_TRUE(*keys.Reload());
  EXPECT_EQ(CodeOf(keys, "one"), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(CodeOf(keys, "two"), absl::StatusCode::kOk);
  Write("nonsense");
  EXPECT_FALSE(keys.Reload().ok());
  EXPECT_FALSE(*keys.Reload()) << "told once";
  EXPECT_EQ(CodeOf(keys, "two"), absl::StatusCode::kOk);
  std::filesystem::remove(path_);
  EXPECT_FALSE(*keys.Reload());
  EXPECT_EQ(CodeOf(keys, "two"), absl::StatusCode::kOk);
}

}  // namespace
}  // namespace flotilla
