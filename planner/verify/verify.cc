#include "planner/verify/verify.h"

#include "planner/verify/checks.h"

namespace meshwright::planner {

Status Verify(const Programs& programs, const VerifyLimits& limits) {
  // Tables before their users: what later checks follow, earlier ones have proven.
  MW_RETURN_IF_ERROR(CheckGroups(programs));
  MW_RETURN_IF_ERROR(CheckLayers(programs));
  MW_RETURN_IF_ERROR(CheckMemory(programs, limits));
  MW_RETURN_IF_ERROR(CheckBlocks(programs));
  MW_RETURN_IF_ERROR(CheckParameters(programs));
  MW_RETURN_IF_ERROR(CheckAddresses(programs));
  MW_RETURN_IF_ERROR(CheckSaved(programs));
  const RankClasses classes = limits.fold ? FoldRanks(programs) : SeparateRanks(programs);
  MW_RETURN_IF_ERROR(CheckMessages(programs, classes));
  MW_RETURN_IF_ERROR(CheckDeadlock(programs, classes));
  return CheckRaces(programs, true, limits.threads);
}

}  // namespace meshwright::planner
