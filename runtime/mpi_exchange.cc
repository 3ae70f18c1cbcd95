#include "runtime/mpi_exchange.h"

#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>
#include <thread>

namespace meshwright::runtime {
namespace {

using planner::DType;
using Clock = std::chrono::steady_clock;

constexpr int64_t kMaxMessageBytes = int64_t{1} << 30;  // MPI counts are int
constexpr int kAbortTag = 1;
constexpr double kResultPatience =
    1.25;  // who waits for a sum gives its owner time to report first
constexpr std::chrono::milliseconds kAbortGrace(200);
constexpr std::chrono::microseconds kFirstNap(20);
constexpr std::chrono::microseconds kLongestNap(500);

int Encode(const MpiTag& tag) {
  return tag.phase * 256 + static_cast<int>(tag.op) * 16 + static_cast<int>(tag.dtype);
}

std::string Describe(int tag) {
  return fmt::format("{} of {}", ToString(static_cast<CommOp>(tag / 16 % 16)),
                     planner::ToString(static_cast<DType>(tag % 16)));
}

/// World ranks of the members of `comm`. Needs the mutex.
std::vector<int> WorldRanks(MPI_Comm comm) {
  MPI_Group group = MPI_GROUP_NULL;
  MPI_Group world = MPI_GROUP_NULL;
  MPI_Comm_group(comm, &group);
  MPI_Comm_group(MPI_COMM_WORLD, &world);
  int n = 0;
  MPI_Group_size(group, &n);
  std::vector<int> own(static_cast<size_t>(n));
  std::vector<int> ranks(own.size());
  for (int i = 0; i < n; ++i) own[static_cast<size_t>(i)] = i;
  MPI_Group_translate_ranks(group, n, own.data(), world, ranks.data());
  MPI_Group_free(&group);
  MPI_Group_free(&world);
  return ranks;
}

}  // namespace

struct MpiExchange::Handle {
  MPI_Comm comm = MPI_COMM_NULL;
};

/// What the communicators of a process share. All calls of MPI hold `mutex` and none of them
/// blocks, so MPI_THREAD_SERIALIZED is enough; the set-up calls (split) are the exception.
struct MpiExchange::Shared {
  CommOptions options;
  std::mutex mutex;
  MPI_Comm control = MPI_COMM_NULL;  ///< carries abort reasons only
  int rank = 0;
  int size = 1;
  std::atomic<bool> aborted{false};
  Status reason;                       // guarded by mutex
  std::deque<std::string> sent_texts;  // alive until the process ends, as their requests are

