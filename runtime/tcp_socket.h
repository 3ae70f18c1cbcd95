// Sockets with deadlines. Internal to the TCP store and to the start of ranks.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/deadline.h"
#include "topologies/status.h"

namespace meshwright::runtime {

/// Owns a file descriptor.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.Release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    if (this != &other) {
      Close();
      fd_ = other.Release();
    }
    return *this;
  }
  ~FileDescriptor() { Close(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  void Close();

 private:
  int fd_ = -1;
};

/// Whether to try again while nobody listens.
enum class Attempts { kOne, kUntilDeadline };

/// Connects to a host by name or IPv4/IPv6 address. The socket does not block. Errors (kRunFailed)
/// name the host, the port and what the last attempt met.
Result<FileDescriptor> ConnectTcp(const std::string& host, int port, Attempts attempts,
                                  const Deadline& deadline);

/// Listens on `port` (0: any free one): only on the loopback interface when `host` is a loopback
/// address or "localhost", else on all interfaces, IPv6 and IPv4. Errors (kRunFailed) name the
/// port.
Result<FileDescriptor> ListenTcp(const std::string& host, int port);
/// The port of a socket that listens.
Result<int> PortOf(const FileDescriptor& listener);

/// All bytes or an error (kRunFailed): the deadline passed, or the other end has closed.
Status WriteAll(const FileDescriptor& socket, std::string_view bytes, const Deadline& deadline);
Status ReadExactly(const FileDescriptor& socket, char* bytes, size_t count,
                   const Deadline& deadline);

/// "Connection refused (111)" of an errno.
std::string ErrnoText(int error);

}  // namespace meshwright::runtime
