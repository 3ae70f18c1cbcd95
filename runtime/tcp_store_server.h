// The server of the TCP store: one thread that keeps the values. Internal to the TCP store.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "runtime/store.h"
#include "runtime/store_values.h"
#include "runtime/tcp_protocol.h"
#include "runtime/tcp_socket.h"

namespace meshwright::runtime {

class TcpStoreServer {
 public:
  /// Serves the run of `options` on a socket that listens.
  static Result<std::unique_ptr<TcpStoreServer>> Start(const StoreOptions& options,
                                                       FileDescriptor listener);
  /// Serves on until all ranks have come and left, for at most `options.linger_s`: who comes late
  /// still hears why the run has ended.
  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;

 private:
  using Time = Deadline::Clock::time_point;
  struct Wait {
    std::vector<std::string> keys;
    Time end;
  };
  struct Connection {
    FileDescriptor socket;
    std::string in;
    std::string out;
    size_t written = 0;  ///< of `out`
    Time hello_end;      ///< until then it must have said who it is
    bool greeted = false;
    bool presence = false;
    bool goodbye = false;
    bool closing = false;  ///< close once `out` is written
    int rank = -1;
    std::optional<Wait> wait;
  };

  TcpStoreServer(const StoreOptions& options, FileDescriptor listener, FileDescriptor wake)
      : options_(options), listener_(std::move(listener)), wake_(std::move(wake)) {}

  void Run();
  bool all_came() const { return static_cast<int>(came_.size()) == options_.world; }
  int PollMilliseconds() const;
  void Accept();
  bool Read(Connection& c);
  bool Write(Connection& c);
  /// Handles what has arrived. False: the connection must be closed at once.
  bool Handle(Connection& c);
  bool Greet(Connection& c);
  std::string Refusal(uint64_t world, uint64_t rank, uint8_t kind, std::string_view run_id) const;
  bool HandleRequest(Connection& c, std::string_view body);
  std::string Serve(tcp::Request request, const std::string& key, std::string_view value,
                    int64_t delta);
  std::string ServeList(std::string_view prefix) const;
  void Closed(const Connection& c);
  void ExpireWaits();
  /// Answers the connections that wait for `key`.
  void Wake(const std::string& key);
  /// False: none of the keys exists.
  bool TryAnswer(Connection& c);

  const StoreOptions options_;
  FileDescriptor listener_;
  FileDescriptor wake_;
  std::atomic<bool> stopping_{false};
  std::list<Connection> connections_;
  StoreValues values_;
  std::set<int> came_;  ///< ranks that were ever here
  std::thread thread_;
};

}  // namespace meshwright::runtime
