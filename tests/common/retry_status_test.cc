#include "common/rpc/retry_status.h"

#include <gtest/gtest.h>

#include "google/rpc/status.pb.h"

namespace flotilla {
namespace {

TEST(RetryStatusTest, TheDetailsSayAfterHowLong) {
  const grpc::Status status = RetryStatus(grpc::StatusCode::RESOURCE_EXHAUSTED, "full", 2500);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(status.error_message(), "full");
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(status.error_details()));
  EXPECT_EQ(details.code(), 8);
  EXPECT_EQ(details.message(), "full");
  ASSERT_EQ(details.details_size(), 1);
  EXPECT_EQ(details.details(0).type_url(), "type.googleapis.com/google.rpc.RetryInfo");
  google::rpc::RetryInfo retry;
  ASSERT_TRUE(details.details(0).UnpackTo(&retry));
  EXPECT_EQ(retry.retry_delay().seconds(), 2);
  EXPECT_EQ(retry.retry_delay().nanos(), 500'000'000);
}

TEST(RetryStatusTest, OrNothing) {
  const grpc::Status status = RetryStatus(grpc::StatusCode::INVALID_ARGUMENT, "wrong", 0);
  EXPECT_EQ(status.error_message(), "wrong");
  EXPECT_EQ(status.error_details(), "");
}

}  // namespace
}  // namespace flotilla
