#include "scheduler_proc/exchange/errors.h"

#include <gtest/gtest.h>

#include "scheduler_proc/grammar/structural_tag.h"

namespace flotilla {
namespace {

// Messages cut what clients wrote, maybe within a character; a frame with that is none to protobuf,
// and ends a connection with all its requests.
TEST(ErrorsTest, MessagesAreUtf8WhereverTheyAreCut) {
  for (size_t before = 0; before < 100; ++before) {
    const std::string text(before, 'a');
    for (const std::string& format :
         {StrCat(R"({"type":")", text, R"(ééé"})"),
          StrCat(R"({"type":"plus",")", text, R"(ééé":1})"),
          StrCat(R"({"type":"tag","begin":")", text, R"(ééé","end":"","content":{"type":"x"}})")}) {
      const auto checked = CheckStructuralTag(StrCat(R"({"format":)", format, "}"), "structured");
      ASSERT_FALSE(checked.ok());
      const v1::Delta delta = RefusalDelta(checked.status());
      v1::Delta read;
      ASSERT_TRUE(read.ParseFromString(delta.SerializeAsString())) << format;
      EXPECT_EQ(read.error().field(), "structured");
      EXPECT_EQ(read.error().message().find("a\xc3\""), std::string::npos);
    }
  }
  EXPECT_EQ(ToError(absl::InvalidArgumentError("x: \xc3\xa9\xc3 \xff")).message(),
            "x: \xc3\xa9\xef\xbf\xbd \xef\xbf\xbd");
}

}  // namespace
}  // namespace flotilla
