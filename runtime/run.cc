#include "runtime/run.h"

#include <fmt/format.h>

#include <atomic>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>

#include "runtime/rank_cores.h"
#include "runtime/thread_communicator.h"

namespace meshwright::runtime {

Result<std::vector<RunSummary>> RunOnThreads(const planner::Programs& programs, DataSource& data,
                                             const RunOptions& options) {
  const size_t ranks = programs.ranks.size();
  if (ranks == 0) return InvalidInput("the program has no ranks; lower the plan again");
  RunOptions shared = options;
  if (shared.shadow && shared.shadow->clock == nullptr) {
    shared.shadow->clock = std::make_shared<std::atomic<int64_t>>(0);
  }
  auto world = MakeThreadWorld(static_cast<int>(ranks), {options.deadline_s});
  const RankCores cores(programs.ranks);
  std::vector<std::optional<Result<RunSummary>>> results(ranks);
  std::vector<std::thread> threads;
  threads.reserve(ranks);
  try {
    for (size_t r = 0; r < ranks; ++r) {
      threads.emplace_back([&, r] {
        cores.BindThisThread(static_cast<int>(r));
        results[r] = Execute(programs, static_cast<int>(r), *world[r], CpuKernels(), data, shared);
      });
    }
  } catch (const std::system_error& e) {
    world[0]->Abort(
        RunFailed(fmt::format("cannot start rank {} as a thread: {}", threads.size(), e.what())));
  }
  for (std::thread& thread : threads) thread.join();
  MW_RETURN_IF_ERROR(world[0]->abort_reason());
  std::vector<RunSummary> summaries;
  for (auto& result : results) {
    if (!result->ok()) return result->status();
    summaries.push_back(std::move(*result).value());
  }
  return summaries;
}

Result<RunSummary> RunOnMpi(MpiSession& session, const planner::Programs& programs,
                            DataSource& data, const RunOptions& options) {
  Communicator& world = session.world();
  return Execute(programs, world.rank(), world, CpuKernels(), data, options);
}

}  // namespace meshwright::runtime
