#include "router/discovery/service_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <deque>
#include <mutex>

#include "tests/fakes/fake_kube_api.h"
#include "tests/support/patience.h"

namespace flotilla {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// A watch whose results are taken one by one.
class Watched {
 public:
  explicit Watched(const FakeKubeApi& api, const std::string& credentials = "/nowhere",
                   const std::string& name = "flotilla/engine:50051", int64_t backoff_min_ms = 10)
      : watch_({.name = ParseServiceName(name).value(),
                .api = FindKubeApi(api.url(), credentials).value(),
                .backoff_min_ms = backoff_min_ms,
                .backoff_max_ms = 20},
               [this](FoundReplicas found) {
                 const std::lock_guard lock(mutex_);
                 found_.push_back(std::move(found));
                 came_.notify_all();
               }) {}

  FoundReplicas Next() {
    std::unique_lock lock(mutex_);
    if (!came_.wait_for(lock, kPatience, [&] { return !found_.empty(); }))
      return absl::DeadlineExceededError("nothing came");
    FoundReplicas next = std::move(found_.front());
    found_.pop_front();
    return next;
  }
  // The first that is no error.
  std::vector<std::string> NextFound() {
    for (;;) {
      FoundReplicas next = Next();
      if (next.ok()) return *std::move(next);
      if (absl::IsDeadlineExceeded(next.status())) return {std::string(next.status().message())};
    }
  }
  void Stop() { watch_.Stop(); }

 private:
  std::mutex mutex_;
  std::condition_variable came_;
  std::deque<FoundReplicas> found_;
  ServiceWatch watch_;
};

TEST(ServiceWatchTest, TellsTheListThenEachChange) {
  FakeKubeApi api;
  api.Set({{.name = "a", .ready = {"10.0.0.1"}}}, 5);
  Watched watch(api);
  EXPECT_THAT(watch.NextFound(), ElementsAre("10.0.0.1:50051"));
  const auto watches = api.WaitForRequests("watch=true", 1);
  ASSERT_EQ(watches.size(), 1u);
  EXPECT_THAT(watches[0].target,
              HasSubstr("/apis/discovery.k8s.io/v1/namespaces/flotilla/endpointslices?"
                        "labelSelector=kubernetes.io%2Fservice-name%3Dengine&"));
  EXPECT_THAT(watches[0].target, HasSubstr("resourceVersion=5"));
  EXPECT_EQ(watches[0].authorization, "") << "no token goes out in the clear";
  api.Push(SliceEventJson("MODIFIED", {.name = "a", .ready = {"10.0.0.1", "10.0.0.2"}}, 6));
  EXPECT_THAT(watch.NextFound(), ElementsAre("10.0.0.1:50051", "10.0.0.2:50051"));
  api.Push(
      SliceEventJson("MODIFIED", {.name = "a", .ready = {"10.0.0.2"}, .leaving = {"10.0.0.1"}}, 7));
  EXPECT_THAT(watch.NextFound(), ElementsAre("10.0.0.2:50051"));
  api.Push(SliceEventJson("DELETED", {.name = "a"}, 8));
  EXPECT_THAT(watch.NextFound(), IsEmpty());
}

// One that ends within the shortest pause, here none, is begun with a list.
TEST(ServiceWatchTest, AWatchThatEndsGoesOnWhereItWas) {
  FakeKubeApi api;
  api.Set({{.name = "a", .ready = {"10.0.0.1"}}}, 5);
  Watched watch(api, "/nowhere", "flotilla/engine:50051", 0);
  EXPECT_THAT(watch.NextFound(), ElementsAre("10.0.0.1:50051"));
  api.Push(SliceEventJson("MODIFIED", {.name = "a", .ready = {"10.0.0.3"}}, 6));
  EXPECT_THAT(watch.NextFound(), ElementsAre("10.0.0.3:50051"));
  api.EndWatches();
  EXPECT_EQ(api.WaitForRequests("resourceVersion=6", 1).size(), 1u);
}

TEST(ServiceWatchTest, WhatIsTooOldIsListedAgain) {
  FakeKubeApi api;
  api.Set({{.name = "a", .ready = {"10.0.0.1"}}}, 5);
  Watched watch(api);
  EXPECT_THAT(watch.NextFound(), ElementsAre("10.0.0.1:50051"));
  ASSERT_EQ(api.WaitForRequests("watch=true", 1).size(), 1u);
  api.Set({{.name = "a", .ready = {"10.0.0.4"}}}, 9);
  api.EndWatches();
  EXPECT_THAT(watch.NextFound(), ElementsAre("10.0.0.4:50051"));
}

TEST(ServiceWatchTest, ARefusalSaysWhatIsMissingAndIsTriedAgain) {
  FakeKubeApi api;
  api.Set({{.name = "a", .ready = {"10.0.0.1"}}}, 5);
  api.Refuse(403);
  Watched watch(api);
  const FoundReplicas refused = watch.Next();
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("endpointslices"));
  api.Refuse(0);
  EXPECT_THAT(watch.NextFound(), ElementsAre("10.0.0.1:50051"));
}

