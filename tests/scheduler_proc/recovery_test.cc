// What dies is replaced, and the client sees the same tokens, text and logprobs: workers,
// detokenizer, failed steps. Health follows.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <future>
#include <set>
#include <thread>

#include "common/base/unique_fd.h"
#include "scheduler_proc/engine.h"
#include "tests/fakes/fake_engine.h"
#include "tests/scheduler_proc/engine_client.h"
#include "tests/support/health_client.h"

namespace flotilla {
namespace {

constexpr uint64_t kStreams = 6;

v1::GenerateRequest Request(uint64_t stream) {
  v1::GenerateRequest request = TokenRequest(Prompt(static_cast<uint32_t>(stream), 40), 300);
  request.mutable_output()->set_logprobs(1);
  return request;
}

// Runs kStreams requests, calls `disturb` while all of them are half-way and the workers are held,
// then lets them go and calls `after`.
template <typename Disturb, typename After>
std::vector<Received> RunDisturbed(FakeEngine* engine, Disturb disturb, After after) {
  TestRouter router(engine->Channel());
  router.Hello(TestRouter::MakeHello());
  engine->replica().Hold(true);
  for (uint64_t s = 1; s <= kStreams; ++s) router.Submit(s, Request(s));
  while (engine->engine().front().live() < kStreams) std::this_thread::yield();
  engine->replica().HoldAfter(60);
  EXPECT_TRUE(router.Wait([&] {
    for (uint64_t s = 1; s <= kStreams; ++s)
      if (router.streams_[s].tokens.size() < 20) return false;
    return true;
  }));
  disturb();
  engine->replica().Hold(false);
  after();
  std::vector<Received> out;
  for (uint64_t s = 1; s <= kStreams; ++s) {
    EXPECT_TRUE(router.WaitDone(s)) << s;
    out.push_back(router.Get(s));
  }
  return out;
}

void ExpectUndisturbed(const FakeEngine& engine, const std::vector<Received>& got) {
  for (uint64_t s = 1; s <= kStreams; ++s) {
    const Received& r = got[s - 1];
    const auto expected = FakeGreedy(Prompt(static_cast<uint32_t>(s), 40), 300);
    EXPECT_EQ(r.tokens, expected) << s;
    EXPECT_EQ(r.text, engine.tokenizer().Decode(expected, true)) << s;
    EXPECT_FALSE(r.last.has_error()) << r.last.error().message();
    ASSERT_EQ(r.logprobs.size(), 300u);
    for (uint32_t i = 0; i < 300; ++i)
      EXPECT_EQ(r.logprobs[i].logprob(), FakeLogprob(expected[i], 40 + i));
  }
}

TEST(Recovery, AWorkerThatDiesComesBackWithoutALostToken) {
  for (uint32_t victim : {0u, 1u}) {
    FakeEngineOptions options;
    options.replica.tp = 2;
    FakeEngine engine(std::move(options));
    const auto got = RunDisturbed(
        &engine,
        [&] {
          engine.replica().Kill(victim);
          engine.replica().Restart(victim);
        },
        [] {});
    ExpectUndisturbed(engine, got);
    EXPECT_EQ(engine.replica().control()->epoch.load(), 2u) << victim;
    EXPECT_EQ(engine.replica().bad_plans(), 0u);
  }
}

// A rank that came back with another model's weights: no stream may go on with them, and nothing
// that is asked now may have the old fingerprint.
TEST(Recovery, RanksThatComputeSomethingElseEndTheEngine) {
  std::promise<Status> fatal;
  FakeEngineOptions options;
  options.on_fatal = [&](const Status& status) { fatal.set_value(status); };
  FakeEngine engine(std::move(options));
  TestRouter router(engine.Channel());
  router.Hello(TestRouter::MakeHello());
  engine.replica().Hold(true);
  router.Submit(1, Request(1));
  while (engine.engine().front().live() < 1) std::this_thread::yield();
  engine.replica().Kill(0);
  const uint64_t steps = engine.replica().steps();
  engine.replica().SetProbeHash(0xbad);
  engine.replica().Hold(false);
  engine.replica().Restart(0);
  const Status status = fatal.get_future().get();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("have the model's files been replaced"), std::string::npos);
  EXPECT_EQ(engine.replica().steps(), steps);
  EXPECT_EQ(HealthClient(engine.Channel()).Check(""), HealthClient::kNotServing);
}

TEST(Recovery, HealthIsFalseWhileARankIsAway) {
  FakeEngine engine;
  HealthClient health(engine.Channel());
  EXPECT_EQ(health.Check(""), HealthClient::kServing);
  engine.replica().Kill(0);
  EXPECT_TRUE(health.WaitFor("", HealthClient::kNotServing));
  engine.replica().Restart(0);
  EXPECT_TRUE(health.WaitFor("", HealthClient::kServing));
  EXPECT_TRUE(health.WaitFor("flotilla.v1.Engine", HealthClient::kServing));
  engine.engine().BeginDrain();
  EXPECT_EQ(health.Check(""), HealthClient::kNotServing);
}

TEST(Recovery, RoutersAreToldWhileARankOrTheDetokenizerIsAway) {
  FakeEngine engine;
  TestRouter router(engine.Channel());
  router.Hello(TestRouter::MakeHello());
  engine.replica().Kill(0);
  EXPECT_TRUE(router.Wait([&] { return router.load_.recovering(); }));
  engine.replica().Restart(0);
  EXPECT_TRUE(router.Wait([&] { return !router.load_.recovering(); }));
  ReplicaControlBlock* const control = engine.replica().control().operator->();
  for (const ProcessState away : {ProcessState::kDead, ProcessState::kLoading}) {
    ReplicaControl::SetState(&control->detokenizer, away);
    ReplicaControl::Ring(&control->doorbell);
    EXPECT_TRUE(router.Wait([&] { return router.load_.recovering(); }));
    ReplicaControl::SetState(&control->detokenizer, ProcessState::kReady);
    ReplicaControl::Ring(&control->doorbell);
    EXPECT_TRUE(router.Wait([&] { return !router.load_.recovering(); }));
  }
}

// Long before anybody ends it.
TEST(Recovery, RoutersAreToldWhileTheDetokenizerStandsStill) {
  FakeEngine engine;
  TestRouter router(engine.Channel());
  router.Hello(TestRouter::MakeHello());
  std::atomic<int64_t>& beat = engine.replica().control()->detokenizer.heartbeat_ns;
  beat.store(RealClock::Now() - 6 * kNsPerSecond);
  EXPECT_TRUE(router.Wait([&] { return router.load_.recovering(); }));
  beat.store(RealClock::Now());
  EXPECT_TRUE(router.Wait([&] { return !router.load_.recovering(); }));
}

// A host that lost its power closes nothing: whoever does not answer a ping is taken for gone.
TEST(Recovery, AConnectionWhoseOtherEndIsSilentIsClosed) {
  FakeEngineOptions options;
  options.engine.keepalive_ms = 200;
  FakeEngine engine(std::move(options));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string path = engine.address().substr(std::string("unix:").size());
  ASSERT_LT(path.size(), sizeof(address.sun_path));
  path.copy(address.sun_path, path.size());
  const UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int64_t begin_ns = RealClock::Now();
  ASSERT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  // HTTP/2's preface with SETTINGS, and the acknowledgement of the server's.
  static constexpr char kHello[] =
      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0\0\0\0\4\1\0\0\0\0";
  ASSERT_EQ(send(fd.get(), kHello, sizeof(kHello) - 1, 0), ssize_t{sizeof(kHello) - 1});
  const timeval patience = {kPatience.count(), 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  char bytes[512];
  ssize_t got = 0;
  while ((got = recv(fd.get(), bytes, sizeof(bytes), 0)) > 0) {
  }
  EXPECT_EQ(got, 0) << std::strerror(errno);
  EXPECT_GE(RealClock::Now() - begin_ns, 300 * kNsPerMs) << "it was not asked first";
}

TEST(Recovery, NotHealthyBeforeTheWorkersAre) {
  FakeEngineOptions options;
  options.replica.start = false;
  FakeEngine engine(std::move(options));
  HealthClient health(engine.Channel());
  EXPECT_EQ(health.Check(""), HealthClient::kNotServing);
  auto stub = v1::Inference::NewStub(engine.Channel());
  EXPECT_EQ(Generate(stub.get(), TokenRequest(Prompt(1, 5), 5)).status.error_code(),
            grpc::StatusCode::UNAVAILABLE);
  TestRouter early(engine.Channel());
  early.Hello(TestRouter::MakeHello());
  EXPECT_EQ(early.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  engine.replica().Restart(0);
  EXPECT_TRUE(health.WaitFor("", HealthClient::kServing));
  EXPECT_TRUE(Generate(stub.get(), TokenRequest(Prompt(1, 5), 5)).status.ok());
}

TEST(Recovery, ADetokenizerThatDiesComesBackWithoutALostByte) {
  FakeEngine engine;
  const auto got = RunDisturbed(
      &engine, [&] { engine.detokenizer().DieAfter(0); },  // takes a frame and never answers it
      [&] {
        while (!engine.detokenizer().dead()) std::this_thread::yield();
        engine.detokenizer().Restart();
      });
  ExpectUndisturbed(engine, got);
}

TEST(Recovery, ADetokenizerThatStartsLastIsFedFromTheHistory) {
  FakeEngineOptions options;
  options.start_detokenizer = false;
  FakeEngine engine(std::move(options));
  TestRouter router(engine.Channel());
  router.Hello(TestRouter::MakeHello());
  for (uint64_t s = 1; s <= kStreams; ++s) router.Submit(s, Request(s));
  // All tokens are there before any text is.
  while (engine.replica().steps() < 300) std::this_thread::yield();
  engine.StartDetokenizer();
  std::vector<Received> got;
  for (uint64_t s = 1; s <= kStreams; ++s) {
    ASSERT_TRUE(router.WaitDone(s));
    got.push_back(router.Get(s));
  }
  ExpectUndisturbed(engine, got);
}

TEST(Recovery, AFailedStepIsRunAgain) {
  FakeEngine engine;
  const auto got = RunDisturbed(
      &engine, [&] { engine.replica().FailSteps(2, absl::StatusCode::kAborted); }, [] {});
  ExpectUndisturbed(engine, got);
  EXPECT_GE(engine.replica().control()->epoch.load(), 2u);
}

// Alone, whether its step is the first of an epoch, with all others, or its first chunk is fine
// each time, so that steps succeed between those that fail.
void ExpectOnlyTheBadRequestEnds(uint32_t prompt_tokens) {
  FakeEngine engine;
  std::set<int32_t> used;
  for (uint32_t s = 1; s <= kStreams; ++s) {
    const std::vector<int32_t> prompt = Prompt(s, 40);
    used.insert(prompt.begin(), prompt.end());
    const std::vector<int32_t> output = FakeGreedy(prompt, 300);
    used.insert(output.begin(), output.end());
  }
  int32_t bad = 1;
  while (used.contains(bad)) ++bad;
  std::vector<int32_t> prompt(prompt_tokens, *used.begin());
  prompt.back() = bad;
  engine.replica().FailStepsWith(bad);
  auto stub = v1::Inference::NewStub(engine.Channel());
  std::future<Generated> failed;
  const auto got = RunDisturbed(
      &engine,
      [&] {
        failed = std::async(std::launch::async,
                            [&] { return Generate(stub.get(), TokenRequest(prompt, 5)); });
      },
      [&] { EXPECT_EQ(failed.get().status.error_code(), grpc::StatusCode::INTERNAL); });
  ExpectUndisturbed(engine, got);
}

TEST(Recovery, AShortRequestWithWhichStepsFailIsEndedAlone) { ExpectOnlyTheBadRequestEnds(5); }
TEST(Recovery, ALongRequestWithWhichStepsFailIsEndedAlone) { ExpectOnlyTheBadRequestEnds(700); }

TEST(Recovery, StepsThatAlwaysFailFailTheRequestsNotTheEngine) {
  FakeEngine engine;
  auto stub = v1::Inference::NewStub(engine.Channel());
  engine.replica().FailSteps(UINT32_MAX, absl::StatusCode::kInternal);
  const Generated failed = Generate(stub.get(), TokenRequest(Prompt(1, 5), 5));
  EXPECT_EQ(failed.status.error_code(), grpc::StatusCode::INTERNAL);
  engine.replica().FailSteps(0, absl::StatusCode::kOk);
  EXPECT_TRUE(Generate(stub.get(), TokenRequest(Prompt(1, 5), 5)).status.ok());
  EXPECT_TRUE(engine.engine().WaitIdle(RealClock::Now() + 10 * kNsPerSecond));
}

TEST(Recovery, ARequestOfWhichWorkersDieEndsInsteadOfThem) {
  FakeEngine engine;
  auto stub = v1::Inference::NewStub(engine.Channel());
  ReplicaControl& control = engine.replica().control();
  engine.replica().Hold(true);  // no step is ever answered
  std::future<Generated> fatal = std::async(
      std::launch::async, [&] { return Generate(stub.get(), TokenRequest(Prompt(1, 5), 5)); });
  uint32_t deaths = 0;
  for (uint64_t seen = 0; deaths < SchedulerLoop::Options{}.max_lost_steps; ++deaths) {
    while (control->batch.planned_step.load() == seen) std::this_thread::yield();
    EXPECT_EQ(fatal.wait_for(std::chrono::seconds(0)), std::future_status::timeout) << deaths;
    engine.replica().Kill(0);
    while (control->epoch.load() != deaths + 2) std::this_thread::yield();
    seen = control->batch.planned_step.load();  // until the rank is back, nothing is planned
    engine.replica().Restart(0);
  }
  EXPECT_EQ(fatal.get().status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(control->epoch.load(), deaths + 1);
  engine.replica().Hold(false);
  EXPECT_TRUE(Generate(stub.get(), TokenRequest(Prompt(1, 5), 5)).status.ok());
}

}  // namespace
}  // namespace flotilla
