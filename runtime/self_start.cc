#include "runtime/self_start.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "runtime/deadline.h"
#include "runtime/tcp_socket.h"

namespace meshwright::runtime {
namespace {

constexpr int kMaxRanks = 1024;
constexpr int kRunFailedExit = 3;
constexpr int kForwarded[] = {SIGINT, SIGTERM, SIGHUP};

/// Holds back the signals that we wait for, until the end of its scope.
class HeldSignals {
 public:
  HeldSignals() {
    sigemptyset(&held_);
    sigaddset(&held_, SIGCHLD);
    for (const int signal : kForwarded) sigaddset(&held_, signal);
    pthread_sigmask(SIG_BLOCK, &held_, &before_);
  }
  ~HeldSignals() { Restore(); }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

  void Restore() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  /// The next signal, 0 when none comes in `seconds`.
  int Wait(double seconds) const {
    timespec time{};
    time.tv_sec = static_cast<time_t>(seconds);
    time.tv_nsec = static_cast<long>((seconds - std::floor(seconds)) * 1e9);
    const int signal = sigtimedwait(&held_, nullptr, &time);
    return signal > 0 ? signal : 0;
  }

 private:
  sigset_t held_{};
  sigset_t before_{};
};

/// The ranks, as their parent sees them.
class Ranks {
 public:
  explicit Ranks(const SelfStartOptions& options) : options_(options) {}
  ~Ranks() { KillAll(); }

  Status Start(const LaunchFacts& common, FileDescriptor listener, HeldSignals& signals,
               const std::function<int(const LaunchFacts&)>& body);
  SelfStartOutcome Wait(const HeldSignals& signals);

 private:
  [[noreturn]] void RunChild(LaunchFacts facts, FileDescriptor listener, HeldSignals& signals,
                             const std::function<int(const LaunchFacts&)>& body) const;
  void Reap();
  void Ended(int rank, int status);
  void Signal(int signal) const {
    for (const pid_t pid : pids_) {
      if (pid > 0) kill(pid, signal);
    }
  }
  void KillAll();
  bool any() const {
    for (const pid_t pid : pids_) {
      if (pid > 0) return true;
    }
    return false;
  }

