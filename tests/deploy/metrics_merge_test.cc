#include "deploy/launcher/metrics_merge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

namespace flotilla {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(MetricsMergeTest, OneHeaderAFamilyAndItsSamplesTogether) {
  MetricsMerger merger;
  merger.Add(
      "# HELP a_total As.\n# TYPE a_total counter\na_total{x=\"1\"} 2\n"
      "# HELP b Bs.\n# TYPE b gauge\nb 1\n",
      {});
  merger.Add("# HELP a_total As.\n# TYPE a_total counter\na_total{x=\"2\"} 3\n", {});
  EXPECT_EQ(merger.Render(),
            "# HELP a_total As.\n# TYPE a_total counter\na_total{x=\"1\"} 2\na_total{x=\"2\"} 3\n"
            "# HELP b Bs.\n# TYPE b gauge\nb 1\n");
  EXPECT_EQ(merger.dropped_lines(), 0u);
}

TEST(MetricsMergeTest, HistogramSamplesBelongToTheirFamily) {
  MetricsMerger merger;
  const std::string page =
      "# HELP t_seconds T.\n# TYPE t_seconds histogram\nt_seconds_bucket{le=\"1\"} 1\n"
      "t_seconds_bucket{le=\"+Inf\"} 2\nt_seconds_sum 3.5\nt_seconds_count 2\n";
  merger.Add(page, {{"replica", "r0"}});
  merger.Add(page, {{"replica", "r1"}});
  const std::string out = merger.Render();
  EXPECT_EQ(out.find("# TYPE"), out.rfind("# TYPE"));
  EXPECT_THAT(out, HasSubstr("t_seconds_bucket{le=\"+Inf\",replica=\"r1\"} 2\n"));
  EXPECT_THAT(out, HasSubstr("t_seconds_sum{replica=\"r0\"} 3.5\n"));
}

TEST(MetricsMergeTest, ACounterMayEndLikeAHistogramsSample) {
  MetricsMerger merger;
  merger.Add("# TYPE pages_count gauge\npages_count 4\n", {});
  EXPECT_EQ(merger.Render(), "# TYPE pages_count gauge\npages_count 4\n");
}

TEST(MetricsMergeTest, LabelsAreAddedOnlyWhereTheyLack) {
  MetricsMerger merger;
  merger.Add("a{replica=\"own\"} 1\nb{note=\"x,replica=\\\"\"} 1\nc 1\n", {{"replica", "r0"}});
  const std::string out = merger.Render();
  EXPECT_THAT(out, HasSubstr("a{replica=\"own\"} 1\n"));
  EXPECT_THAT(out, HasSubstr("b{note=\"x,replica=\\\"\",replica=\"r0\"} 1\n"));
  EXPECT_THAT(out, HasSubstr("c{replica=\"r0\"} 1\n"));
}

TEST(MetricsMergeTest, LabelValuesMayHoldAnything) {
  MetricsMerger merger;
  merger.Add("a{v=\"} 7 \\\\\\\" {\",w=\"\"} 1 1700000000000\n", {});
  EXPECT_THAT(merger.Render(), HasSubstr("a{v=\"} 7 \\\\\\\" {\",w=\"\"} 1 1700000000000\n"));
}

TEST(MetricsMergeTest, DropsWhatIsNotTheFormatAndWhatIsThereTwice) {
  MetricsMerger merger;
  merger.Add("a 1\na 2\n9bad 1\nnovalue\nopen{x=\"1\" 2\n{} 1\n# HELP 1x y\n", {});
  EXPECT_EQ(merger.Render(), "# TYPE a untyped\na 1\n");
  EXPECT_EQ(merger.dropped_lines(), 6u);
}

TEST(MetricsMergeTest, AFamilyOfAnotherTypeIsLeftOut) {
  MetricsMerger merger;
  merger.Add("# TYPE a counter\na{p=\"1\"} 1\n", {});
  merger.Add("# TYPE a gauge\na{p=\"2\"} 1\n", {});
  EXPECT_THAT(merger.Render(), Not(HasSubstr("p=\"2\"")));
}

TEST(MetricsMergeTest, TheMergedPagePassesPromtool) {
  const std::string page =
      "# HELP flotilla_x_total Xs.\n# TYPE flotilla_x_total counter\nflotilla_x_total 2\n"
      "# HELP flotilla_t_seconds T.\n# TYPE flotilla_t_seconds histogram\n"
      "flotilla_t_seconds_bucket{le=\"1\"} 1\nflotilla_t_seconds_bucket{le=\"+Inf\"} 2\n"
      "flotilla_t_seconds_sum 3.5\nflotilla_t_seconds_count 2\n";
  MetricsMerger merger;
  merger.Add(page, {{"replica", "r0"}});
  merger.Add(page, {{"replica", "r1"}});
  const std::string path = StrCat(testing::TempDir(), "/merged_", getpid(), ".prom");
  std::ofstream(path) << merger.Render();
  EXPECT_EQ(std::system(("promtool check metrics < " + path).c_str()), 0)
      << "promtool comes with Debian's package prometheus";
  std::remove(path.c_str());
}

}  // namespace
}  // namespace flotilla