  void Abort(const Status& why);
  /// Notes a reason that another process has sent. Needs the mutex.
  void PollAbort();
  Status Reason() {
    const std::lock_guard lock(mutex);
    PollAbort();
    return reason;
  }
};

void MpiExchange::Shared::Abort(const Status& why) {
  const std::lock_guard lock(mutex);
  PollAbort();
  if (!reason.ok()) return;
  reason = why.ok() ? RunFailed("aborted") : why;
  aborted = true;
  sent_texts.push_back(static_cast<char>('0' + static_cast<int>(reason.code())) + reason.message());
  const std::string& text = sent_texts.back();
  for (int r = 0; r < size; ++r) {
    if (r == rank) continue;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Isend(text.data(), static_cast<int>(text.size()), MPI_CHAR, r, kAbortTag, control,
              &request);
    if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
  }
}

void MpiExchange::Shared::PollAbort() {
  int there = 0;
  MPI_Status status;
  if (MPI_Iprobe(MPI_ANY_SOURCE, kAbortTag, control, &there, &status) != MPI_SUCCESS || !there) {
    return;
  }
  int length = 0;
  MPI_Get_count(&status, MPI_CHAR, &length);
  std::string text(static_cast<size_t>(std::max(length, 1)), '0');
  MPI_Recv(text.data(), length, MPI_CHAR, status.MPI_SOURCE, kAbortTag, control, MPI_STATUS_IGNORE);
  if (!reason.ok()) return;
  auto code = static_cast<StatusCode>(text[0] - '0');
  if (code <= StatusCode::kOk || code > StatusCode::kRunFailed) code = StatusCode::kRunFailed;
  reason = Status(code, text.substr(1));
  aborted = true;
}

/// A transfer on its way.
struct MpiExchange::Flight {
  MpiTransfer transfer;
  bool send = false;
  MPI_Request request = MPI_REQUEST_NULL;
  bool posted = false;
  bool done = false;
};

/// Starts a flight as far as it can now. A receive starts once its message is there, so that type
/// and size are compared before data moves. Needs the mutex.
Status MpiExchange::Post(const MpiTag& tag, int64_t sequence, Flight* flight) {
  const MpiTransfer& t = flight->transfer;
  if (flight->send) {
    flight->posted = true;
    MPI_Issend(t.buffer, static_cast<int>(t.bytes), MPI_BYTE, t.peer, Encode(tag), handle_->comm,
               &flight->request);
    return Status::Ok();
  }
  int there = 0;
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status status;
  MPI_Improbe(t.peer, MPI_ANY_TAG, handle_->comm, &there, &message, &status);
  if (!there) return Status::Ok();
  int bytes = 0;
  MPI_Get_count(&status, MPI_BYTE, &bytes);
  if (status.MPI_TAG != Encode(tag) || bytes != t.bytes) {
    return RunFailed(fmt::format(
        "communicator {}: rank {} does {} with {} bytes, rank {} does {} with {} bytes (its "
        "operation {}); all members must ask for the same",
        name_, ranks_[static_cast<size_t>(t.peer)], Describe(status.MPI_TAG), bytes,
        ranks_[static_cast<size_t>(rank_)], Describe(Encode(tag)), t.bytes, sequence));
  }
  flight->posted = true;
  MPI_Imrecv(t.buffer, bytes, MPI_BYTE, &message, &flight->request);
  return Status::Ok();
}

Status MpiExchange::Poll(const MpiTag& tag, int64_t sequence, std::vector<Flight>* flights,
                         bool* all_done, bool* moved) {
  const std::lock_guard lock(shared_->mutex);
  shared_->PollAbort();
  *all_done = true;
  // A peer's messages arrive in order: the pieces of one transfer are received one after the other.
  int waiting_for = -1;
  for (Flight& flight : *flights) {
    if (flight.done) continue;
    const bool later_piece = !flight.send && flight.transfer.peer == waiting_for;
    if (!flight.posted && !later_piece) MW_RETURN_IF_ERROR(Post(tag, sequence, &flight));
    if (!flight.posted && !flight.send) waiting_for = flight.transfer.peer;
    int done = 0;
    if (flight.posted) MPI_Test(&flight.request, &done, MPI_STATUS_IGNORE);
    flight.done = done != 0;
    *moved = *moved || flight.done;
    *all_done = *all_done && flight.done;
  }
  return Status::Ok();
}

Status MpiExchange::Stuck(const MpiTag& tag, int64_t sequence, const std::vector<Flight>& flights,
                          double after_s) const {
  std::vector<int> missing;
  for (const Flight& flight : flights) {
    if (!flight.done) missing.push_back(ranks_[static_cast<size_t>(flight.transfer.peer)]);
  }
  std::sort(missing.begin(), missing.end());
  missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
  return RunFailed(
      fmt::format("communicator {}: {} of rank {} (its operation {}) not done within {} s; not "
                  "arrived: rank {}",
                  name_, ToString(tag.op), ranks_[static_cast<size_t>(rank_)], sequence, after_s,
                  fmt::join(missing, ", rank ")));
}

/// Lets transfers that have met their partner end, and forgets the others.
void MpiExchange::GiveUp(std::vector<Flight>* flights) {
  const auto end = Clock::now() + kAbortGrace;
  bool all_done = false;
  while (!all_done && Clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const std::lock_guard lock(shared_->mutex);
    all_done = true;
    for (Flight& flight : *flights) {
      int done = flight.done || !flight.posted;
      if (!done) MPI_Test(&flight.request, &done, MPI_STATUS_IGNORE);
      flight.done = done != 0;
      all_done = all_done && flight.done;
    }
  }
  const std::lock_guard lock(shared_->mutex);
  for (Flight& flight : *flights) {
    if (flight.request != MPI_REQUEST_NULL) MPI_Request_free(&flight.request);
  }
}

Status MpiExchange::Run(const MpiTag& tag, const std::vector<MpiTransfer>& sends,
                        const std::vector<MpiTransfer>& receives, int64_t sequence) {
  std::vector<Flight> flights;
  flights.reserve(sends.size() + receives.size());
  for (const bool send : {true, false}) {
    for (const MpiTransfer& t : send ? sends : receives) {
      int64_t at = 0;
      do {
        const int64_t bytes = std::min(t.bytes - at, kMaxMessageBytes);
        flights.push_back({{t.peer, t.bytes > 0 ? t.buffer + at : t.buffer, bytes}, send});
        at += bytes;
      } while (at < t.bytes);
    }
  }
  const double patience = shared_->options.deadline_s * (tag.phase > 0 ? kResultPatience : 1.0);
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                      std::chrono::duration<double>(patience));
  std::chrono::microseconds nap(0);
  for (;;) {
    bool all_done = false;
    bool moved = false;
    Status status = Poll(tag, sequence, &flights, &all_done, &moved);
    if (status.ok() && all_done) return status;
    if (status.ok() && shared_->aborted) status = shared_->Reason();
    if (status.ok() && Clock::now() > end) status = Stuck(tag, sequence, flights, patience);
    if (!status.ok()) {
      GiveUp(&flights);
      return status;
    }
    if (moved) nap = std::chrono::microseconds(0);
    if (nap.count() == 0) {
      std::this_thread::yield();
      nap = kFirstNap;
    } else {
      std::this_thread::sleep_for(nap);
      nap = std::min(nap * 3 / 2, kLongestNap);
    }
  }
}

