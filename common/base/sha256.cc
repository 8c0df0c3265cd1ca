#include "common/base/sha256.h"

#include <openssl/evp.h>

#include <memory>

#include "common/base/check.h"

namespace flotilla {
namespace {

constexpr size_t kPiece = 16 << 20;

}  // namespace

std::string Sha256Hex(std::string_view bytes, const std::function<void()>& on_piece) {
  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(),
                                                                   EVP_MD_CTX_free);
  CHECK(context != nullptr && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1);
  while (!bytes.empty()) {
    const std::string_view piece = bytes.substr(0, kPiece);
    CHECK(EVP_DigestUpdate(context.get(), piece.data(), piece.size()) == 1);
    bytes.remove_prefix(piece.size());
    if (on_piece) on_piece();
  }
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  CHECK(EVP_DigestFinal_ex(context.get(), digest, &size) == 1);
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (unsigned int i = 0; i < size; ++i) {
    out.push_back(kHex[digest[i] >> 4]);
    out.push_back(kHex[digest[i] & 15]);
  }
  return out;
}

}  // namespace flotilla
