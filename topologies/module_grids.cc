// Groups of a module's grid, and the rules that grids of several modules keep together.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "topologies/process_grid.h"

namespace meshwright::topologies {
namespace {

Status ValueError(const std::string& message) {
  return InvalidInput(fmt::format("{}: {}", ToString(GridError::kValue), message));
}

std::string Span(const ProcessGrid& grid) {
  return fmt::format("[{}, {})", grid.offset(), grid.offset() + grid.size());
}

void AddRequests(const ProcessGrid& grid, const std::string& view,
                 const std::vector<std::vector<std::string>>& wanted, std::set<GroupKey>& seen,
                 std::vector<GroupRequest>& requests) {
  for (const auto& dims : wanted) {
    std::vector<std::string> present;
    for (const std::string& axis : dims) {
      if (grid.AxisSize(axis, view).ok()) present.push_back(axis);
    }
    const auto key = grid.KeyFor(present, view);  // an error if nothing is left
    if (key.ok() && seen.insert(*key).second) requests.push_back({view, present});
  }
}

}  // namespace

std::vector<GroupRequest> ModuleGroupRequests(const ProcessGrid& grid,
                                              const std::string& expert_view) {
  std::vector<GroupRequest> requests;
  std::set<GroupKey> seen;
  AddRequests(grid, "",
              {{"tp"},
               {"gtp"},
               {"cp"},
               {"pp"},
               {"dp"},
               {"dp", "cp"},
               {"gtp", "dp", "cp"},
               {"tp", "cp"},
               {"tp", "gtp", "pp"},
               {"tp", "gtp", "dp"},
               {"tp", "gtp", "dp", "cp"},
               grid.names()},
              seen, requests);
  if (grid.views().count(expert_view) > 0) {
    AddRequests(grid, expert_view,
                {{"ep"},
                 {"expt_tp"},
                 {"expt_gtp"},
                 {"expt_dp"},
                 {"expt_tp", "ep"},
                 {"expt_tp", "ep", "pp"},
                 {"expt_tp", "ep", "expt_gtp", "pp"},
                 {"expt_gtp", "expt_dp"}},
                seen, requests);
  }
  return requests;
}

Result<std::vector<RankGroup>> EmbeddingGroups(const ProcessGrid& grid) {
  MW_ASSIGN_OR_RETURN(auto lines, grid.Enumerate({"pp"}));
  for (RankGroup& line : lines) {
    if (line.size() > 1) line = {line.front(), line.back()};
  }
  return lines;
}

Result<std::vector<RankGroup>> PositionEmbeddingGroups(const ProcessGrid& grid) {
  MW_ASSIGN_OR_RETURN(auto lines, grid.Enumerate({"pp"}));
  for (RankGroup& line : lines) line.resize(1);
  return lines;
}

Result<GridLayout> CheckLayout(const std::map<std::string, ProcessGrid>& grids,
                               const std::vector<std::string>& modalities, int64_t world_size) {
  std::set<std::string> expected(modalities.begin(), modalities.end());
  expected.insert(std::string(kLanguageModule));
  std::set<std::string> found;
  for (const auto& [name, grid] : grids) found.insert(name);
  if (found != expected) {
    return ValueError(fmt::format("grids are keyed [{}] but the modules are [{}]",
                                  fmt::join(found, ", "), fmt::join(expected, ", ")));
  }
  std::vector<std::pair<std::string, const ProcessGrid*>> spans;
  for (const auto& [name, grid] : grids) spans.emplace_back(name, &grid);
  std::stable_sort(spans.begin(), spans.end(), [](const auto& a, const auto& b) {
    return a.second->offset() < b.second->offset();
  });
  const ProcessGrid& first = *spans.front().second;
  const bool colocated = std::all_of(spans.begin(), spans.end(), [&](const auto& span) {
    return span.second->offset() == first.offset() && span.second->size() == first.size();
  });
  const std::string world = fmt::format("the world [0, {})", world_size);
  if (colocated) {
    if (first.offset() != 0 || first.size() != world_size) {
      return ValueError(fmt::format("co-located grids span {} instead of {}", Span(first), world));
    }
    return GridLayout::kColocated;
  }
  int64_t next = 0;
  for (size_t i = 0; i < spans.size(); ++i) {
    const auto& [name, grid] = spans[i];
    if (grid->offset() < next) {
      return ValueError(fmt::format(
          "grids {} {} and {} {} overlap without being equal; spans are all equal or disjoint",
          spans[i - 1].first, Span(*spans[i - 1].second), name, Span(*grid)));
    }
    if (grid->offset() > next) {
      return ValueError(fmt::format("ranks [{}, {}) are in no grid; the grids must cover {}", next,
                                    grid->offset(), world));
    }
    next = grid->offset() + grid->size();
  }
  if (next != world_size) {
    return ValueError(fmt::format("the grids end at rank {}; they must cover {}", next, world));
  }
  return GridLayout::kDisjoint;
}

Result<std::vector<std::string>> ModulesOf(const std::map<std::string, ProcessGrid>& grids,
                                           int64_t rank) {
  std::vector<std::string> names;
  for (const auto& [name, grid] : grids) {
    if (grid.Contains(rank)) names.push_back(name);
  }
  if (names.empty()) {
    return InvalidInput(
        fmt::format("{}: rank {} is in no module's grid", ToString(GridError::kRuntime), rank));
  }
  return names;
}

}  // namespace meshwright::topologies
