// How a replica's address becomes a connection, or an error that names it.
#include "router/fleet/dial.h"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>

#include "tests/support/patience.h"
#include "tests/support/temp_folder.h"

namespace flotilla {
namespace {

using boost::asio::ip::tcp;

class DialTest : public ::testing::Test {
 protected:
  StatusOr<Dial::Socket> Connect(const std::string& address) {
    StatusOr<Dial::Socket> result = absl::DeadlineExceededError("it was not called");
    Dial::Start(address, io_.get_executor(),
                [&](StatusOr<Dial::Socket> socket) { result = std::move(socket); });
    RunUntil([&] { return !absl::IsDeadlineExceeded(result.status()); });
    return result;
  }
  template <typename Done>
  void RunUntil(Done done) {
    io_.restart();
    auto work = boost::asio::make_work_guard(io_);
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (!done() && std::chrono::steady_clock::now() < until)
      io_.run_one_for(std::chrono::milliseconds(100));
  }

  boost::asio::io_context io_;
};

TEST_F(DialTest, ConnectsToNumbersAndNames) {
  tcp::acceptor acceptor(io_, tcp::endpoint(boost::asio::ip::make_address("127.0.0.1"), 0));
  const std::string port = std::to_string(acceptor.local_endpoint().port());
  for (const char* host : {"127.0.0.1:", "localhost:"}) {
    SCOPED_TRACE(host);
    const auto socket = Connect(host + port);
    ASSERT_TRUE(socket.ok()) << socket.status();
    tcp::socket accepted(io_);
    acceptor.accept(accepted);
    EXPECT_TRUE(accepted.is_open());
  }
}

TEST_F(DialTest, ConnectsToAUnixSocket) {
  const testing::TempFolder folder;
  const std::string path = folder.path() + "/socket";
  boost::asio::local::stream_protocol::acceptor acceptor(io_, path);
  EXPECT_TRUE(Connect("unix:" + path).ok());
}

TEST_F(DialTest, ErrorsNameTheAddress) {
  tcp::acceptor acceptor(io_, tcp::endpoint(boost::asio::ip::make_address("127.0.0.1"), 0));
  const std::string closed = "127.0.0.1:" + std::to_string(acceptor.local_endpoint().port());
  acceptor.close();
  const std::string long_path = "unix:/" + std::string(200, 'x');
  for (const auto& [address, what] :
       std::vector<std::pair<std::string, std::string>>{{closed, "Connection refused"},
                                                        {"unix:/no/such/socket", "No such file"},
                                                        {long_path, "too long"},
                                                        {"no-such-host.invalid:1", "no address"},
                                                        {"engine", "engine"}}) {
    SCOPED_TRACE(address);
    const auto socket = Connect(address);
    ASSERT_FALSE(socket.ok());
    EXPECT_TRUE(absl::IsUnavailable(socket.status()));
    const std::string message(socket.status().message());
    EXPECT_EQ(message.rfind("can't connect to " + address + ": ", 0), 0u) << message;
    EXPECT_NE(message.find(what), std::string::npos) << message;
  }
}

TEST_F(DialTest, ACancelledOneDoesNotCallBack) {
  tcp::acceptor acceptor(io_, tcp::endpoint(boost::asio::ip::make_address("127.0.0.1"), 0));
  const std::string port = std::to_string(acceptor.local_endpoint().port());
  for (const char* host : {"127.0.0.1:", "localhost:"}) {
    bool called = false;
    const auto dial = Dial::Start(host + port, io_.get_executor(),
                                  [&](const StatusOr<Dial::Socket>&) { called = true; });
    io_.restart();
    io_.run_one();  // the lookup, or the connection, has begun
    dial->Cancel();
    io_.restart();
    io_.run();
    EXPECT_FALSE(called);
    EXPECT_EQ(dial.use_count(), 1);
  }
}

}  // namespace
}  // namespace flotilla
