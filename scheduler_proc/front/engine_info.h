// What a replica says of itself: GetModelInfoResponse and the model's files that routers fetch.
// Complete once the first epoch serves (the fingerprint is measured by the warm-up probe).
// Threads: any.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

#include "common/base/sha256.h"
#include "common/base/status.h"
#include "flotilla/v1/engine.pb.h"

namespace flotilla {

class EngineInfo {
 public:
  // `info` without fingerprint, backend, pages and files; tokenizer_file: the bytes of
  // "tokenizer".
  EngineInfo(std::string replica_id, v1::GetModelInfoResponse info, std::string tokenizer_file)
      : replica_id_(std::move(replica_id)),
        tokenizer_file_(std::move(tokenizer_file)),
        tokenizer_sha256_(Sha256Hex(tokenizer_file_)),
        info_(std::move(info)) {
    v1::ModelFile* file = info_.add_files();
    file->set_name("tokenizer");
    file->set_sha256(tokenizer_sha256_);
    file->set_bytes(tokenizer_file_.size());
  }

  // The fields of `measured` that are set take the place of those there were.
  void Complete(const v1::GetModelInfoResponse& measured) {
    std::lock_guard lock(mutex_);
    info_.MergeFrom(measured);
  }
  v1::GetModelInfoResponse Get() const {
    std::lock_guard lock(mutex_);
    return info_;
  }
  const std::string& replica_id() const { return replica_id_; }
  // Null: no file of this digest.
  const std::string* FindFile(const std::string& sha256) const {
    return sha256 == tokenizer_sha256_ ? &tokenizer_file_ : nullptr;
  }

 private:
  const std::string replica_id_;
  const std::string tokenizer_file_;
  const std::string tokenizer_sha256_;
  mutable std::mutex mutex_;
  v1::GetModelInfoResponse info_;  // guarded by mutex_
};

// Of weights and arithmetic: replicas with equal fingerprints answer byte-equal.
inline std::string Fingerprint(const std::string& model_digest, uint64_t probe_hash,
                               const std::string& backend) {
  return Sha256Hex(StrCat(model_digest, "/", probe_hash, "/", backend));
}

}  // namespace flotilla
