// A deadline that is moved far more often than it comes: each moves it by a comparison, while the
// timer underneath goes on to the time it was set to and looks again there.
//
// Threads: the executor's. Ownership: of the timer; the handler is not called after ~LazyTimer, nor
// after Clear until the next Set. Units: std::chrono::steady_clock.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <utility>

namespace flotilla {

class LazyTimer {
 public:
  using Clock = std::chrono::steady_clock;

  LazyTimer(const boost::asio::any_io_executor& executor, std::function<void()> handler)
      : timer_(executor), handler_(std::make_shared<std::function<void()>>(std::move(handler))) {}
  LazyTimer(const LazyTimer&) = delete;

  void Set(Clock::time_point at) {
    at_ = at;
    if (armed_for_ > at) Arm();
  }
  void Clear() { at_ = Clock::time_point::max(); }

 private:
  void Arm() {
    armed_for_ = at_;
    timer_.expires_at(at_);
    timer_.async_wait([this, alive = std::weak_ptr(handler_)](boost::system::error_code error) {
      // Set anew meanwhile, or we are gone.
      if (error || alive.expired()) return;
      armed_for_ = Clock::time_point::max();
      if (at_ > Clock::now()) {
        if (at_ < Clock::time_point::max()) Arm();
        return;
      }
      Clear();
      (*std::shared_ptr(handler_))();
    });
  }

  boost::asio::steady_timer timer_;
  const std::shared_ptr<std::function<void()>> handler_;
  Clock::time_point at_ = Clock::time_point::max();         // of the deadline; none
  Clock::time_point armed_for_ = Clock::time_point::max();  // what the timer waits for; nothing
};

}  // namespace flotilla
