#include "worker_proc/comm/rank_link.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "shm/replica_control.h"

namespace flotilla {
namespace {

constexpr uint64_t kLinkMagic = 0x314b4e4c544c46;  // "FLTLNK1"
constexpr uint32_t kLinkVersion = 2;
constexpr int64_t kHandshakeNs = kNsPerSecond;
constexpr int64_t kLinkTickNs = 100 * kNsPerMs;
constexpr size_t kMaxPending = 256;  // more than the listener's backlog

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
                               const std::string& secret, const SocketWait& connect,
                               int64_t handshake_ns) {
  ASSIGN_OR_RETURN(UniqueFd fd, ConnectTo(address, connect));
  SocketWait wait = connect;
  if (handshake_ns != 0)
    wait.deadline_ns = std::min(wait.deadline_ns, RealClock::Now() + handshake_ns);
  const HelloBytes bytes{kLinkMagic, kLinkVersion, static_cast<uint32_t>(hello.purpose),
                         hello.rank, hello.ranks,  hello.epoch,
                         hello.port, DrawNonce()};
  RETURN_IF_ERROR(Send(fd.get(), bytes, wait));
  ASSIGN_OR_RETURN(const Challenge challenge, Receive<Challenge>(fd.get(), wait));
  RETURN_IF_ERROR(CheckProof(challenge.proof, Proof(secret, 'a', bytes, challenge.nonce)));
  RETURN_IF_ERROR(Send(fd.get(), Proof(secret, 'c', bytes, challenge.nonce), wait));
  return fd;
}

// A handshake under way: the hello is awaited, then the proof.
struct LinkAcceptor::Pending {
  AcceptedSocket socket;
  int64_t deadline_ns = 0;
  bool challenged = false;
  size_t received = 0;  // of what is awaited
  HelloBytes hello;
  Nonce nonce;
  Mac proof;

  // As far as what has come allows; true: it is over, and good.
  StatusOr<bool> Advance(const std::string& secret);
  Status SendChallenge(const std::string& secret);
};

StatusOr<bool> LinkAcceptor::Pending::Advance(const std::string& secret) {
  for (;;) {
    const auto awaited = challenged ? std::as_writable_bytes(std::span(&proof, 1))
                                    : std::as_writable_bytes(std::span(&hello, 1));
    while (received < awaited.size()) {
      const auto rest = awaited.subspan(received);
      const ssize_t got = recv(socket.fd.get(), rest.data(), rest.size(), MSG_DONTWAIT);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        if (RealClock::Now() < deadline_ns) return false;
        return absl::DeadlineExceededError("the other end says nothing");
      }
      // It was shown our proof: whoever has another secret leaves.
      if (got <= 0)
        return absl::AbortedError(challenged ? "the other end left before it proved itself; has it "
                                               "the same --link-secret-file?"
                                             : "the other end is gone");
      received += static_cast<size_t>(got);
    }
    if (challenged) {
      RETURN_IF_ERROR(CheckProof(proof, Proof(secret, 'c', hello, nonce)));
      return true;
    }
    RETURN_IF_ERROR(CheckHello(hello));
    RETURN_IF_ERROR(SendChallenge(secret));
    challenged = true;
    received = 0;
  }
}

// It has room in the socket, where nothing was sent before.
Status LinkAcceptor::Pending::SendChallenge(const std::string& secret) {
  nonce = DrawNonce();
  const Challenge challenge{nonce, Proof(secret, 'a', hello, nonce)};
  const ssize_t sent =
      send(socket.fd.get(), &challenge, sizeof(challenge), MSG_NOSIGNAL | MSG_DONTWAIT);
  return sent == sizeof(challenge) ? OkStatus() : absl::AbortedError("the other end is gone");
}

LinkAcceptor::LinkAcceptor(UniqueFd listener, std::string secret)
    : listener_(std::move(listener)), secret_(std::move(secret)), refusals_(0, kNsPerSecond) {}
LinkAcceptor::~LinkAcceptor() = default;
LinkAcceptor::LinkAcceptor(LinkAcceptor&&) noexcept = default;

void LinkAcceptor::DropPending() { pending_.clear(); }

StatusOr<AcceptedLink> LinkAcceptor::Next(const SocketWait& wait) {
  for (int64_t ticked_ns = RealClock::Now();;) {
    const bool listens = TakeAll();
    for (auto it = pending_.begin(); it != pending_.end();) {
      const StatusOr<bool> done = it->Advance(secret_);
      if (done.ok() && !*done) {
        ++it;
        continue;
      }
      Pending ended = std::move(*it);
      it = pending_.erase(it);
      if (!done.ok()) {
        Refuse(ended.socket.host, done.status());
        continue;
      }
      const HelloBytes& hello = ended.hello;
      return AcceptedLink{std::move(ended.socket.fd), std::move(ended.socket.host),
                          LinkHello{static_cast<LinkPurpose>(hello.purpose), hello.rank,
                                    hello.ranks, hello.epoch, hello.port}};
    }
    const int64_t now_ns = RealClock::Now();
    if (now_ns >= wait.deadline_ns) return absl::DeadlineExceededError("nobody came");
    const int64_t timeout_ns = std::min(kLinkTickNs, wait.deadline_ns - now_ns);
    // However many come: it is looked around as often as without them.
    if (Poll(listens, timeout_ns) && RealClock::Now() - ticked_ns < kLinkTickNs) continue;
    ticked_ns = RealClock::Now();
    if (wait.tick) RETURN_IF_ERROR(wait.tick());
  }
}

bool LinkAcceptor::TakeAll() {
  while (pending_.size() < kMaxPending) {
    StatusOr<std::optional<AcceptedSocket>> socket = TryAccept(listener_.get());
    if (!socket.ok()) {
      Refuse("?", socket.status());
      return false;
    }
    if (!socket->has_value()) return true;
    pending_.emplace_back();
    pending_.back().socket = **std::move(socket);
    pending_.back().deadline_ns = RealClock::Now() + kHandshakeNs;
  }
  return false;
}

bool LinkAcceptor::Poll(bool listens, int64_t timeout_ns) {
  std::vector<pollfd> polled;
  if (listens) polled.push_back({listener_.get(), POLLIN, 0});
  for (const Pending& each : pending_) polled.push_back({each.socket.fd.get(), POLLIN, 0});
  const int64_t timeout_ms = (timeout_ns + kNsPerMs - 1) / kNsPerMs;
  return poll(polled.data(), polled.size(), static_cast<int>(timeout_ms)) > 0;
}

void LinkAcceptor::Refuse(const std::string& host, const Status& status) {
  ++unlogged_;
  if (!refusals_.ShouldLog()) return;
  Log().warn("a connection was refused {} {} {}", Kv("host", host),
             Kv("reason", std::string(status.message())), Kv("refused", unlogged_));
  unlogged_ = 0;
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