Result<std::unique_ptr<MpiExchange>> MpiExchange::Start(const CommOptions& options) {
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized)
    return Unsupported("MPI was started before in this process; it starts only once");
  int provided = MPI_THREAD_SINGLE;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS) {
    return RunFailed("MPI_Init_thread failed");
  }
  if (provided < MPI_THREAD_SERIALIZED) {
    MPI_Finalize();
    return Unsupported("this MPI cannot be called from threads; it needs MPI_THREAD_SERIALIZED");
  }
  auto shared = std::make_shared<Shared>();
  shared->options = options;
  MPI_Comm_rank(MPI_COMM_WORLD, &shared->rank);
  MPI_Comm_size(MPI_COMM_WORLD, &shared->size);
  MPI_Comm_dup(MPI_COMM_WORLD, &shared->control);
  MPI_Comm_set_errhandler(shared->control, MPI_ERRORS_RETURN);
  auto handle = std::make_unique<Handle>();
  MPI_Comm_dup(MPI_COMM_WORLD, &handle->comm);
  return std::unique_ptr<MpiExchange>(
      new MpiExchange(std::move(shared), std::move(handle), "world"));
}

void MpiExchange::Finalize() {
  MPI_Finalize();
}

MpiExchange::MpiExchange(std::shared_ptr<Shared> shared, std::unique_ptr<Handle> handle,
                         std::string name)
    : shared_(std::move(shared)), handle_(std::move(handle)), name_(std::move(name)) {
  MPI_Comm_set_errhandler(handle_->comm, MPI_ERRORS_RETURN);
  MPI_Comm_rank(handle_->comm, &rank_);
  ranks_ = WorldRanks(handle_->comm);
}

MpiExchange::~MpiExchange() {
  if (shared_->aborted) return;  // partners may be gone
  const std::lock_guard lock(shared_->mutex);
  MPI_Comm_free(&handle_->comm);
}

bool MpiExchange::aborted() const {
  return shared_->aborted;
}
void MpiExchange::Abort(const Status& reason) {
  shared_->Abort(reason);
}
Status MpiExchange::Reason() const {
  return shared_->Reason();
}

Result<std::unique_ptr<MpiExchange>> MpiExchange::Split(int color, int key,
                                                        const std::string& name) {
  const std::lock_guard lock(shared_->mutex);
  auto handle = std::make_unique<Handle>();
  const int code =
      MPI_Comm_split(handle_->comm, color < 0 ? MPI_UNDEFINED : color, key, &handle->comm);
  if (code != MPI_SUCCESS) {
    return RunFailed(
        fmt::format("communicator {}: MPI_Comm_split for {} returned {}", name_, name, code));
  }
  if (handle->comm == MPI_COMM_NULL) return std::unique_ptr<MpiExchange>();
  return std::unique_ptr<MpiExchange>(new MpiExchange(shared_, std::move(handle), name));
}

}  // namespace meshwright::runtime
