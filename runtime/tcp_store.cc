#include "runtime/tcp_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/store_values.h"
#include "runtime/tcp_protocol.h"
#include "runtime/tcp_socket.h"
#include "runtime/tcp_store_server.h"

namespace meshwright::runtime {
namespace {

using tcp::Answer;
using tcp::ConnectionKind;
using tcp::Reader;
using tcp::Request;
using tcp::Writer;

constexpr size_t kIdleConnections = 4;  // kept for later calls

Writer Begin(Request request, const std::string& key) {
  return Writer().Byte(static_cast<uint8_t>(request)).Text(key);
}

/// The next frame, at most `most` bytes.
Result<std::string> ReadFrame(const FileDescriptor& socket, size_t most, const Deadline& deadline) {
  char head[4];
  MW_RETURN_IF_ERROR(ReadExactly(socket, head, sizeof(head), deadline));
  const size_t bytes = Reader(std::string_view(head, sizeof(head))).Number(4);
  if (bytes > most) return RunFailed(fmt::format("an answer of {} bytes; at most {}", bytes, most));
  std::string frame(bytes, '\0');
  MW_RETURN_IF_ERROR(ReadExactly(socket, frame.data(), bytes, deadline));
  return frame;
}

class TcpStore final : public Store {
 public:
  TcpStore(const StoreOptions& options, const TcpStoreOptions& tcp)
      : options_(options), tcp_(tcp) {}
  ~TcpStore() override;

  Status Open();

  std::string where() const override {
    return fmt::format("tcp store at {} port {}", tcp_.host, tcp_.port);
  }
  int rank() const override { return options_.rank; }
  int world() const override { return options_.world; }

  Status Set(const std::string& key, std::string_view value) override {
    MW_RETURN_IF_ERROR(CheckStoreValue(key, value));
    return Call(Begin(Request::kSet, key).Text(value)).status();
  }
  Result<std::string> SetOnce(const std::string& key, std::string_view value) override {
    MW_RETURN_IF_ERROR(CheckStoreValue(key, value));
    return Call(Begin(Request::kSetOnce, key).Text(value));
  }
  Result<int64_t> Add(const std::string& key, int64_t delta) override {
    MW_RETURN_IF_ERROR(CheckStoreKey(key));
    MW_ASSIGN_OR_RETURN(const std::string sum,
                        Call(Begin(Request::kAdd, key).Number(static_cast<uint64_t>(delta), 8)));
    return AddToCounter(key, sum, 0);
  }
  Status Remove(const std::string& key) override {
    MW_RETURN_IF_ERROR(CheckStoreKey(key));
    return Call(Begin(Request::kRemove, key)).status();
  }
  Result<std::map<std::string, std::string>> List(const std::string& prefix) override;
  Result<std::optional<Found>> WaitAny(const std::vector<std::string>& keys,
                                       double deadline_s) override;

 private:
  Result<FileDescriptor> Connect(ConnectionKind kind, Attempts attempts,
                                 const Deadline& deadline) const;
  /// Sends a request and returns the frame of its answer.
  Result<std::string> Exchange(const Writer& request, const Deadline& deadline);
  /// A request whose answer is a text.
  Result<std::string> Call(const Writer& request);
  Status Lost(const Status& why) const;

