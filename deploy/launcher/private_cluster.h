// A cluster of our own for one job: `flotilla serve` or `engine` as a child, on random ports,
// quiet.
//
// Threads: the main thread. The child dies with us (see child.h). Destruction stops it in order.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "deploy/launcher/child.h"

namespace flotilla {

class PrivateCluster {
 public:
  // Returns once it takes requests. launcher: the binary's path; args: its command and what that
  // takes, besides the ports. Error: its last error line, or what it said last; Cancelled once
  // *stop is true and a signal has come.
  static StatusOr<PrivateCluster> Start(const std::string& launcher,
                                        const std::vector<std::string>& args,
                                        const std::atomic<bool>* stop = nullptr);
  PrivateCluster(PrivateCluster&& other) noexcept;
  PrivateCluster& operator=(PrivateCluster&&) = delete;
  ~PrivateCluster();

  const std::string& url() const { return url_; }    // http://host:port; empty for an engine
  const std::string& grpc() const { return grpc_; }  // host:port

 private:
  explicit PrivateCluster(Child child) : child_(std::move(child)) {}
  Child child_;
  std::string url_, grpc_;
};

// The value of a field of the ready line, "ready http=http://… grpc=… metrics=…"; empty if it has
// none or is no such line.
std::string FieldOfReadyLine(const std::string& line, const std::string& field);

}  // namespace flotilla
