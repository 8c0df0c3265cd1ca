// Whether a file that a program of ours wrote may be believed: whoever can change it decides what
// it says, and checksums are no secret.
//
// Threads: any. Errors: PermissionDenied: it is another user's, or others may write it.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_format.h"
#include "common/base/status.h"

namespace flotilla {

inline Status CheckTrusted(const struct stat& info) {
  if ((info.st_uid == geteuid() || info.st_uid == 0) && (info.st_mode & S_IWOTH) == 0)
    return OkStatus();
  return absl::PermissionDeniedError(
      StrCat("user ", info.st_uid, "'s, mode ", absl::StrFormat("%03o", info.st_mode & 0777),
             ": only what this user or root has written, and nobody else may change, is trusted"));
}

}  // namespace flotilla
