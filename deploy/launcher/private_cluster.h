// A cluster of our own for one question: `flotilla serve` as a child, on random ports, quiet.
//
// Threads: the main thread. The child dies with us (see child.h). Destruction stops it in order.
#pragma once

#include <string>

#include "common/base/status.h"
#include "deploy/launcher/child.h"

namespace flotilla {

class PrivateCluster {
 public:
  // Returns once it takes requests. Error: what its launcher said last.
  static StatusOr<PrivateCluster> Start(const std::string& model);
  PrivateCluster(PrivateCluster&& other) noexcept;
  PrivateCluster& operator=(PrivateCluster&&) = delete;
  ~PrivateCluster();

  const std::string& url() const { return url_; }

 private:
  explicit PrivateCluster(Child child) : child_(std::move(child)) {}
  Child child_;
  std::string url_;
};

}  // namespace flotilla
