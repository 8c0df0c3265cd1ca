#include "worker_proc/comm/rank_link.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <type_traits>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "shm/replica_control.h"

namespace flotilla {
namespace {

constexpr uint64_t kLinkMagic = 0x314b4e4c544c46;  // "FLTLNK1"
constexpr uint32_t kLinkVersion = 1;
constexpr int64_t kHandshakeNs = kNsPerSecond;

using Nonce = std::array<unsigned char, 16>;
using Mac = std::array<unsigned char, 32>;

// On the wire as it lies in memory: all hosts are little-endian.
struct HelloBytes {
  uint64_t magic;
  uint32_t version;
  uint32_t purpose, rank, ranks, epoch, port;
  Nonce nonce;
};
struct Challenge {
  Nonce nonce;
  Mac proof;
};
static_assert(std::is_trivially_copyable_v<HelloBytes> && sizeof(HelloBytes) == 48);
static_assert(sizeof(Challenge) == 48);

Nonce DrawNonce() {
  Nonce nonce;
  CHECK(RAND_bytes(nonce.data(), nonce.size()) == 1);
  return nonce;
}

// side: whose proof it is, so that one can't be sent back as the other.
Mac Proof(const std::string& secret, char side, const HelloBytes& hello, const Nonce& nonce) {
  std::string text(1, side);
  text.append(reinterpret_cast<const char*>(&hello), sizeof(hello));
  text.append(reinterpret_cast<const char*>(nonce.data()), nonce.size());
  Mac mac;
  unsigned int size = 0;
  CHECK(HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
             reinterpret_cast<const unsigned char*>(text.data()), text.size(), mac.data(),
             &size) != nullptr);
  CHECK(size == mac.size());
  return mac;
}

Status CheckProof(const Mac& given, const Mac& expected) {
  if (CRYPTO_memcmp(given.data(), expected.data(), given.size()) == 0) return OkStatus();
  return absl::PermissionDeniedError("the other end has another --link-secret-file");
}

template <typename T>
Status Send(int fd, const T& value, const SocketWait& wait) {
  return SendAll(fd, {reinterpret_cast<const char*>(&value), sizeof(value)}, wait);
}
template <typename T>
StatusOr<T> Receive(int fd, const SocketWait& wait) {
  T value;
  RETURN_IF_ERROR(ReceiveAll(fd, std::as_writable_bytes(std::span(&value, 1)), wait));
  return value;
}

Status CheckHello(const HelloBytes& hello) {
  if (hello.magic != kLinkMagic || hello.version != kLinkVersion) {
    return absl::FailedPreconditionError("the other end is no rank of this version");
  }
  if (hello.rank >= hello.ranks || hello.ranks > kMaxRanks || hello.port > UINT16_MAX) {
    return absl::FailedPreconditionError("the other end names a rank that can't be");
  }
  return OkStatus();
}

}  // namespace

StatusOr<UniqueFd> ConnectLink(const TcpAddress& address, const LinkHello& hello,
                               const std::string& secret, const SocketWait& wait) {
  ASSIGN_OR_RETURN(UniqueFd fd, ConnectTo(address, wait));
  const HelloBytes bytes{kLinkMagic, kLinkVersion, static_cast<uint32_t>(hello.purpose),
                         hello.rank, hello.ranks,  hello.epoch,
                         hello.port, DrawNonce()};
  RETURN_IF_ERROR(Send(fd.get(), bytes, wait));
  ASSIGN_OR_RETURN(const Challenge challenge, Receive<Challenge>(fd.get(), wait));
  RETURN_IF_ERROR(CheckProof(challenge.proof, Proof(secret, 'a', bytes, challenge.nonce)));
  RETURN_IF_ERROR(Send(fd.get(), Proof(secret, 'c', bytes, challenge.nonce), wait));
  return fd;
}

StatusOr<AcceptedLink> AcceptLink(int listener, const std::string& secret, const SocketWait& wait) {
  ASSIGN_OR_RETURN(AcceptedSocket socket, AcceptFrom(listener, wait));
  const int fd = socket.fd.get();
  const SocketWait soon{std::min(wait.deadline_ns, RealClock::Now() + kHandshakeNs), wait.tick};
  ASSIGN_OR_RETURN(const HelloBytes bytes, Receive<HelloBytes>(fd, soon));
  RETURN_IF_ERROR(CheckHello(bytes));
  const Nonce nonce = DrawNonce();
  RETURN_IF_ERROR(Send(fd, Challenge{nonce, Proof(secret, 'a', bytes, nonce)}, soon));
  ASSIGN_OR_RETURN(const Mac proof, Receive<Mac>(fd, soon));
  RETURN_IF_ERROR(CheckProof(proof, Proof(secret, 'c', bytes, nonce)));
  const LinkHello hello{static_cast<LinkPurpose>(bytes.purpose), bytes.rank, bytes.ranks,
                        bytes.epoch, bytes.port};
  return AcceptedLink{std::move(socket.fd), std::move(socket.host), hello};
}

StatusOr<std::string> ReadSecret(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return absl::NotFoundError(StrCat("--link-secret-file: ", path, " is no file"));
  }
  if ((info.st_mode & S_IROTH) != 0) {
    return absl::InvalidArgumentError(
        StrCat("--link-secret-file: everybody can read ", path, "; chmod o-r it"));
  }
  std::ifstream file(path);
  std::string secret;
  std::getline(file, secret);
  if (secret.size() < 16) {
    return absl::InvalidArgumentError(
        StrCat("--link-secret-file: the first line of ", path, " has fewer than 16 characters"));
  }
  return secret;
}

}  // namespace flotilla
