#include "runtime/watchdog.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <condition_variable>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "runtime/deadline.h"
#include "runtime/diagnose.h"

namespace meshwright::runtime {
namespace {

using Clock = Deadline::Clock;

constexpr char kBeatPrefix[] = "beat/";
constexpr char kGonePrefix[] = "gone/";
constexpr char kWantRecords[] = "flight/want";
constexpr char kRecordsPrefix[] = "flight/of/";
constexpr char kEnded[] = "ended";    // instead of a heartbeat: silence is no death
constexpr size_t kMaxGathered = 512;  // records a rank gives to the others

double Since(Clock::time_point then) {
  return std::chrono::duration<double>(Clock::now() - then).count();
}

/// Rank at the end of "beat/3"; -1 when there is none.
int RankIn(const std::string& key, size_t prefix) {
  int rank = -1;
  const char* end = key.data() + key.size();
  const auto [at, error] = std::from_chars(key.data() + prefix, end, rank);
  return error == std::errc() && at == end ? rank : -1;
}

Status CheckOptions(const WatchdogOptions& o) {
  const auto in = [](double s, double least) {
    return std::isfinite(s) && s >= least && s <= kMaxDeadlineS;
  };
  if (in(o.poll_s, 1e-3) && in(o.heartbeat_s, 1e-3) && in(o.dead_s, 3 * o.heartbeat_s) &&
      in(o.stuck_s, 1e-3) && in(o.gather_s, 0)) {
    return Status::Ok();
  }
  return InvalidInput(
      fmt::format("watchdog: poll {} s, heartbeat {} s, dead {} s, stuck {} s, gather {} s; all "
                  "must be > 0 and "
                  "finite, and dead at least 3 heartbeats",
                  o.poll_s, o.heartbeat_s, o.dead_s, o.stuck_s, o.gather_s));
}

/// Finds work that makes no progress.
class StuckFinder {
 public:
  /// Stream with outstanding work when nothing has moved for `stuck_s`.
  std::optional<size_t> Look(const std::vector<StreamProgress>& now, double stuck_s) {
    std::optional<size_t> waits;
    bool moved = now.size() != before_.size();
    for (size_t s = 0; s < now.size(); ++s) {
      const bool outstanding = now[s].completed < now[s].enqueued;
      if (outstanding && !waits) waits = s;
      if (moved) continue;
      // Work that has just come to an idle stream starts the clock, too.
      moved = now[s].completed != before_[s].completed ||
              (outstanding && before_[s].completed == before_[s].enqueued);
    }
    if (moved || !waits) since_ = Clock::now();
    before_ = now;
    return waits && Since(since_) >= stuck_s ? waits : std::nullopt;
  }

 private:
  std::vector<StreamProgress> before_;
  Clock::time_point since_ = Clock::now();
};

}  // namespace

/// The keeper talks to the store, the prober calls hooks that may hang in a library.
class Watchdog::Core : public std::enable_shared_from_this<Core> {
 public:
  Core(Store& store, const WatchdogOptions& options, WatchdogHooks hooks, FlightRecorder* recorder)
      : store_(store), options_(options), hooks_(std::move(hooks)), recorder_(recorder) {
    names_.item = hooks_.item;
    names_.group = [this](int32_t g) {
      const bool known = g >= 0 && static_cast<size_t>(g) < hooks_.groups.size();
      return known ? hooks_.groups[static_cast<size_t>(g)].name : std::string("world");
    };
  }

  Status Start();
  void Fail(const Status& reason, bool stuck);
  Status failure() const {
    const std::lock_guard lock(mutex_);
    return failure_;
  }
  bool WaitForFailure(double deadline_s) const {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, Deadline(deadline_s).end(), [this] { return concluded_; });
  }
  Status Stop();

 private:
  void Keep();
  void Probe();
  /// One round of the keeper; a reason when the run has failed.
  std::optional<Status> Round();
  std::optional<Status> Heartbeats();
  std::optional<Status> FindDead();
  Status Diagnosed(const Status& stuck);
  void GiveRecords();
  std::vector<FlightEntry> OwnRecords(size_t most) const;
  void Conclude(const Status& reason);
  std::string Place(size_t stream, int64_t number) const;
  /// Sleeps; true once the watch has ended.
  bool Pause(double seconds) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                             [this] { return stopping_; });
  }

  struct Sign {
    std::string value;
    Clock::time_point seen;
  };

  Store& store_;
  const WatchdogOptions options_;
  const WatchdogHooks hooks_;
  FlightRecorder* const recorder_;
  FlightNames names_;

  // Of the keeper.
  std::map<int, Sign> signs_;  ///< last heartbeat of each other rank
  int64_t beats_ = 0;
  std::optional<Clock::time_point> last_beat_;
  std::optional<Clock::time_point> found_since_;
  bool gave_records_ = false;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  // Guarded by mutex_:
  std::optional<Status> found_;  ///< by the prober or the executor
  bool found_stuck_ = false;
  Clock::time_point probed_ = Clock::now();
  bool stopping_ = false;
  bool concluded_ = false;
  bool probing_ = false;
  Status failure_;

  std::thread keeper_;
};