TEST(ServiceWatchTest, NobodyThereIsAnErrorThatNamesTheServer) {
  std::string url;
  KubeApi gone;
  {
    FakeKubeApi api;
    gone = FindKubeApi(api.url(), "").value();
  }
  KubeClient client(gone);
  const Status status = client.Get("/", std::chrono::seconds(5),
                                   [](std::string_view) -> Status { return OkStatus(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(FormatTcpAddress(gone.address)));
}

TEST(ServiceWatchTest, TlsTokenAndNamespaceAreTheServiceAccounts) {
  const TestCa ca({.name = "Test CA"});
  const CertificateFolder folder;
  FakeKubeApi api(ca.Issue({.name = "api"}));
  api.Set({{.name = "a", .ready = {"10.0.0.1"}}}, 5);
  folder.Write("ca.crt", ca.pem());
  folder.Write("token", "first\n");
  folder.Write("namespace", "inference");
  Watched watch(api, folder.path(), "engine:50051");
  EXPECT_THAT(watch.NextFound(), ElementsAre("10.0.0.1:50051"));
  auto watches = api.WaitForRequests("watch=true", 1);
  ASSERT_EQ(watches.size(), 1u);
  EXPECT_EQ(watches[0].authorization, "Bearer first");
  EXPECT_THAT(watches[0].target, HasSubstr("/namespaces/inference/"));
  folder.Write("token", "second");
  api.EndWatches();
  watches = api.WaitForRequests("watch=true", 2);
  ASSERT_GE(watches.size(), 2u);
  EXPECT_EQ(watches[1].authorization, "Bearer second");
}

TEST(ServiceWatchTest, AServerOfAnotherCaOrNameGetsNoToken) {
  const TestCa ca({.name = "Test CA"}), other({.name = "Other CA"});
  const CertificateFolder folder;
  folder.Write("ca.crt", ca.pem());
  folder.Write("token", "secret");
  folder.Write("namespace", "inference");
  const TestPair strange[] = {other.Issue({.name = "api"}),
                              ca.Issue({.name = "api", .also = "DNS:elsewhere,IP:127.0.0.9"})};
  for (const TestPair& pair : strange) {
    FakeKubeApi api(pair);
    Watched watch(api, folder.path(), "engine:50051");
    const FoundReplicas found = watch.Next();
    ASSERT_FALSE(found.ok());
    EXPECT_THAT(std::string(found.status().message()), HasSubstr("its certificate is not trusted"));
    EXPECT_THAT(api.requests(), IsEmpty());
  }
}

TEST(ServiceWatchTest, AServiceAccountWithoutACaThatCanBeReadIsUnavailable) {
  const CertificateFolder folder;
  folder.Write("token", "secret");
  KubeClient client(FindKubeApi("https://127.0.0.1:1", folder.path()).value());
  const auto get = [&] {
    return client.Get("/", std::chrono::seconds(5), [](std::string_view) { return OkStatus(); });
  };
  for (const char* ca : {"", "no PEM"}) {
    if (*ca != '\0') folder.Write("ca.crt", ca);
    const Status status = get();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << ca;
    EXPECT_THAT(std::string(status.message()), HasSubstr((folder.path() / "ca.crt").string()))
        << ca;
  }
}

TEST(ServiceWatchTest, StopEndsAWatchAtOnce) {
  FakeKubeApi api;
  Watched watch(api);
  EXPECT_THAT(watch.NextFound(), IsEmpty());
  ASSERT_EQ(api.WaitForRequests("watch=true", 1).size(), 1u);
  const auto begin = std::chrono::steady_clock::now();
  watch.Stop();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kPatience);  // a watch would take 250 s
}

TEST(KubeApiTest, IsThePodsOrWhatAUrlNames) {
  unsetenv("KUBERNETES_SERVICE_HOST");
  EXPECT_THAT(std::string(FindKubeApi("", "").status().message()), HasSubstr("kubectl proxy"));
  setenv("KUBERNETES_SERVICE_HOST", "fd00::1", 1);
  setenv("KUBERNETES_SERVICE_PORT", "443", 1);
  const StatusOr<KubeApi> pod = FindKubeApi("", "");
  ASSERT_TRUE(pod.ok()) << pod.status();
  EXPECT_EQ(FormatTcpAddress(pod->address), "[fd00::1]:443");
  EXPECT_TRUE(pod->tls);
  EXPECT_EQ(pod->credentials, "/var/run/secrets/kubernetes.io/serviceaccount");
  unsetenv("KUBERNETES_SERVICE_HOST");
  const StatusOr<KubeApi> proxy = FindKubeApi("http://127.0.0.1:8001", "/folder");
  ASSERT_TRUE(proxy.ok()) << proxy.status();
  EXPECT_FALSE(proxy->tls);
  EXPECT_EQ(proxy->credentials, "/folder");
  for (const char* wrong : {"127.0.0.1:8001", "ftp://a:1", "http://a", "https://a:1/path",
                            "https://:1", "https://a:x", "https://a:0"})
    EXPECT_THAT(std::string(FindKubeApi(wrong, "").status().message()),
                HasSubstr("--kubernetes-api"))
        << wrong;
}

}  // namespace
}  // namespace flotilla
