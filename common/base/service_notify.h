// Tells systemd what a unit with Type=notify does: ready, stopping. Without systemd (no
// NOTIFY_SOCKET) nothing happens.
//
// Threads: one. The variable is taken out of the environment, so that processes started later do
// not speak for the unit. Errors: none; a message that can't be sent is logged.
// Source: sd_notify(3), of which this is the datagram alone.
#pragma once

#include <string>
#include <string_view>

namespace flotilla {

class ServiceNotifier {
 public:
  static ServiceNotifier FromEnvironment();

  // `status` is what `systemctl status` shows.
  void Ready(std::string_view status) const;
  void Stopping() const { Send("STOPPING=1"); }

 private:
  void Send(std::string_view message) const;

  std::string socket_;  // "": nobody listens; "@name": abstract
};

}  // namespace flotilla
