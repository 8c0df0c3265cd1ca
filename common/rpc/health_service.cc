#include "common/rpc/health_service.h"

#include <utility>

namespace flotilla {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

// One Watch call. Deletes itself when the call is over.
class HealthService::Watcher final : public grpc::ServerWriteReactor<HealthCheckResponse> {
 public:
  Watcher(HealthService* service, bool known) : service_(service), known_(known) {
    std::lock_guard lock(service_->mutex_);
    service_->watchers_.insert(this);
    service_->shut_down_ ? EndLocked() : UpdateLocked();
  }

  // Writes the status if the client does not have it yet.
  void UpdateLocked() {
    const auto status = known_ ? service_->StatusLocked() : HealthCheckResponse::SERVICE_UNKNOWN;
    if (writing_ || ended_ || response_.status() == status) return;
    response_.set_status(status);
    writing_ = true;
    StartWrite(&response_);
  }
  void EndLocked() {
    if (!std::exchange(ended_, true))
      Finish({grpc::StatusCode::UNAVAILABLE, "the server is shutting down"});
  }

 private:
  void OnWriteDone(bool ok) override {
    std::lock_guard lock(service_->mutex_);
    writing_ = false;
    ok ? UpdateLocked() : EndLocked();
  }
  void OnCancel() override {
    std::lock_guard lock(service_->mutex_);
    EndLocked();
  }
  void OnDone() override {
    {
      std::lock_guard lock(service_->mutex_);
      service_->watchers_.erase(this);
    }
    delete this;
  }

  HealthService* const service_;
  const bool known_;
  HealthCheckResponse response_;  // the status sent last; UNKNOWN, which is never sent, at first
  bool writing_ = false;
  bool ended_ = false;
};

HealthService::HealthService(std::set<std::string> services)
    : services_([&] {
        services.insert("");
        return std::move(services);
      }()) {}

void HealthService::SetServing(bool serving) {
  std::lock_guard lock(mutex_);
  serving_ = serving && !shut_down_;
  for (Watcher* watcher : watchers_) watcher->UpdateLocked();
}

void HealthService::Shutdown() {
  std::lock_guard lock(mutex_);
  serving_ = false;
  shut_down_ = true;
  for (Watcher* watcher : watchers_) watcher->EndLocked();
}

grpc::ServerUnaryReactor* HealthService::Check(grpc::CallbackServerContext* context,
                                               const HealthCheckRequest* request,
                                               HealthCheckResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (!services_.contains(request->service())) {
    reactor->Finish({grpc::StatusCode::NOT_FOUND, "service: not one of this server"});
    return reactor;
  }
  {
    std::lock_guard lock(mutex_);
    response->set_status(StatusLocked());
  }
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerWriteReactor<HealthCheckResponse>* HealthService::Watch(
    grpc::CallbackServerContext*, const HealthCheckRequest* request) {
  return new Watcher(this, services_.contains(request->service()));
}

}  // namespace flotilla