  const SelfStartOptions options_;
  const pid_t parent_ = getpid();
  std::vector<pid_t> pids_;  ///< by rank; -1 once it has ended
  SelfStartOutcome outcome_;
};

void SetVariables(const LaunchFacts& facts) {
  const auto set = [](const char* name, const std::string& value) {
    setenv(name, value.c_str(), 1);
  };
  set("RANK", std::to_string(facts.rank));
  set("WORLD_SIZE", std::to_string(facts.world));
  set("LOCAL_RANK", std::to_string(facts.local_rank));
  set("LOCAL_WORLD_SIZE", std::to_string(facts.local_world));
  set("GROUP_RANK", "0");
  set("MASTER_ADDR", facts.master_address);
  set("MASTER_PORT", std::to_string(facts.store_port - 1));
  set("TORCHELASTIC_RUN_ID", facts.run_id);
}

void Ranks::RunChild(LaunchFacts facts, FileDescriptor listener, HeldSignals& signals,
                     const std::function<int(const LaunchFacts&)>& body) const {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent_) _exit(kRunFailedExit);  // it died before that
  signals.Restore();
  if (facts.rank == 0) facts.listen_fd = listener.Release();
  listener.Close();
  SetVariables(facts);
  const int code = body(facts);
  std::fflush(nullptr);
  _exit(code);
}

Status Ranks::Start(const LaunchFacts& common, FileDescriptor listener, HeldSignals& signals,
                    const std::function<int(const LaunchFacts&)>& body) {
  std::fflush(nullptr);  // or every copy would print it
  for (int rank = 0; rank < options_.ranks; ++rank) {
    LaunchFacts facts = common;
    facts.rank = facts.local_rank = rank;
    const pid_t pid = fork();
    if (pid == 0) RunChild(std::move(facts), std::move(listener), signals, body);
    if (pid < 0) return RunFailed(fmt::format("cannot start rank {}: {}", rank, ErrnoText(errno)));
    pids_.push_back(pid);
  }
  return Status::Ok();
}

void Ranks::Ended(int rank, int status) {
  pids_[static_cast<size_t>(rank)] = -1;
  const bool failed = !WIFEXITED(status) || WEXITSTATUS(status) != 0;
  if (!failed || outcome_.exit_code != 0) return;
  outcome_.rank = rank;
  if (WIFEXITED(status)) {
    outcome_.exit_code = WEXITSTATUS(status);
    outcome_.what = fmt::format("rank {} ended with exit code {}", rank, outcome_.exit_code);
    return;
  }
  outcome_.exit_code = kRunFailedExit;
  outcome_.what = fmt::format("rank {} was ended by signal {} ({})", rank, WTERMSIG(status),
                              strsignal(WTERMSIG(status)));
}

/// Only our own children: the process may have others.
void Ranks::Reap() {
  for (size_t rank = 0; rank < pids_.size(); ++rank) {
    int status = 0;
    if (pids_[rank] <= 0) continue;
    const pid_t done = waitpid(pids_[rank], &status, WNOHANG);
    if (done == pids_[rank]) Ended(static_cast<int>(rank), status);
    if (done < 0 && errno == ECHILD) Ended(static_cast<int>(rank), kRunFailedExit << 8);
  }
}

void Ranks::KillAll() {
  Signal(SIGKILL);
  for (pid_t& pid : pids_) {
    int status = 0;
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    pid = -1;
  }
}

SelfStartOutcome Ranks::Wait(const HeldSignals& signals) {
  std::optional<Deadline> notice;
  std::optional<Deadline> grace;
  int forwarded = 0;
  while (any()) {
    const int signal = signals.Wait(notice || grace ? 0.05 : 1.0);
    if (signal != 0 && signal != SIGCHLD) {
      forwarded = forwarded == 0 ? signal : forwarded;
      Signal(signal);
      if (!grace) grace.emplace(options_.notice_s + options_.grace_s);
    }
    Reap();
    if (outcome_.exit_code != 0 && !notice) notice.emplace(options_.notice_s);
    if (notice && notice->passed() && !grace) {
      Signal(SIGTERM);
      grace.emplace(options_.grace_s);
    }
    if (grace && grace->passed()) KillAll();
  }
  if (forwarded != 0) {
    outcome_.exit_code = 128 + forwarded;
    outcome_.what = fmt::format("ended by signal {} ({})", forwarded, strsignal(forwarded));
  }
  return outcome_;
}

}  // namespace

Result<SelfStartOutcome> StartRanks(const SelfStartOptions& options,
                                    const std::function<int(const LaunchFacts&)>& body) {
  if (options.ranks < 1 || options.ranks > kMaxRanks || !(options.notice_s >= 0) ||
      !(options.grace_s >= 0)) {
    return InvalidInput(
        fmt::format("--nproc {}, notice {} s, grace {} s: ranks must be in 1..{}, times >= 0",
                    options.ranks, options.notice_s, options.grace_s, kMaxRanks));
  }
  LaunchFacts facts;
  facts.launcher = Launcher::kSelf;
  facts.world = facts.local_world = options.ranks;
  MW_ASSIGN_OR_RETURN(FileDescriptor listener, ListenTcp(facts.master_address, 0));
  MW_ASSIGN_OR_RETURN(facts.store_port, PortOf(listener));
  std::random_device random;
  facts.run_id = fmt::format("self-{}-{:08x}{:08x}", getpid(), random(), random());
  HeldSignals signals;
  Ranks ranks(options);
  MW_RETURN_IF_ERROR(ranks.Start(facts, std::move(listener), signals, body));
  return ranks.Wait(signals);
}

}  // namespace meshwright::runtime