Status Watchdog::Core::Start() {
  for (int r = 0; r < store_.world(); ++r) {
    if (r != store_.rank()) signs_[r] = {"", Clock::now()};
  }
  try {
    probing_ = true;
    std::thread([self = shared_from_this()] { self->Probe(); }).detach();
    keeper_ = std::thread([this] { Keep(); });
  } catch (const std::system_error& e) {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
    return RunFailed(fmt::format("no thread for the watchdog: {}", e.what()));
  }
  return Status::Ok();
}

void Watchdog::Core::Fail(const Status& reason, bool stuck) {
  const std::lock_guard lock(mutex_);
  if (found_) return;
  found_ = reason.ok() ? RunFailed("failed without a reason") : reason;
  found_stuck_ = stuck;
}

std::string Watchdog::Core::Place(size_t stream, int64_t number) const {
  if (hooks_.describe) return hooks_.describe(stream, number);
  return fmt::format("work {} of stream {}", number, stream);
}

void Watchdog::Core::Probe() {
  StuckFinder finder;
  do {
    if (hooks_.check) {
      const Status status = hooks_.check();
      if (!status.ok()) {
        Fail(Status(status.code(), fmt::format("rank {}: {}", store_.rank(), status.message())),
             false);
      }
    }
    if (hooks_.progress) {
      const auto progress = hooks_.progress();
      if (const auto stream = finder.Look(progress, options_.stuck_s)) {
        Fail(RunFailed(fmt::format("rank {}: no progress for {} s; it waits in {}", store_.rank(),
                                   options_.stuck_s, Place(*stream, progress[*stream].completed))),
             true);
      }
    }
    const std::lock_guard lock(mutex_);
    probed_ = Clock::now();
    if (found_ || concluded_) break;
  } while (!Pause(options_.poll_s));
  const std::lock_guard lock(mutex_);
  probing_ = false;
  changed_.notify_all();
}

std::vector<FlightEntry> Watchdog::Core::OwnRecords(size_t most) const {
  if (recorder_ == nullptr) return {};
  std::vector<FlightRecord> records = recorder_->Snapshot();
  if (records.size() > most) {
    records.erase(records.begin(), records.end() - static_cast<std::ptrdiff_t>(most));
  }
  return Name(store_.rank(), records, names_);
}

void Watchdog::Core::GiveRecords() {
  if (std::exchange(gave_records_, true)) return;
  // Whoever asked does without them when this fails.
  [[maybe_unused]] const Status given = store_.Set(kRecordsPrefix + std::to_string(store_.rank()),
                                                   ToJsonLines(OwnRecords(kMaxGathered)));
}

/// Adds what the records of all ranks tell.
Status Watchdog::Core::Diagnosed(const Status& stuck) {
  if (!store_.Set(kWantRecords, std::to_string(store_.rank())).ok()) return stuck;
  GiveRecords();
  const Deadline deadline(options_.gather_s);
  std::vector<FlightEntry> all;
  std::string silent;
  for (int r = 0; r < store_.world(); ++r) {
    const auto found = store_.WaitAny({kRecordsPrefix + std::to_string(r)}, deadline.left_s());
    if (!found.ok()) return stuck;
    if (!*found) {
      silent += fmt::format("; rank {} does not answer", r);
      continue;
    }
    auto entries = ParseJsonLines((*found)->value);
    if (entries.ok()) all.insert(all.end(), entries->begin(), entries->end());
  }
  const auto diagnosis = Diagnose(all, hooks_.groups);
  const std::string told = diagnosis ? "; " + diagnosis->text : "";
  return Status(stuck.code(), stuck.message() + told + silent);
}

