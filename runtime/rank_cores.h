// Cores of CPU ranks that are threads of one process.
#pragma once

#include <memory>

namespace meshwright::runtime {

/// Shares the cores that this process may use out to `ranks` ranks, neighbours near each other, so
/// that each has cores of its own. The kernel's scheduler moves a thread that is woken to the core
/// of who woke it; two ranks that talk often then end up on one core while another idles, and a
/// step takes twice as long. With more ranks than cores nothing is bound: the scheduler balances
/// better than fixed places do. Ranks that are processes are left to their launcher.
class RankCores {
 public:
  explicit RankCores(int ranks);
  ~RankCores();
  RankCores(const RankCores&) = delete;
  RankCores& operator=(const RankCores&) = delete;

  /// Binds the calling thread, and those that it starts later, to the cores of `rank`. A system
  /// that refuses leaves the thread where it is: only speed depends on it.
  void BindThisThread(int rank) const;

 private:
  struct Places;
  std::unique_ptr<Places> places_;  ///< null: nothing is bound
};

}  // namespace meshwright::runtime
