// Process grids: ranks as a box with named axes, and the groups of ranks along any set of axes.
// The first axis varies fastest: rank = offset + sum(coordinate[i] * stride[i]).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "topologies/status.h"

namespace meshwright::topologies {

/// Kind of a grid misuse; messages start with "value error: ", "runtime error: " or "key error: ".
enum class GridError { kValue, kRuntime, kKey };
std::string_view ToString(GridError kind);
/// The kind of a status made by this header; empty for others.
std::optional<GridError> GridErrorOf(const Status& status);

using RankGroup = std::vector<int64_t>;

/// A second factorisation of a grid's ranks (used for experts).
struct GridView {
  std::vector<int64_t> shape;
  std::vector<std::string> names;
  std::vector<std::string> shared;  ///< axes that are the same in both factorisations
  friend bool operator==(const GridView&, const GridView&) = default;
};

/// Which communicator: the view ("" is the base) and axis names, slowest first.
struct GroupKey {
  std::string view;
  std::vector<std::string> names;
  /// "dp-tp", or "expert/ep-expt_tp" in a view.
  std::string ToString() const;
  friend auto operator<=>(const GroupKey&, const GroupKey&) = default;
};

/// A box of the contiguous global ranks [offset, offset + size).
class ProcessGrid {
 public:
  /// Value error: lengths differ, offset < 0, duplicate, empty or dashed names, sizes < 1.
  /// Runtime error: world size unknown, more ranks than the world has after `offset`.
  static Result<ProcessGrid> Make(std::vector<int64_t> shape, std::vector<std::string> names,
                                  int64_t offset, std::optional<int64_t> world_size);

  const std::vector<int64_t>& shape() const { return shape_; }
  const std::vector<std::string>& names() const { return names_; }
  int64_t offset() const { return offset_; }
  int64_t size() const { return size_; }
  bool Contains(int64_t rank) const { return rank >= offset_ && rank < offset_ + size_; }

  /// Size of one axis of the base grid or of a view. Value error: no such axis. Key error: no such
  /// view.
  Result<int64_t> AxisSize(std::string_view axis, std::string_view view = {}) const;
  /// Coordinates of a rank, in the order of the names. Value error: rank outside of the grid.
  Result<std::vector<int64_t>> Coordinates(int64_t rank, std::string_view view = {}) const;
  /// Inverse of `Coordinates`. Value error: wrong number of coordinates or one out of range.
  Result<int64_t> RankAt(const std::vector<int64_t>& coordinates, std::string_view view = {}) const;

  /// Groups along `dims`, members ascending, group 0 holding `offset`: position in the list is the
  /// rank inside the communicator. Value error: no dims, a name twice or not in the addressed view.
  /// Key error: unknown view.
  Result<std::vector<RankGroup>> Enumerate(const std::vector<std::string>& dims,
                                           std::string_view view = {}) const;
  /// The same groups with members ordered by `dims` exactly as given, the first outermost.
  Result<std::vector<RankGroup>> EnumerateRaw(const std::vector<std::string>& dims,
                                              std::string_view view = {}) const;

  /// Adds a second factorisation. Value error: name taken or empty, lengths differ, duplicate
  /// names, sizes < 1, size not the grid's, shared axes listed twice, missing on a side, or
  /// enumerated differently (alone or together).
  Status RegisterView(const std::string& name, GridView view);
  const std::map<std::string, GridView, std::less<>>& views() const { return views_; }

  /// The communicator that a request means; requests for shared axes only go to the base grid.
  Result<GroupKey> KeyFor(const std::vector<std::string>& dims, std::string_view view = {}) const;
  /// Makes the groups of a key, which every rank of the world does in the same order. Key error:
  /// exists.
  Result<GroupKey> Create(const std::vector<std::string>& dims, std::string_view view = {});
  /// Groups of a key made before; never creates. Key error that names the key if there is none.
  Result<std::vector<RankGroup>> Get(const std::vector<std::string>& dims,
                                     std::string_view view = {}) const;
  /// Keys in the order of creation.
  const std::vector<GroupKey>& created() const { return created_; }
  /// Forgets all keys; returns each distinct communicator of `rank` once (what it has to release).
  std::vector<GroupKey> Destroy(int64_t rank);

  friend bool operator==(const ProcessGrid&, const ProcessGrid&) = default;

 private:
  struct Axes {
    const std::vector<int64_t>* shape;
    const std::vector<std::string>* names;
  };
  Result<Axes> AxesOf(std::string_view view) const;
  Result<std::vector<size_t>> AxisIndices(const std::vector<std::string>& dims, const Axes& axes,
                                          std::string_view view) const;
  std::vector<RankGroup> Groups(const Axes& axes, const std::vector<size_t>& ordered) const;

  std::vector<int64_t> shape_;
  std::vector<std::string> names_;
  int64_t offset_ = 0;
  int64_t size_ = 1;
  std::map<std::string, GridView, std::less<>> views_;
  std::vector<GroupKey> created_;
};

/// A group that a module needs: axes in a view ("" is the base).
struct GroupRequest {
  std::string view;
  std::vector<std::string> dims;
  friend bool operator==(const GroupRequest&, const GroupRequest&) = default;
};

/// Every group that a module on this grid creates, in the one order that all ranks use: dense
/// groups, the all-axes group, then those of the view `expert_view` if there is one. Axes that the
/// grid does not have are left out of each; no key is listed twice.
std::vector<GroupRequest> ModuleGroupRequests(const ProcessGrid& grid,
                                              const std::string& expert_view = "expert");

/// First and last stage of every pipeline line (one rank where pp is 1): they share tied
/// embeddings.
Result<std::vector<RankGroup>> EmbeddingGroups(const ProcessGrid& grid);
/// First stage of every pipeline line.
Result<std::vector<RankGroup>> PositionEmbeddingGroups(const ProcessGrid& grid);

/// The fixed key of the language module's grid.
inline constexpr std::string_view kLanguageModule = "language";

enum class GridLayout {
  kColocated,  ///< all modules on the same ranks
  kDisjoint,   ///< every rank in exactly one module
};

/// Checks grids of several modules against each other and derives the layout. Value error: keys are
/// not the modalities plus "language", spans partly overlap, or do not cover [0, world_size).
Result<GridLayout> CheckLayout(const std::map<std::string, ProcessGrid>& grids,
                               const std::vector<std::string>& modalities, int64_t world_size);

/// Modules whose grid holds `rank`, sorted by name. Runtime error: none does.
Result<std::vector<std::string>> ModulesOf(const std::map<std::string, ProcessGrid>& grids,
                                           int64_t rank);

}  // namespace meshwright::topologies
