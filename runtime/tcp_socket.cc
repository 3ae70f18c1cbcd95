#include "runtime/tcp_socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

namespace meshwright::runtime {
namespace {

constexpr double kFirstRetryS = 0.01;
constexpr double kLastRetryS = 0.5;

/// A socket address of either family.
struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

/// Runs getaddrinfo; it may take long for names.
Result<std::vector<Address>> LookUp(const std::string& host, int port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (error != 0) {
    return RunFailed(fmt::format("host '{}': {}; give a name or address that this machine knows",
                                 host, gai_strerror(error)));
  }
  std::vector<Address> out;
  for (const addrinfo* at = list; at != nullptr; at = at->ai_next) {
    if (at->ai_addrlen > sizeof(sockaddr_storage)) continue;
    Address address;
    std::memcpy(&address.storage, at->ai_addr, at->ai_addrlen);
    address.length = at->ai_addrlen;
    out.push_back(address);
  }
  freeaddrinfo(list);
  return out;
}

/// The addresses of a host, by the deadline even when the name service does not answer: the thread
/// that asks it is then left behind.
Result<std::vector<Address>> Resolve(const std::string& host, int port, const Deadline& deadline) {
  if (auto numeric = LookUp(host, port, AI_NUMERICHOST); numeric.ok()) return numeric;
  struct Answer {
    std::mutex mutex;
    std::condition_variable ready;
    std::optional<Result<std::vector<Address>>> result;
  };
  const auto answer = std::make_shared<Answer>();
  try {
    std::thread([answer, host, port] {
      auto result = LookUp(host, port, 0);
      const std::lock_guard lock(answer->mutex);
      answer->result = std::move(result);
      answer->ready.notify_all();
    }).detach();
  } catch (const std::system_error& e) {
    return RunFailed(fmt::format("host '{}': no thread to look it up: {}", host, e.what()));
  }
  std::unique_lock lock(answer->mutex);
  if (!answer->ready.wait_until(lock, deadline.end(), [&] { return answer->result.has_value(); })) {
    return RunFailed(fmt::format(
        "host '{}': the name service does not answer; give an address instead of a name", host));
  }
  return std::move(*answer->result);
}

Status WaitFor(int fd, short events, const Deadline& deadline) {
  while (true) {
    pollfd entry{fd, events, 0};
    const int ready = poll(&entry, 1, deadline.poll_ms());
    if (ready > 0) return Status::Ok();
    if (ready < 0 && errno != EINTR) return RunFailed("poll: " + ErrnoText(errno));
    if (deadline.passed()) return RunFailed("the deadline has passed");
  }
}

/// A connection to a free port of this machine can be its own other end, when the kernel gives it
/// that port.
bool MeetsItself(int fd) {
  Address here;
  Address there;
  here.length = there.length = sizeof(sockaddr_storage);
  return getsockname(fd, here.get(), &here.length) == 0 &&
         getpeername(fd, there.get(), &there.length) == 0 && here.length == there.length &&
         std::memcmp(&here.storage, &there.storage, here.length) == 0;
}

Result<FileDescriptor> ConnectOnce(const Address& to, const Deadline& deadline) {
  FileDescriptor socket(
      ::socket(to.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return RunFailed("socket: " + ErrnoText(errno));
  if (connect(socket.get(), to.get(), to.length) != 0) {
    if (errno != EINPROGRESS) return RunFailed(ErrnoText(errno));
    MW_RETURN_IF_ERROR(WaitFor(socket.get(), POLLOUT, deadline));
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return RunFailed(ErrnoText(error));
  }
  if (MeetsItself(socket.get())) return RunFailed(ErrnoText(ECONNREFUSED));
  const int on = 1;
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(socket.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  return socket;
}

bool IsLoopback(const std::string& host) {
  if (host == "localhost") return true;
  in_addr v4{};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6{};
  return inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

Result<FileDescriptor> ListenAt(const Address& at) {
  const int family = at.storage.ss_family;
  FileDescriptor socket(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return RunFailed("socket: " + ErrnoText(errno));
  const int on = 1;
  const int off = 0;
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (family == AF_INET6) {
    setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  if (bind(socket.get(), at.get(), at.length) != 0) return RunFailed("bind: " + ErrnoText(errno));
  if (listen(socket.get(), 1024) != 0) return RunFailed("listen: " + ErrnoText(errno));
  return socket;
}

}  // namespace

void FileDescriptor::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

std::string ErrnoText(int error) {
  return fmt::format("{} ({})", std::generic_category().message(error), error);
}

Result<FileDescriptor> ConnectTcp(const std::string& host, int port, Attempts attempts,
                                  const Deadline& deadline) {
  double pause_s = kFirstRetryS;
  Status last = RunFailed("the deadline has passed");
  do {
    Result<std::vector<Address>> addresses = Resolve(host, port, deadline);
    if (!addresses.ok()) {
      last = addresses.status();
    } else {
      for (const Address& address : *addresses) {
        Result<FileDescriptor> socket = ConnectOnce(address, deadline);
        if (socket.ok()) return socket;
        last = socket.status();
      }
    }
    if (attempts == Attempts::kOne) break;
    deadline.Sleep(pause_s);
    pause_s = std::min(2 * pause_s, kLastRetryS);
  } while (!deadline.passed());
  return last.WithContext(fmt::format("no connection to {} port {}", host, port));
}

Result<FileDescriptor> ListenTcp(const std::string& host, int port) {
  std::vector<std::string> anywhere = {"::", "0.0.0.0"};
  if (IsLoopback(host)) anywhere = {host == "localhost" ? "127.0.0.1" : host};
  Status last;
  for (const std::string& interface : anywhere) {
    MW_ASSIGN_OR_RETURN(const auto addresses, LookUp(interface, port, AI_NUMERICHOST));
    for (const Address& address : addresses) {
      Result<FileDescriptor> socket = ListenAt(address);
      if (socket.ok()) return socket;
      last = socket.status();
    }
  }
  return last.WithContext(fmt::format("cannot listen on port {}", port));
}

Result<int> PortOf(const FileDescriptor& listener) {
  Address address;
  address.length = sizeof(address.storage);
  if (getsockname(listener.get(), address.get(), &address.length) != 0) {
    return RunFailed("getsockname: " + ErrnoText(errno));
  }
  if (address.storage.ss_family == AF_INET) {
    return static_cast<int>(
        ntohs(reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_port));
  }
  return static_cast<int>(
      ntohs(reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_port));
}

Status WriteAll(const FileDescriptor& socket, std::string_view bytes, const Deadline& deadline) {
  while (!bytes.empty()) {
    const ssize_t done = send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (done > 0) {
      bytes.remove_prefix(static_cast<size_t>(done));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      MW_RETURN_IF_ERROR(WaitFor(socket.get(), POLLOUT, deadline));
    } else if (errno != EINTR) {
      return RunFailed("send: " + ErrnoText(errno));
    }
  }
  return Status::Ok();
}

Status ReadExactly(const FileDescriptor& socket, char* bytes, size_t count,
                   const Deadline& deadline) {
  while (count > 0) {
    const ssize_t done = recv(socket.get(), bytes, count, 0);
    if (done > 0) {
      bytes += done;
      count -= static_cast<size_t>(done);
    } else if (done == 0) {
      return RunFailed("the other end has closed the connection");
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      MW_RETURN_IF_ERROR(WaitFor(socket.get(), POLLIN, deadline));
    } else if (errno != EINTR) {
      return RunFailed("recv: " + ErrnoText(errno));
    }
  }
  return Status::Ok();
}

}  // namespace meshwright::runtime