  const StoreOptions options_;
  TcpStoreOptions tcp_;
  std::unique_ptr<TcpStoreServer> server_;  ///< of rank 0
  FileDescriptor presence_;
  std::mutex mutex_;
  std::vector<FileDescriptor> idle_;  // guarded by mutex_
};

Status TcpStore::Open() {
  if (options_.rank == 0) {
    FileDescriptor listener(std::exchange(tcp_.listen_fd, -1));
    if (!listener.valid()) {
      Result<FileDescriptor> made = ListenTcp(tcp_.host, tcp_.port);
      if (!made.ok()) {
        return RunFailed(
            fmt::format("{}: {}; choose another MASTER_PORT", where(), made.status().message()));
      }
      listener = std::move(*made);
    }
    MW_ASSIGN_OR_RETURN(tcp_.port, PortOf(listener));
    MW_ASSIGN_OR_RETURN(server_, TcpStoreServer::Start(options_, std::move(listener)));
  }
  const Deadline deadline(options_.open_deadline_s);
  Result<FileDescriptor> socket =
      Connect(ConnectionKind::kPresence, Attempts::kUntilDeadline, deadline);
  if (!socket.ok()) {
    return Status(socket.status().code(),
                  fmt::format("{}: rank {} of {} cannot join: {}", where(), options_.rank,
                              options_.world, socket.status().message()));
  }
  presence_ = std::move(*socket);
  return Status::Ok();
}

TcpStore::~TcpStore() {
  if (presence_.valid()) {
    const Writer goodbye = Writer().Byte(static_cast<uint8_t>(Request::kGoodbye));
    // A server that is gone needs no goodbye.
    [[maybe_unused]] const Status said =
        WriteAll(presence_, goodbye.Frame(), Deadline(options_.call_deadline_s));
  }
  presence_.Close();
  idle_.clear();
  server_.reset();
}

Result<FileDescriptor> TcpStore::Connect(ConnectionKind kind, Attempts attempts,
                                         const Deadline& deadline) const {
  MW_ASSIGN_OR_RETURN(FileDescriptor socket, ConnectTcp(tcp_.host, tcp_.port, attempts, deadline));
  const Writer hello = Writer()
                           .Number(static_cast<uint64_t>(options_.world), 4)
                           .Number(static_cast<uint64_t>(options_.rank), 4)
                           .Byte(static_cast<uint8_t>(kind))
                           .Text(options_.run_id);
  MW_RETURN_IF_ERROR(WriteAll(socket, std::string(tcp::kMagic) + hello.Frame(), deadline));
  char magic[tcp::kMagic.size()];
  MW_RETURN_IF_ERROR(ReadExactly(socket, magic, sizeof(magic), deadline));
  if (std::string_view(magic, sizeof(magic)) != tcp::kMagic) {
    return RunFailed("what answers there is no store of Meshwright; choose another MASTER_PORT");
  }
  MW_ASSIGN_OR_RETURN(const std::string frame, ReadFrame(socket, tcp::kMaxFrameBytes, deadline));
  Reader in(frame);
  const auto answer = static_cast<Answer>(in.Byte());
  const std::string_view text = in.Text();
  if (!in.complete()) return RunFailed("an answer that makes no sense");
  if (answer != Answer::kDone) return InvalidInput(std::string(text));
  return socket;
}

Status TcpStore::Lost(const Status& why) const {
  if (why.code() != StatusCode::kRunFailed) return why.WithContext(where());
  return RunFailed(fmt::format("{}, which rank 0 keeps, does not answer rank {}: {}", where(),
                               options_.rank, why.message()));
}

Result<std::string> TcpStore::Exchange(const Writer& request, const Deadline& deadline) {
  FileDescriptor socket;
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      socket = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (!socket.valid()) {
    // Rank 0 served before: when it refuses, it is gone, and there is nothing to wait for.
    Result<FileDescriptor> made = Connect(ConnectionKind::kRequests, Attempts::kOne, deadline);
    if (!made.ok()) return Lost(made.status());
    socket = std::move(*made);
  }
  if (const Status sent = WriteAll(socket, request.Frame(), deadline); !sent.ok()) {
    return Lost(sent);
  }
  Result<std::string> frame = ReadFrame(socket, tcp::kMaxFrameBytes, deadline);
  if (!frame.ok()) return Lost(frame.status());
  const std::lock_guard lock(mutex_);
  if (idle_.size() < kIdleConnections) idle_.push_back(std::move(socket));
  return frame;
}

Result<std::string> TcpStore::Call(const Writer& request) {
  MW_ASSIGN_OR_RETURN(const std::string frame,
                      Exchange(request, Deadline(options_.call_deadline_s)));
  Reader in(frame);
  const auto answer = static_cast<Answer>(in.Byte());
  std::string text(in.Text());
  if (!in.complete()) return Lost(RunFailed("an answer that makes no sense"));
  if (answer != Answer::kDone) return RunFailed(fmt::format("{}: {}", where(), text));
  return text;
}

Result<std::map<std::string, std::string>> TcpStore::List(const std::string& prefix) {
  MW_RETURN_IF_ERROR(CheckStoreKey(prefix));
  MW_ASSIGN_OR_RETURN(const std::string frame,
                      Exchange(Begin(Request::kList, prefix), Deadline(options_.call_deadline_s)));
  Reader in(frame);
  const auto answer = static_cast<Answer>(in.Byte());
  if (answer != Answer::kDone) {
    return RunFailed(fmt::format("{}: {}", where(), std::string(in.Text())));
  }
  std::map<std::string, std::string> out;
  for (uint64_t left = in.Number(4); left > 0 && in.ok(); --left) {
    std::string key(in.Text());
    out.emplace(std::move(key), in.Text());
  }
  if (!in.complete()) return Lost(RunFailed("an answer that makes no sense"));
  return out;
}

Result<std::optional<Store::Found>> TcpStore::WaitAny(const std::vector<std::string>& keys,
                                                      double deadline_s) {
  if (keys.empty() || keys.size() > kMaxStoreWaitKeys) {
    return InvalidInput(
        fmt::format("{} keys to wait for; 1..{} are allowed", keys.size(), kMaxStoreWaitKeys));
  }
  for (const std::string& key : keys) MW_RETURN_IF_ERROR(CheckStoreKey(key));
  const Deadline deadline(deadline_s);
  // In pieces, so that a server that hangs is noticed by the deadline of a call.
  do {
    const double piece_s = std::min(deadline.left_s(), options_.call_deadline_s);
    Writer request = Writer()
                         .Byte(static_cast<uint8_t>(Request::kWaitAny))
                         .Number(static_cast<uint64_t>(std::ceil(piece_s * 1e3)), 4)
                         .Byte(static_cast<uint8_t>(keys.size()));
    for (const std::string& key : keys) request.Text(key);
    MW_ASSIGN_OR_RETURN(const std::string frame,
                        Exchange(request, Deadline(piece_s + options_.call_deadline_s)));
    Reader in(frame);
    if (static_cast<Answer>(in.Byte()) == Answer::kNothing) continue;
    const size_t index = in.Byte();
    std::string value(in.Text());
    if (!in.complete() || index >= keys.size()) {
      return Lost(RunFailed("an answer that makes no sense"));
    }
    return std::optional<Found>(Found{index, std::move(value)});
  } while (!deadline.passed());
  return std::optional<Found>();
}

}  // namespace

Result<std::unique_ptr<Store>> OpenTcpStore(const StoreOptions& options,
                                            const TcpStoreOptions& tcp) {
  FileDescriptor listener(tcp.listen_fd);
  MW_RETURN_IF_ERROR(CheckStoreOptions(options));
  if (tcp.host.empty() || tcp.port < (listener.valid() ? 0 : 1) || tcp.port > 65535) {
    return InvalidInput(fmt::format(
        "tcp store: host '{}', port {}; a host and a port in 1..65535 are needed (MASTER_ADDR, "
        "MASTER_PORT)",
        tcp.host, tcp.port));
  }
  auto store = std::make_unique<TcpStore>(options, tcp);
  listener.Release();
  MW_RETURN_IF_ERROR(store->Open());
  return std::unique_ptr<Store>(std::move(store));
}

}  // namespace meshwright::runtime
