// Stores for tests: over TCP on a free port of this machine, or in a temporary directory.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/file_store.h"
#include "runtime/store.h"
#include "runtime/tcp_socket.h"
#include "runtime/tcp_store.h"

namespace meshwright::runtime {

enum class StoreKind { kTcp, kFile };

/// Where the ranks of one run of a test meet.
class MeetingPoint {
 public:
  explicit MeetingPoint(StoreKind kind, const std::string& host = "127.0.0.1")
      : kind_(kind), host_(host) {
    static std::atomic<int> count{0};
    run_id_ = "test-" + std::to_string(getpid()) + "-" + std::to_string(count++);
    if (kind == StoreKind::kFile) {
      directory_ = std::filesystem::temp_directory_path() / ("meshwright-" + run_id_);
      std::filesystem::create_directories(directory_);
      return;
    }
    Result<FileDescriptor> listener = ListenTcp(host, 0);
    if (!listener.ok()) return;
    port_ = PortOf(*listener).value();
    listener_ = std::move(*listener);
  }
  ~MeetingPoint() {
    std::error_code ignored;
    if (!directory_.empty()) std::filesystem::remove_all(directory_, ignored);
  }

  StoreOptions Options(int rank, int world) const {
    StoreOptions options;
    options.run_id = run_id_;
    options.rank = rank;
    options.world = world;
    return options;
  }
  /// Rank 0 takes the socket that listens.
  Result<std::unique_ptr<Store>> Open(const StoreOptions& options) {
    if (kind_ == StoreKind::kFile) return OpenFileStore(options, directory_.string());
    return OpenTcpStore(options, {host_, port_, options.rank == 0 ? listener_.Release() : -1});
  }
  Result<std::unique_ptr<Store>> Open(int rank, int world) { return Open(Options(rank, world)); }

  int port() const { return port_; }
  bool listens() const { return listener_.valid(); }
  /// For processes that do not serve: a dead server must not leave the socket open.
  void CloseListener() { listener_.Close(); }
  const std::filesystem::path& directory() const { return directory_; }

 private:
  const StoreKind kind_;
  const std::string host_;
  std::string run_id_;
  std::filesystem::path directory_;
  FileDescriptor listener_;
  int port_ = 0;
};

/// Runs `body` for each rank, on a thread with a store of its own; the results in rank order.
inline std::vector<Status> OnStores(StoreKind kind, int world,
                                    const std::function<Status(Store&)>& body) {
  MeetingPoint point(kind);
  std::vector<Status> results(static_cast<size_t>(world));
  std::vector<std::thread> threads;
  for (int r = 0; r < world; ++r) {
    threads.emplace_back([&, r] {
      auto store = point.Open(r, world);
      results[static_cast<size_t>(r)] = store.ok() ? body(**store) : store.status();
    });
  }
  for (std::thread& t : threads) t.join();
  return results;
}

}  // namespace meshwright::runtime
