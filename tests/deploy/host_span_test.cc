#include "deploy/launcher/host_span.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_join.h"
#include "deploy/launcher/command_lines.h"

namespace flotilla {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

ServeOptions Head() {
  ServeOptions options;
  options.tp = "3";
  options.remote_ranks = 1;
  options.join_address = "10.0.0.1:29500";
  options.link_secret_file = "/secret";
  return options;
}

ServeOptions Join() {
  ServeOptions options;
  options.tp = "3";
  options.head = "10.0.0.1:29500";
  options.rank = 2;
  options.link_secret_file = "/secret";
  return options;
}

TEST(HostSpanTest, OneHostHasAllRanks) {
  const auto span = SpanOfHead({});
  ASSERT_TRUE(span.ok());
  EXPECT_FALSE(span->several_hosts());
  EXPECT_FALSE(span->joined);
}

TEST(HostSpanTest, TheHeadHasTheFirstRanks) {
  const auto span = SpanOfHead(Head());
  ASSERT_TRUE(span.ok()) << span.status();
  EXPECT_TRUE(span->several_hosts());
  EXPECT_EQ(span->local_ranks, 2u);
  EXPECT_FALSE(span->IsRemote(1));
  EXPECT_TRUE(span->IsRemote(2));
  EXPECT_EQ(span->CollectiveAddress(), "10.0.0.1:29500");
  EXPECT_EQ(span->PlanAddress(2), "10.0.0.1:29502");
}

TEST(HostSpanTest, AJoinedHostHasOne) {
  const auto span = SpanOfJoin(Join());
  ASSERT_TRUE(span.ok()) << span.status();
  EXPECT_TRUE(span->joined);
  EXPECT_EQ(span->first_rank, 2u);
  EXPECT_EQ(span->local_ranks, 1u);
  EXPECT_FALSE(span->IsRemote(2));
  EXPECT_EQ(span->PlanAddress(2), "10.0.0.1:29502");
}

TEST(HostSpanTest, ErrorsNameTheFlag) {
  const auto of_head = [](auto change) {
    ServeOptions options = Head();
    change(&options);
    return std::string(SpanOfHead(options).status().message());
  };
  EXPECT_THAT(of_head([](ServeOptions* o) { o->tp = "auto"; }),
              HasSubstr("--remote-ranks: needs --tp"));
  EXPECT_THAT(of_head([](ServeOptions* o) { o->remote_ranks = 3; }),
              HasSubstr("--remote-ranks: 3 of --tp 3 leave none"));
  EXPECT_THAT(of_head([](ServeOptions* o) { o->replicas = 2; }),
              HasSubstr("--remote-ranks: a replica"));
  EXPECT_THAT(of_head([](ServeOptions* o) { o->join_address = ""; }),
              HasSubstr("--join-address: '' is not HOST:PORT"));
  EXPECT_THAT(of_head([](ServeOptions* o) { o->join_address = "h:65534"; }),
              HasSubstr("--join-address: there must be 3 ports from 65534 on"));
  EXPECT_THAT(of_head([](ServeOptions* o) { o->link_secret_file = ""; }),
              HasSubstr("needs --link-secret-file"));
  EXPECT_EQ(of_head([](ServeOptions* o) { o->remote_ranks = 0; }),
            "--join-address: needs --remote-ranks");
  EXPECT_EQ(of_head([](ServeOptions* o) {
              o->remote_ranks = 0;
              o->join_address.clear();
            }),
            "--link-secret-file: needs --remote-ranks");
  const auto of_join = [](auto change) {
    ServeOptions options = Join();
    change(&options);
    return std::string(SpanOfJoin(options).status().message());
  };
  EXPECT_THAT(of_join([](ServeOptions* o) { o->rank = 0; }), HasSubstr("--rank: 0 is not from 1"));
  EXPECT_THAT(of_join([](ServeOptions* o) { o->rank = 3; }), HasSubstr("below --tp 3"));
  EXPECT_THAT(of_join([](ServeOptions* o) { o->tp = "auto"; }), HasSubstr("--rank: needs --tp"));
  EXPECT_THAT(of_join([](ServeOptions* o) { o->head = "h"; }), HasSubstr("--head: 'h' is not"));
}

TEST(HostSpanTest, CommandLines) {
  ResolvedOptions head, join;
  head.tp = join.tp = 3;
  head.span = *SpanOfHead(Head());
  join.span = *SpanOfJoin(Join());
  join.cpus = {{4, 5}};
  const auto line = [](const std::vector<std::string>& argv) { return absl::StrJoin(argv, " "); };
  const std::string local = line(WorkerArgv(head, {}, 1));
  EXPECT_THAT(local, HasSubstr("--collective-address 10.0.0.1:29500 --link-secret-file /secret"));
  EXPECT_THAT(local, Not(HasSubstr("--head")));
  head.runtime_dir = join.runtime_dir = "/run/f";
  const std::string remote = line(WorkerArgv(join, {}, 2));
  EXPECT_THAT(remote, HasSubstr("--collective-address 10.0.0.1:29500"));
  EXPECT_THAT(remote, HasSubstr("--head 10.0.0.1:29502 --rank 2 --tp 3"));
  EXPECT_THAT(remote, HasSubstr("--digest-file /run/f/model-digest"));
  EXPECT_THAT(remote, HasSubstr("--cpus 4,5"));
  EXPECT_THAT(line(RankProxyArgv(head, {}, 2)),
              AllOf(HasSubstr("/flotilla-rank-proxy --rank 2 --tp 3 --listen 10.0.0.1:29502"),
                    HasSubstr("--digest-file /run/f/model-digest")));
  EXPECT_THAT(line(WorkerArgv(ResolvedOptions(), {}, 0)), Not(HasSubstr("--collective-address")));
}

}  // namespace
}  // namespace flotilla