std::optional<Status> Watchdog::Core::FindDead() {
  const auto gone = store_.List(kGonePrefix);
  if (!gone.ok()) return gone.status();
  for (const auto& [key, how] : *gone) {
    const int rank = RankIn(key, sizeof(kGonePrefix) - 1);
    if (rank < 0 || signs_.count(rank) == 0 || signs_[rank].value == kEnded) continue;
    return RunFailed(fmt::format("rank {} is gone: {}; look at what it wrote last", rank, how));
  }
  const auto beats = store_.List(kBeatPrefix);
  if (!beats.ok()) return beats.status();
  for (auto& [rank, sign] : signs_) {
    const auto at = beats->find(kBeatPrefix + std::to_string(rank));
    if (at != beats->end() && at->second != sign.value) sign = {at->second, Clock::now()};
    // One that has not begun may still be setting up.
    const double patience_s =
        sign.value.empty() ? std::max(options_.dead_s, options_.stuck_s) : options_.dead_s;
    if (sign.value == kEnded || Since(sign.seen) < patience_s) continue;
    return RunFailed(
        fmt::format("rank {} has given no sign of life for {} s: its process or host "
                    "is dead or stopped",
                    rank, patience_s));
  }
  return std::nullopt;
}

std::optional<Status> Watchdog::Core::Heartbeats() {
  if (last_beat_ && Since(*last_beat_) < options_.heartbeat_s) return std::nullopt;
  // After a pause of our own the silence of the others means nothing.
  if (last_beat_ && Since(*last_beat_) > options_.dead_s / 2) {
    for (auto& [rank, sign] : signs_) sign.seen = Clock::now();
  }
  last_beat_ = Clock::now();
  const Status set =
      store_.Set(kBeatPrefix + std::to_string(store_.rank()), std::to_string(++beats_));
  if (!set.ok()) return set;
  return FindDead();
}

std::optional<Status> Watchdog::Core::Round() {
  const auto seen = store_.WaitAny({kAbortKey, kWantRecords}, 0.0);
  if (!seen.ok()) return seen.status();
  if (*seen && (*seen)->index == 0) return DecodeStatus((*seen)->value);
  if (*seen) GiveRecords();
  std::optional<Status> found;
  bool stuck = false;
  double probe_age_s = 0;
  {
    const std::lock_guard lock(mutex_);
    found = found_;
    stuck = found_stuck_;
    probe_age_s = Since(probed_);
  }
  if (found && stuck) return Diagnosed(*found);
  if (found) {
    // What a library tells of a dead rank does not name it; its death is seen soon, too.
    if (!found_since_) found_since_ = Clock::now();
    if (auto dead = FindDead()) return dead;
    return Since(*found_since_) < 2 * options_.heartbeat_s ? std::nullopt : found;
  }
  if (probe_age_s > options_.stuck_s) {
    return RunFailed(
        fmt::format("rank {}: a call that asks CUDA or NCCL for its state has not "
                    "returned for {} s",
                    store_.rank(), options_.stuck_s));
  }
  return Heartbeats();
}

void Watchdog::Core::Keep() {
  do {
    if (const auto reason = Round()) return Conclude(*reason);
  } while (!Pause(options_.poll_s));
}

void Watchdog::Core::Conclude(const Status& reason) {
  Status stands = PostAbort(store_, reason);
  if (!options_.dump_path.empty()) {
    std::ofstream file(options_.dump_path);
    file << ToJsonLines(OwnRecords(SIZE_MAX)) << std::flush;
    if (!file) {
      stands = Status(stands.code(), fmt::format("{} (flight records could not be written to {})",
                                                 stands.message(), options_.dump_path));
    }
  }
  {
    const std::lock_guard lock(mutex_);
    failure_ = stands;
  }
  if (hooks_.on_failure) hooks_.on_failure(stands);
  const std::lock_guard lock(mutex_);
  concluded_ = true;
  changed_.notify_all();
}

Status Watchdog::Core::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (keeper_.joinable()) {
    keeper_.join();
    // Nobody is left to hear that this failed.
    [[maybe_unused]] const Status said =
        store_.Set(kBeatPrefix + std::to_string(store_.rank()), kEnded);
  }
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, Deadline(options_.gather_s + 1.0).end(), [this] { return !probing_; });
  return failure_;
}

Result<std::unique_ptr<Watchdog>> Watchdog::Start(Store& store, const WatchdogOptions& options,
                                                  WatchdogHooks hooks, FlightRecorder* recorder) {
  MW_RETURN_IF_ERROR(CheckOptions(options));
  auto core = std::make_shared<Core>(store, options, std::move(hooks), recorder);
  MW_RETURN_IF_ERROR(core->Start());
  return std::unique_ptr<Watchdog>(new Watchdog(std::move(core)));
}

Watchdog::~Watchdog() {
  [[maybe_unused]] const Status failure = core_->Stop();
}
void Watchdog::Fail(const Status& reason) {
  core_->Fail(reason, false);
}
Status Watchdog::failure() const {
  return core_->failure();
}
bool Watchdog::WaitForFailure(double deadline_s) const {
  return core_->WaitForFailure(deadline_s);
}
Status Watchdog::Stop() {
  return core_->Stop();
}

}  // namespace meshwright::runtime
