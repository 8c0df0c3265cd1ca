#include "deploy/launcher/command_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_join.h"
#include "deploy/launcher/core_plan.h"

namespace flotilla {
namespace {

using testing::HasSubstr;
using testing::Not;

ResolvedOptions Resolved() {
  ResolvedOptions resolved;
  resolved.model_path = "/m.gguf";
  resolved.model_name = "m";
  resolved.tp = 2;
  resolved.span.local_ranks = 2;
  resolved.bin_dir = "/bin-dir";
  resolved.runtime_dir = "/run/x";
  return resolved;
}

TEST(CommandLinesTest, ThreadsSpinOnlyOnCoresOfTheirOwn) {
  EXPECT_GT(SpinUs(2, 1, 2), 0u);
  EXPECT_GT(SpinUs(1, 2, 2), 0u);
  EXPECT_EQ(SpinUs(2, 2, 2), 0u);
  EXPECT_EQ(SpinUs(1, 3, 2), 0u);
}

TEST(CommandLinesTest, AWorkersThreadsHaveTheirCpus) {
  ResolvedOptions resolved = Resolved();
  ReplicaWiring wiring;
  wiring.index = 1;
  EXPECT_THAT(absl::StrJoin(WorkerArgv(resolved, wiring, 1), " "), Not(HasSubstr("--cpus")));
  resolved.cpus = {{0, 1}, {2, 3}, {4, 5}, {6, 7}};  // two replicas of two ranks
  EXPECT_THAT(absl::StrJoin(WorkerArgv(resolved, wiring, 1), " "), HasSubstr("--cpus 6,7 "));
}

TEST(CommandLinesTest, Worker) {
  ResolvedOptions resolved = Resolved();
  resolved.options.worker_flags = {"--logits-dump", "/tmp/dump"};
  resolved.options.dtype = "float32";
  resolved.threads = 3;
  ReplicaWiring wiring;
  wiring.index = 1;
  wiring.control_fd = 5;
  wiring.collective_fd = 8;
  const std::string line = absl::StrJoin(WorkerArgv(resolved, wiring, 1), " ");
  EXPECT_THAT(line, HasSubstr("/bin-dir/flotilla-worker --rank 1 --tp 2 --model /m.gguf"));
  EXPECT_THAT(line, HasSubstr("--dtype float32 --kv-cache-dtype auto --threads 3"));
  EXPECT_THAT(line, HasSubstr("--control-fd 5"));
  EXPECT_THAT(line, HasSubstr("--collective-fd 8"));
  EXPECT_THAT(line, HasSubstr("--metrics-socket /run/x/r1-worker-1.metrics"));
  EXPECT_THAT(line, HasSubstr("--logits-dump /tmp/dump"));
}

TEST(CommandLinesTest, SchedulerAndDetokenizerShareTheirSockets) {
  const ResolvedOptions resolved = Resolved();
  ReplicaWiring wiring;
  wiring.id = "r0";
  wiring.listen = {"unix:/run/x/r0-grpc", "127.0.0.1:7"};
  const std::string scheduler = absl::StrJoin(SchedulerArgv(resolved, wiring), " ");
  EXPECT_THAT(scheduler, HasSubstr("--listen unix:/run/x/r0-grpc --listen 127.0.0.1:7"));
  EXPECT_THAT(scheduler, HasSubstr("--detokenizer-request-socket ipc:///run/x/r0-detok-req"));
  EXPECT_THAT(scheduler, Not(HasSubstr("--disable-")));
  const std::string detokenizer = absl::StrJoin(DetokenizerArgv(resolved, wiring), " ");
  EXPECT_THAT(detokenizer, HasSubstr("--request-socket ipc:///run/x/r0-detok-req"));
  EXPECT_THAT(detokenizer, HasSubstr("--reply-socket ipc:///run/x/r0-detok-rep"));
}

TEST(CommandLinesTest, WhatIsDisabledIsSaid) {
  ResolvedOptions resolved = Resolved();
  resolved.options.disable_radix_cache = true;
  resolved.options.disable_mixed_chunk = true;
  resolved.options.disable_overlap = true;
  const std::string scheduler = absl::StrJoin(SchedulerArgv(resolved, {}), " ");
  for (const char* flag : {"--disable-radix-cache", "--disable-mixed-chunk", "--disable-overlap"}) {
    EXPECT_THAT(scheduler, HasSubstr(flag));
  }
}

TEST(CommandLinesTest, Router) {
  const std::string line =
      absl::StrJoin(RouterArgv(Resolved(), {80, 90, {"unix:/a", "unix:/b"}, 4}), " ");
  EXPECT_THAT(line, HasSubstr("--port 80 --grpc-port 90 --replica unix:/a --replica unix:/b"));
  EXPECT_THAT(line, HasSubstr("--notify-fd 4"));
  EXPECT_THAT(line, HasSubstr("--tool-call-parser auto --reasoning-parser auto"));
  EXPECT_THAT(line, HasSubstr("--sampling-defaults model"));
  EXPECT_THAT(line, HasSubstr("--sse-keepalive 15"));
  EXPECT_THAT(line, HasSubstr("--ui on --ui-requests 64"));
  EXPECT_THAT(line, Not(HasSubstr("--api-keys-file")));
  EXPECT_THAT(line, Not(HasSubstr("--default-chat-template-kwargs")));
  ResolvedOptions kwargs = Resolved();
  kwargs.options.default_chat_template_kwargs = R"({"a": 1})";
  EXPECT_THAT(absl::StrJoin(RouterArgv(kwargs, {80, 90, {}, 4}), " "),
              HasSubstr(R"(--default-chat-template-kwargs {"a": 1})"));
}

TEST(CommandLinesTest, ARoutersDrainMayBeSaidByItsOwnFlags) {
  ResolvedOptions resolved = Resolved();
  const auto line = [&] { return absl::StrJoin(RouterArgv(resolved, {80, 90, {}, 4}), " "); };
  EXPECT_THAT(line(), HasSubstr("--drain-linger-ms 0"));
  resolved.options.router_flags = {"--drain-linger-ms=3000"};
  EXPECT_THAT(line(), Not(HasSubstr("--drain-linger-ms 0")));
  EXPECT_THAT(line(), HasSubstr("--drain-linger-ms=3000"));
}

TEST(CommandLinesTest, WhoMayUseTheRouterIsPassedOn) {
  ResolvedOptions resolved = Resolved();
  resolved.options.api_keys_file = "/etc/keys";
  resolved.options.cors_allow_origin = {"https://a.example", "https://b.example"};
  const std::string line = absl::StrJoin(RouterArgv(resolved, {80, 90, {"unix:/a"}, 4}), " ");
  EXPECT_THAT(line, HasSubstr("--api-keys-file /etc/keys"));
  EXPECT_THAT(line, HasSubstr("--cors-allow-origin https://a.example "
                              "--cors-allow-origin https://b.example"));
}

TEST(CommandLinesTest, CertificatesAreForWhoeverListensToOthers) {
  ResolvedOptions resolved = Resolved();
  resolved.options.tls = {"/tls.crt", "/tls.key", "/ca.crt"};
  const std::string flags =
      "--tls-cert-file /tls.crt --tls-key-file /tls.key --tls-client-ca-file /ca.crt";
  EXPECT_THAT(absl::StrJoin(RouterArgv(resolved, {80, 90, {"unix:/a"}, 4}), " "), HasSubstr(flags));
  ReplicaWiring wiring;
  wiring.listen = {"unix:/a"};
  EXPECT_THAT(absl::StrJoin(SchedulerArgv(resolved, wiring), " "), Not(HasSubstr("--tls")));
  wiring.listen = {"127.0.0.1:7"};
  EXPECT_THAT(absl::StrJoin(SchedulerArgv(resolved, wiring), " "), HasSubstr(flags));
  resolved.options.tls.ca_file = "";
  EXPECT_THAT(absl::StrJoin(SchedulerArgv(resolved, wiring), " "), Not(HasSubstr("client-ca")));
}

}  // namespace
}  // namespace flotilla
