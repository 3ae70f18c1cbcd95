// Cores of CPU ranks that are threads of one process.
#pragma once

#include <memory>
#include <vector>

#include "planner/ir/program.h"

namespace meshwright::runtime {

/// Binds ranks that are threads of this process to the cores that it may use, as
/// planner::CorePlacesOf says, neighbours near each other. Ranks that are processes are left to
/// their launcher.
class RankCores {
 public:
  explicit RankCores(const std::vector<planner::RankBinding>& ranks);
  ~RankCores();
  RankCores(const RankCores&) = delete;
  RankCores& operator=(const RankCores&) = delete;

  /// Binds the calling thread, and those that it starts later, to the cores of `rank`. A system
  /// that refuses leaves the thread where it is: only speed depends on it.
  void BindThisThread(int rank) const;

 private:
  struct Places;
  std::unique_ptr<Places> places_;  ///< null: nothing is bound
  std::vector<int> place_of_;       ///< by rank
};

}  // namespace meshwright::runtime
