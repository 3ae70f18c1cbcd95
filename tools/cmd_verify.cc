// meshwright verify: proves that a plan's programs are safe to run, and says what was proven.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "planner/ir/op_schema.h"
#include "planner/lower/lower.h"
#include "planner/predict/predict.h"
#include "planner/verify/fold.h"
#include "planner/verify/verify.h"
#include "tools/commands.h"
#include "tools/resolve.h"
#include "tools/table.h"

namespace meshwright::tools {
namespace {

/// How much was looked at, of one step of all ranks.
struct Counts {
  int64_t ranks = 0, classes = 0, programs = 0, groups = 0, blocks = 0;
  int64_t tasks = 0, ops = 0, messages = 0, collectives = 0, layers = 0;
  int64_t arena_bytes = 0;  ///< of the fullest rank
};

void CountProgram(const planner::RankProgram& program, int64_t ranks, Counts* counts) {
  std::vector<int64_t> sends(program.blocks.size(), 0), collectives(program.blocks.size(), 0);
  for (size_t b = 0; b < program.blocks.size(); ++b) {
    for (const planner::Op& op : program.blocks[b].ops) {
      sends[b] += op.kind == planner::OpKind::kSend ? 1 : 0;
      collectives[b] += planner::IsCollective(op.kind) ? 1 : 0;
    }
  }
  counts->blocks += static_cast<int64_t>(program.blocks.size());
  counts->tasks += ranks * static_cast<int64_t>(program.tasks.size());
  for (const planner::Task& task : program.tasks) {
    for (const planner::Instance& instance : task.instances) {
      const auto b = static_cast<size_t>(instance.block);
      counts->ops += ranks * static_cast<int64_t>(program.blocks[b].ops.size());
      counts->messages += ranks * sends[b];
      counts->collectives += ranks * collectives[b];
    }
  }
  counts->arena_bytes = std::max(counts->arena_bytes, program.arena.size);
}

Counts CountAll(const planner::Plan& plan, const planner::Programs& programs) {
  Counts counts;
  counts.ranks = static_cast<int64_t>(programs.ranks.size());
  counts.classes = planner::FoldRanks(programs).size();
  counts.programs = static_cast<int64_t>(programs.programs.size());
  counts.groups = static_cast<int64_t>(programs.groups.size());
  for (const planner::ModuleSpec& module : plan.model.modules)
    counts.layers += module.layer_count();
  std::vector<int64_t> ranks_of(programs.programs.size(), 0);
  for (const planner::RankBinding& rank : programs.ranks)
    ++ranks_of[static_cast<size_t>(rank.program)];
  for (size_t p = 0; p < programs.programs.size(); ++p)
    CountProgram(programs.programs[p], ranks_of[p], &counts);
  return counts;
}

/// Device memory of each rank less what is needed outside the arena.
Result<std::vector<int64_t>> ArenaLimits(const planner::Plan& plan,
                                         const planner::Programs& programs,
                                         const topologies::Cluster& cluster, Output& output) {
  std::vector<int64_t> bytes;
  for (const int64_t device : plan.placement) {
    if (device < 0 || device >= cluster.device_count()) {
      return InvalidInput(fmt::format("placement: device {} does not exist; cluster '{}' has {}",
                                      device, cluster.name(), cluster.device_count()));
    }
    bytes.push_back(cluster.Device(static_cast<int>(device)).memory.value());
  }
  if (cluster.Device(0).kind == topologies::DeviceKind::kCpu) return bytes;
  MW_ASSIGN_OR_RETURN(const cost::DeviceProfile profile, ProfileOf(cluster, output));
  for (size_t r = 0; r < bytes.size() && r < programs.ranks.size(); ++r) {
    const auto& program = programs.programs[static_cast<size_t>(programs.ranks[r].program)];
    bytes[r] = std::min(bytes[r], profile.memory.value.value()) -
               planner::OutsideBytes(program, profile).value();
  }
  return bytes;
}

struct Proof {
  const char* name;
  std::string what;
};

/// In the order in which Verify looks.
std::vector<Proof> Proofs(const Counts& c) {
  return {
      {"groups", fmt::format("{} communicators, the same tables on all {} ranks",
                             Thousands(c.groups), Thousands(c.ranks))},
      {"layers",
       fmt::format("each of the {} layers is computed once, in order", Thousands(c.layers))},
      {"memory", fmt::format("areas are disjoint; the fullest arena of {} fits its device",
                             BytesText(c.arena_bytes))},
      {"blocks", fmt::format("shapes and dtypes of every op in {} templates", Thousands(c.blocks))},
      {"parameters", "every parameter is held, reduced and stepped once"},
      {"addresses", "every operand lies inside its area"},
      {"saved tensors",
       "what backward reads, forward has written, and nothing between overwrites it"},
      {"messages",
       fmt::format("{} messages and {} calls of collectives meet partners of equal size and dtype",
                   Thousands(c.messages), Thousands(c.collectives))},
      {"deadlock", fmt::format("strict rendezvous of {} classes of ranks runs to the end",
                               Thousands(c.classes))},
      {"races",
       fmt::format("{} ops: no two touch the same bytes without an order", Thousands(c.ops))}};
}

Status VerifyPlan(const std::string& path, Output& output) {
  MW_ASSIGN_OR_RETURN(const planner::Plan plan, LoadPlan(path));
  MW_ASSIGN_OR_RETURN(const topologies::Cluster cluster, ClusterOfPlan(plan));
  MW_ASSIGN_OR_RETURN(const planner::Programs programs, planner::Lower(plan));
  nlohmann::json& document = output.document();
  document = {
      {"plan", planner::ShortName(plan)}, {"proven", false}, {"errors", nlohmann::json::array()}};
  planner::VerifyLimits limits;
  MW_ASSIGN_OR_RETURN(limits.device_bytes, ArenaLimits(plan, programs, cluster, output));
  const Status verdict = planner::Verify(programs, limits);
  if (!verdict.ok()) return verdict.WithContext(fmt::format("{}: not proven", path));

  const Counts counts = CountAll(plan, programs);
  const std::vector<Proof> proofs = Proofs(counts);
  document["proven"] = true;
  document["program_fingerprint"] = fmt::format("{:016x}", planner::Fingerprint(programs));
  document["counts"] = {{"checks", proofs.size()},
                        {"ranks", counts.ranks},
                        {"classes", counts.classes},
                        {"programs", counts.programs},
                        {"groups", counts.groups},
                        {"blocks", counts.blocks},
                        {"tasks", counts.tasks},
                        {"ops", counts.ops},
                        {"messages", counts.messages},
                        {"collectives", counts.collectives},
                        {"arena_bytes", counts.arena_bytes}};
  Table table({"", ""});
  for (const Proof& proof : proofs) {
    document["checks"].push_back({{"name", proof.name}, {"proven", proof.what}});
    table.Row({proof.name, proof.what});
  }
  const Style& style = output.style();
  output.Text(HeadingText(fmt::format("{}proven{}{}: {} on {} ranks in {} classes", style.green,
                                      style.off, style.bold, planner::ShortName(plan),
                                      Thousands(counts.ranks), counts.classes),
                          style) +
              table.ToText(style));
  return Status::Ok();
}

}  // namespace

Command VerifyCommand() {
  auto path = std::make_shared<std::string>();
  return {"verify", "proof that a plan's programs meet, fit, and neither race nor deadlock",
          [path](OptionSet& options) {
            options.Positional("plan", path.get(), "plan.json");
            options.Require("plan");
          },
          [path](Output& output) { return VerifyPlan(*path, output); }};
}

}  // namespace meshwright::tools
