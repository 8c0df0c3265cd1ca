// As much of a Kubernetes API server as a watch of EndpointSlices asks: a list, and watches that go
// on from a version; plain, or TLS with a certificate.
//
// Lists hold what Set said; events are what Push adds since. A watch from an older version than the
// list's is refused as too old, as a server does that has forgotten what happened since. Threads:
// all methods from any thread. Waits have a limit (kPatience).
#pragma once

#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/unique_fd.h"
#include "tests/support/certificates.h"

namespace flotilla {

struct FakeSlice {
  std::string name = "engine-abc";
  std::vector<std::string> ready = {};
  std::vector<std::string> leaving = {};  // being deleted
  int port = 50051;                       // named "grpc"
  std::string type = "IPv4";
};
std::string SliceListJson(const std::vector<FakeSlice>& slices, int version);
std::string SliceEventJson(const std::string& type, const FakeSlice& slice, int version);

class FakeKubeApi {
 public:
  struct Request {
    std::string target, authorization;
  };
  explicit FakeKubeApi(std::optional<TestPair> tls = std::nullopt);
  ~FakeKubeApi();

  std::string url() const;
  void Set(const std::vector<FakeSlice>& slices, int version);
  void Push(const std::string& event);  // a line
  void EndWatches();                    // as a server does after timeoutSeconds
  void Refuse(unsigned status);         // every request; 0: none any more
  std::vector<Request> requests();
  // Whose target contains it; as soon as there are so many, or what there is.
  std::vector<Request> WaitForRequests(const std::string& part, size_t count);

 private:
  void Accept();
  template <typename Stream>
  void Serve(Stream* stream);
  template <typename Stream>
  void ServeWatch(Stream* stream, const std::string& target, int round);

  const std::optional<TestPair> tls_;
  uint16_t port_ = 0;
  UniqueFd listener_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::string list_;
  std::vector<std::string> events_;
  int version_ = 1;
  int watch_round_ = 0;
  unsigned refuse_ = 0;
  bool stopping_ = false;
  std::vector<Request> requests_;
  std::list<int> sockets_;
  std::list<std::thread> serving_;
  std::thread thread_;
};

}  // namespace flotilla
