// What the search found out about every configuration, and how it is told to people.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/search/context.h"
#include "planner/search/evaluate.h"
#include "planner/search/find_plans.h"

namespace meshwright::planner::search {

enum class Outcome : uint8_t {
  kUnknown,
  kNotJoined,    ///< the cluster has no way between some ranks
  kMemoryBound,  ///< lower bound of memory above what there is
  kTimeBound,    ///< lower bound of time above the plans that were kept
  kNoSplit,      ///< no layer ranges and recomputation fit
  kFeasible,
};

struct Record {
  Configuration configuration;
  Outcome outcome = Outcome::kUnknown;
  double seconds = 0.0;  ///< objective, or lower bound for kTimeBound
  int64_t least_bytes = 0;  ///< lower bound of the fullest rank's memory
  std::optional<Solution> solution;
};

/// Best first; ties in canonical order. Only the best placement order of a split is kept.
std::vector<const Record*> BestRecords(const std::vector<Record>& records, size_t count);

/// The complete plan of a feasible record.
Result<Plan> PlanOf(Context& context, const Record& record);

/// Why the plan is as it is and what binds it, a sentence each.
std::vector<std::string> ReasonsFor(Context& context, const Record& winner,
                                    const std::vector<Record>& records, const Plan& plan);
std::vector<std::string> WarningsFor(Context& context, const Record& winner);
/// Of a GPU plan whose prices for tensor traffic were measured for pairs and stand for larger groups;
/// empty: none.
std::string WarningOfRings(const Plan& plan);
/// Why `loser` lost against `winner`.
std::string WhyItLost(const Record& winner, const Record& loser);

/// kInfeasible: the split that comes nearest, its fullest stage by parts, and changes that fit.
Status NothingFits(Context& context, const std::vector<Record>& records);

/// "12.3 GiB".
std::string GiB(int64_t bytes);

}  // namespace meshwright::planner::search
