// Memory for Reqs, reused.
//
// Threads: one. Ownership: the pool owns every Req; a pointer is valid from New to Delete.
#pragma once

#include <memory>
#include <vector>

#include "scheduler_proc/core/req.h"

namespace flotilla {

class ReqPool {
 public:
  Req* New() {
    if (free_.empty()) return all_.emplace_back(std::make_unique<Req>()).get();
    Req* req = free_.back();
    free_.pop_back();
    return req;
  }

  void Delete(Req* req) {
    *req = Req();
    free_.push_back(req);
  }

  size_t num_live() const { return all_.size() - free_.size(); }

 private:
  std::vector<std::unique_ptr<Req>> all_;
  std::vector<Req*> free_;
};

}  // namespace flotilla
