// Which web pages may use the HTTP API.
#include <gtest/gtest.h>

#include "tests/router/router_harness.h"

namespace flotilla {
namespace {

std::string WithOrigin(std::string_view method, std::string_view more) {
  return StrCat(std::string(method), " /v1/models HTTP/1.1\r\nHost: x\r\n", std::string(more),
                "\r\n");
}

TEST(CorsTest, PagesOfTheAllowedOriginMayReadAnswers) {
  HarnessOptions options;
  options.http.cors_allow_origin = {"https://a.example", "https://b.example"};
  RouterHarness harness(options);
  HttpConnection connection(harness.port());
  connection.Send(WithOrigin("GET", "Origin: https://b.example\r\n"));
  EXPECT_EQ(connection.Read().headers.at("access-control-allow-origin"), "https://b.example");
  connection.Send(WithOrigin("GET", "Origin: https://evil.example\r\n"));
  EXPECT_FALSE(connection.Read().headers.contains("access-control-allow-origin"));
  connection.Send(WithOrigin("GET", ""));
  EXPECT_FALSE(connection.Read().headers.contains("access-control-allow-origin"));
}

TEST(CorsTest, ABrowserMayAskFirst) {
  HarnessOptions options;
  options.http.cors_allow_origin = {"*"};
  RouterHarness harness(options);
  HttpConnection connection(harness.port());
  const std::string ask =
      "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization\r\n";
  connection.Send(WithOrigin("OPTIONS", StrCat("Origin: https://a.example\r\n", ask)));
  const HttpAnswer preflight = connection.Read(/*to_head=*/true);
  EXPECT_EQ(preflight.status, 204);
  EXPECT_EQ(preflight.headers.at("access-control-allow-origin"), "*");
  EXPECT_EQ(preflight.headers.at("access-control-allow-headers"), "authorization");
  EXPECT_NE(preflight.headers.at("access-control-allow-methods").find("POST"), std::string::npos);
  connection.Send(WithOrigin("OPTIONS", ask));
  EXPECT_EQ(connection.Read().status, 405) << "no page asks";
}

TEST(CorsTest, WithoutTheFlagNoPageMay) {
  RouterHarness harness;
  HttpConnection connection(harness.port());
  connection.Send(
      WithOrigin("OPTIONS", "Origin: https://a.example\r\nAccess-Control-Request-Method: GET\r\n"));
  EXPECT_EQ(connection.Read().status, 405);
}

}  // namespace
}  // namespace flotilla
