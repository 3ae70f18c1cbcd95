#include "runtime/tcp_store_server.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>

#include "runtime/tcp_protocol.h"

namespace meshwright::runtime {
namespace {

using std::chrono::milliseconds;
using tcp::Answer;
using tcp::ConnectionKind;
using tcp::Reader;
using tcp::Request;
using tcp::Writer;

constexpr double kHelloSeconds = 5.0;
constexpr size_t kMaxStrangers = 64;  ///< connections that have not said who they are
constexpr size_t kConnectionsPerRank = 16;

std::string Reply(Answer answer, std::string_view text = {}) {
  return Writer().Byte(static_cast<uint8_t>(answer)).Text(text).Frame();
}

}  // namespace

Result<std::unique_ptr<TcpStoreServer>> TcpStoreServer::Start(const StoreOptions& options,
                                                              FileDescriptor listener) {
  FileDescriptor wake(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!wake.valid()) return RunFailed("eventfd: " + ErrnoText(errno));
  std::unique_ptr<TcpStoreServer> server(
      new TcpStoreServer(options, std::move(listener), std::move(wake)));
  try {
    server->thread_ = std::thread([raw = server.get()] { raw->Run(); });
  } catch (const std::system_error& e) {
    return RunFailed(fmt::format("no thread for the store: {}", e.what()));
  }
  return server;
}

TcpStoreServer::~TcpStoreServer() {
  if (!thread_.joinable()) return;
  stopping_ = true;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
  thread_.join();
}

void TcpStoreServer::Run() {
  std::optional<Deadline> end;
  while (true) {
    if (stopping_ && !end) end.emplace(options_.linger_s);
    if (end && ((connections_.empty() && all_came()) || end->passed())) return;
    std::vector<pollfd> polled = {{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    for (const Connection& c : connections_) {
      const bool reads = !c.wait && !c.closing;  // of a waiting one, poll tells the end only
      const auto events = (reads ? POLLIN : POLLRDHUP) | (c.out.empty() ? 0 : POLLOUT);
      polled.push_back({c.socket.get(), static_cast<short>(events), 0});
    }
    if (poll(polled.data(), polled.size(), PollMilliseconds()) < 0 && errno != EINTR) return;
    uint64_t ignored = 0;
    if (polled[0].revents != 0) {
      [[maybe_unused]] const ssize_t n = read(wake_.get(), &ignored, sizeof(ignored));
    }
    size_t i = 2;
    for (auto c = connections_.begin(); c != connections_.end(); ++i) {
      const short events = polled[i].revents;
      bool open = true;
      if ((events & POLLOUT) != 0) open = Write(*c);
      if (open && (events & POLLIN) != 0) open = Read(*c);
      if ((events & (POLLERR | POLLHUP | POLLNVAL)) != 0 && (events & POLLIN) == 0) open = false;
      if ((events & POLLRDHUP) != 0 && c->wait) open = false;
      if (!c->greeted && Deadline::Clock::now() >= c->hello_end) open = false;
      if (open) {
        ++c;
        continue;
      }
      const Connection closed = std::move(*c);
      c = connections_.erase(c);
      Closed(closed);
    }
    if (polled[1].revents != 0) Accept();
    ExpireWaits();
  }
}

int TcpStoreServer::PollMilliseconds() const {
  Time next = Deadline::Clock::now() + milliseconds(stopping_ ? 20 : 1000);
  for (const Connection& c : connections_) {
    if (!c.greeted) next = std::min(next, c.hello_end);
    if (c.wait) next = std::min(next, c.wait->end);
  }
  const auto left = std::chrono::duration_cast<milliseconds>(next - Deadline::Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left + 1, 0, 1000));
}

void TcpStoreServer::Accept() {
  while (true) {
    FileDescriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.valid()) {
      // Out of descriptors: the socket stays ready, so do not turn in circles.
      if (errno == EMFILE || errno == ENFILE) std::this_thread::sleep_for(milliseconds(10));
      return;
    }
    const auto strangers = static_cast<size_t>(std::count_if(
        connections_.begin(), connections_.end(), [](const Connection& c) { return !c.greeted; }));
    const size_t most = kMaxStrangers + kConnectionsPerRank * static_cast<size_t>(options_.world);
    if (strangers >= kMaxStrangers || connections_.size() >= most) continue;
    Connection& c = connections_.emplace_back();
    c.socket = std::move(socket);
    c.hello_end = Deadline(kHelloSeconds).end();
  }
}

bool TcpStoreServer::Read(Connection& c) {
  char buffer[65536];
  while (true) {
    const ssize_t n = recv(c.socket.get(), buffer, sizeof(buffer), 0);
    if (n == 0) return false;
    if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    c.in.append(buffer, static_cast<size_t>(n));
    if (!Handle(c)) return false;
    if (c.wait || c.closing || static_cast<size_t>(n) < sizeof(buffer)) return true;
  }
}

bool TcpStoreServer::Write(Connection& c) {
  while (c.written < c.out.size()) {
    const ssize_t n =
        send(c.socket.get(), c.out.data() + c.written, c.out.size() - c.written, MSG_NOSIGNAL);
    if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    c.written += static_cast<size_t>(n);
  }
  c.out.clear();
  c.written = 0;
  return !c.closing;
}

bool TcpStoreServer::Handle(Connection& c) {
  if (!c.greeted && !Greet(c)) return false;
  // A client asks one thing at a time, so what follows an unanswered request breaks the rules.
  while (c.greeted && !c.closing && !c.wait && c.in.size() >= 4) {
    const size_t bytes = Reader(c.in).Number(4);
    if (bytes > tcp::kMaxFrameBytes) return false;
    if (c.in.size() < 4 + bytes) break;
    const std::string frame = c.in.substr(4, bytes);
    c.in.erase(0, 4 + bytes);
    if (!HandleRequest(c, frame)) return false;
  }
  return Write(c);
}

/// True while it is not complete, too.
bool TcpStoreServer::Greet(Connection& c) {
  const size_t known = std::min(c.in.size(), tcp::kMagic.size());
  if (std::string_view(c.in).substr(0, known) != tcp::kMagic.substr(0, known)) return false;
  if (c.in.size() < tcp::kMagic.size() + 4) return true;
  const size_t bytes = Reader(std::string_view(c.in).substr(tcp::kMagic.size())).Number(4);
  if (bytes > tcp::kMaxHelloBytes) return false;
  const size_t all = tcp::kMagic.size() + 4 + bytes;
  if (c.in.size() < all) return true;
  Reader hello(std::string_view(c.in).substr(tcp::kMagic.size() + 4, bytes));
  const uint64_t world = hello.Number(4);
  const uint64_t rank = hello.Number(4);
  const uint8_t kind = hello.Byte();
  const std::string_view run_id = hello.Text();
  if (!hello.complete()) return false;
  const std::string refusal = Refusal(world, rank, kind, run_id);
  c.in.erase(0, all);
  c.greeted = true;
  c.closing = !refusal.empty();
  c.out += tcp::kMagic;
  c.out += Reply(c.closing ? Answer::kRefused : Answer::kDone, refusal);
  if (c.closing) return true;
  c.rank = static_cast<int>(rank);
  c.presence = kind == static_cast<uint8_t>(ConnectionKind::kPresence);
  came_.insert(c.rank);
  return true;
}

std::string TcpStoreServer::Refusal(uint64_t world, uint64_t rank, uint8_t kind,
                                    std::string_view run_id) const {
  if (run_id != options_.run_id) {
    return fmt::format("it serves run '{}', this is run '{}'; give each run a port of its own",
                       options_.run_id, run_id);
  }
  if (world != static_cast<uint64_t>(options_.world) || rank >= world) {
    return fmt::format(
        "it serves a run of {} ranks, this is rank {} of {}; start all ranks with "
        "the same world size",
        options_.world, rank, world);
  }
  if (kind != static_cast<uint8_t>(ConnectionKind::kPresence)) return {};
  for (const Connection& other : connections_) {
    if (other.presence && other.rank == static_cast<int>(rank)) {
      return fmt::format("rank {} is there already; give each process a rank of its own", rank);
    }
  }
  return {};
}

void TcpStoreServer::Wake(const std::string& key) {
  for (Connection& c : connections_) {
    if (!c.wait) continue;
    const auto& keys = c.wait->keys;
    if (std::find(keys.begin(), keys.end(), key) != keys.end() && TryAnswer(c)) Write(c);
  }
}

bool TcpStoreServer::TryAnswer(Connection& c) {
  for (size_t i = 0; i < c.wait->keys.size(); ++i) {
    const std::string* value = values_.Find(c.wait->keys[i]);
    if (value == nullptr) continue;
    c.out += Writer()
                 .Byte(static_cast<uint8_t>(Answer::kDone))
                 .Byte(static_cast<uint8_t>(i))
                 .Text(*value)
                 .Frame();
    c.wait.reset();
    return true;
  }
  return false;
}

bool TcpStoreServer::HandleRequest(Connection& c, std::string_view body) {
  Reader in(body);
  const auto request = static_cast<Request>(in.Byte());
  if (request == Request::kGoodbye) {
    c.goodbye = true;
    return in.complete();
  }
  if (request == Request::kWaitAny) {
    Wait wait;
    wait.end = Deadline::Clock::now() + milliseconds(static_cast<int64_t>(in.Number(4)));
    const size_t count = in.Byte();
    if (count < 1 || count > kMaxStoreWaitKeys) return false;
    for (size_t i = 0; i < count; ++i) wait.keys.emplace_back(in.Text());
    if (!in.complete()) return false;
    c.wait = std::move(wait);
    TryAnswer(c);
    return true;
  }
  const std::string key(in.Text());
  std::string value;
  int64_t delta = 0;
  if (request == Request::kSet || request == Request::kSetOnce) value = in.Text();
  if (request == Request::kAdd) delta = static_cast<int64_t>(in.Number(8));
  if (!in.complete()) return false;
  c.out += Serve(request, key, value, delta);
  if (request != Request::kRemove && request != Request::kList) Wake(key);
  return true;
}

std::string TcpStoreServer::Serve(Request request, const std::string& key, std::string_view value,
                                  int64_t delta) {
  const auto done = [](const Status& status, std::string_view text) {
    return status.ok() ? Reply(Answer::kDone, text) : Reply(Answer::kRefused, status.message());
  };
  switch (request) {
    case Request::kSet:
      return done(values_.Set(key, value), "");
    case Request::kSetOnce: {
      const bool fresh = values_.Find(key) == nullptr;
      const Status status = fresh ? values_.Set(key, value) : Status::Ok();
      return done(status, status.ok() ? *values_.Find(key) : "");
    }
    case Request::kAdd: {
      const Result<int64_t> sum = values_.Add(key, delta);
      return done(sum.status(), sum.ok() ? std::to_string(*sum) : "");
    }
    case Request::kRemove:
      values_.Remove(key);
      return done(Status::Ok(), "");
    case Request::kList:
      return ServeList(key);
    case Request::kWaitAny:
    case Request::kGoodbye:
      break;
  }
  return Reply(Answer::kRefused, "an unknown request");
}

std::string TcpStoreServer::ServeList(std::string_view prefix) const {
  Writer list;
  const auto found = values_.List(prefix);
  size_t bytes = 0;
  for (const auto& [key, value] : found) bytes += key.size() + value.size() + 8;
  if (bytes > kMaxStoreValueBytes) {
    return Reply(Answer::kRefused, fmt::format("the values below '{}' have {} bytes, at most {}",
                                               prefix, bytes, kMaxStoreValueBytes));
  }
  list.Byte(static_cast<uint8_t>(Answer::kDone)).Number(found.size(), 4);
  for (const auto& [key, value] : found) list.Text(key).Text(value);
  return list.Frame();
}

void TcpStoreServer::Closed(const Connection& c) {
  if (!c.presence || c.goodbye) return;
  const std::string key = GoneKey(c.rank);
  if (values_.Set(key, "its connection to the store has ended").ok()) Wake(key);
}

void TcpStoreServer::ExpireWaits() {
  const Time now = Deadline::Clock::now();
  for (Connection& c : connections_) {
    if (!c.wait || now < c.wait->end) continue;
    c.wait.reset();
    c.out += Reply(Answer::kNothing);
    Write(c);
  }
}

}  // namespace meshwright::runtime
