#include "common/base/exit_status.h"

#include <gtest/gtest.h>

namespace flotilla {
namespace {

TEST(ExitStatusTest, WhatARestartMayMendIsTriedAgain) {
  for (const Status& status :
       {absl::AlreadyExistsError("port 8000 is in use"), absl::UnavailableError("no such address"),
        absl::ResourceExhaustedError("pipe: too many"), absl::InternalError("odd")}) {
    EXPECT_EQ(ExitStatusOf(status), 1) << status;
  }
  for (const Status& status :
       {absl::InvalidArgumentError("--tp"), absl::NotFoundError("--model"),
        absl::OutOfRangeError("--rank"), absl::FailedPreconditionError("--isa"),
        absl::UnimplementedError("--dtype"), absl::PermissionDeniedError("--model")}) {
    EXPECT_EQ(ExitStatusOf(status), kExitBadConfiguration) << status;
  }
}

}  // namespace
}  // namespace flotilla
