#include "runtime/group_use.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "planner/ir/op_schema.h"

namespace meshwright::runtime {
namespace {

using planner::OpKind;
using Kind = std::pair<OpKind, planner::DType>;

/// Operations of one communicator by the bytes of their largest operand: the output of a gather,
/// the input of a scatter.
using Uses = std::map<Kind, std::set<int64_t>>;

void Count(const planner::Block& block, const planner::Op& op, Uses& uses) {
  const OpKind kind = op.kind == OpKind::kRecv ? OpKind::kSend : op.kind;
  int64_t bytes = 0;
  planner::DType dtype{};
  for (const planner::Operand& operand : op.operands) {
    if (operand.tensor < 0) continue;
    const planner::TensorView& view = block.tensors[static_cast<size_t>(operand.tensor)];
    bytes = std::max(bytes, view.bytes());
    dtype = view.dtype;
  }
  if (bytes > 0) uses[{kind, dtype}].insert(bytes);
}

}  // namespace

std::vector<std::vector<GroupUse>> UsesOfGroups(const planner::Programs& programs,
                                                const CountsForGroup& counts) {
  // By program and class-local communicator first: ranks share programs.
  std::vector<std::map<int32_t, Uses>> by_program(programs.programs.size());
  for (size_t p = 0; p < programs.programs.size(); ++p) {
    for (const planner::Block& block : programs.programs[p].blocks) {
      for (const planner::Op& op : block.ops) {
        if (!planner::IsCollective(op.kind) && !planner::IsMessage(op.kind)) continue;
        Count(block, op, by_program[p][op.attributes.communicator]);
      }
    }
  }
  std::vector<std::map<Kind, int64_t>> by_group(programs.groups.size());
  for (const planner::RankBinding& binding : programs.ranks) {
    for (const auto& [local, uses] : by_program[static_cast<size_t>(binding.program)]) {
      if (local < 0 || static_cast<size_t>(local) >= binding.groups.size()) continue;
      const auto g = static_cast<size_t>(binding.groups[static_cast<size_t>(local)]);
      for (const auto& [what, sizes] : uses) {
        for (const int64_t bytes : sizes) {
          if (counts && !counts(g, {what.first, what.second, bytes})) continue;
          by_group[g][what] = std::max(by_group[g][what], bytes);
        }
      }
    }
  }
  std::vector<std::vector<GroupUse>> out(by_group.size());
  for (size_t g = 0; g < by_group.size(); ++g) {
    for (const auto& [what, bytes] : by_group[g]) {
      out[g].push_back({what.first, what.second, bytes});
    }
  }
  return out;
}

std::vector<std::vector<size_t>> SplitBatches(const std::vector<planner::Group>& groups) {
  struct Batch {
    planner::CommunicatorKind kind;
    std::set<int32_t> ranks;
    std::vector<size_t> groups;
  };
  std::vector<Batch> batches;
  for (size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].ranks.size() < 2) continue;
    const auto fits = [&](const Batch& batch) {
      return batch.kind == groups[g].kind &&
             std::none_of(groups[g].ranks.begin(), groups[g].ranks.end(),
                          [&](int32_t r) { return batch.ranks.count(r) > 0; });
    };
    auto at = std::find_if(batches.begin(), batches.end(), fits);
    if (at == batches.end()) at = batches.insert(batches.end(), Batch{groups[g].kind, {}, {}});
    at->groups.push_back(g);
    at->ranks.insert(groups[g].ranks.begin(), groups[g].ranks.end());
  }
  std::vector<std::vector<size_t>> out;
  for (Batch& batch : batches) out.push_back(std::move(batch.groups));
  return out;
}

}  // namespace meshwright::runtime
