#include "deploy/launcher/event_loop.h"

#include <sys/epoll.h>

#include <array>

#include "common/base/check.h"

namespace flotilla {

EventLoop::EventLoop() : epoll_(epoll_create1(EPOLL_CLOEXEC)) { CHECK(epoll_.valid()); }

void EventLoop::Add(int fd, std::function<void()> handler) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0);
  handlers_[fd] = std::move(handler);
}

void EventLoop::Remove(int fd) {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  handlers_.erase(fd);
}

void EventLoop::WaitOnce(int timeout_ms) {
  std::array<epoll_event, 32> events;
  const int count = epoll_wait(epoll_.get(), events.data(), events.size(), timeout_ms);
  for (int i = 0; i < count; ++i) {
    const auto it = handlers_.find(events[static_cast<size_t>(i)].data.fd);
    if (it == handlers_.end()) continue;               // removed by a handler before it
    const std::function<void()> handler = it->second;  // a handler may remove itself
    handler();
  }
}

}  // namespace flotilla
