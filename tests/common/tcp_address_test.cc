#include "common/base/tcp_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace flotilla {
namespace {

using ::testing::HasSubstr;

TEST(TcpAddressTest, HostAndPort) {
  EXPECT_EQ(FormatTcpAddress(*ParseTcpAddress("10.0.0.1:80")), "10.0.0.1:80");
  EXPECT_EQ(FormatTcpAddress(*ParseTcpAddress("[fe80::1]:80")), "[fe80::1]:80");
  EXPECT_EQ(ParseTcpAddress("[fe80::1]:80")->host, "fe80::1");
  for (const char* bad : {"", "host", ":80", "host:", "host:65536", "host:80x", "::1:80", "h:-1"}) {
    EXPECT_THAT(std::string(ParseTcpAddress(bad).status().message()), HasSubstr("is not HOST:PORT"))
        << bad;
  }
}

}  // namespace
}  // namespace flotilla
