#include "topologies/process_grid.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

namespace meshwright::topologies {
namespace {

// Groups are listed rank by rank; no cluster is anywhere near this.
constexpr int64_t kMaxRanks = int64_t{1} << 24;

Status GridStatus(GridError kind, const std::string& message) {
  return InvalidInput(fmt::format("{}: {}", ToString(kind), message));
}
Status ValueError(const std::string& message) {
  return GridStatus(GridError::kValue, message);
}
Status RuntimeError(const std::string& message) {
  return GridStatus(GridError::kRuntime, message);
}
Status KeyError(const std::string& message) {
  return GridStatus(GridError::kKey, message);
}

template <typename Range>
bool Has(const Range& range, std::string_view name) {
  return std::find(range.begin(), range.end(), name) != range.end();
}

std::optional<std::string> FirstDuplicate(const std::vector<std::string>& names) {
  std::set<std::string_view> seen;
  for (const std::string& name : names) {
    if (!seen.insert(name).second) return name;
  }
  return std::nullopt;
}

// Product of the sizes, empty if beyond kMaxRanks.
std::optional<int64_t> BoundedProduct(const std::vector<int64_t>& shape) {
  int64_t product = 1;
  for (const int64_t size : shape) {
    if (size > kMaxRanks / product) return std::nullopt;
    product *= size;
  }
  return product;
}

Status CheckAxes(const std::vector<int64_t>& shape, const std::vector<std::string>& names,
                 const std::string& where) {
  if (shape.size() != names.size()) {
    return ValueError(fmt::format("{}: {} sizes [{}] but {} names [{}]; give one size per name",
                                  where, shape.size(), fmt::join(shape, ", "), names.size(),
                                  fmt::join(names, ", ")));
  }
  if (shape.empty()) return ValueError(where + ": no axes; give at least one name and size");
  for (size_t i = 0; i < shape.size(); ++i) {
    if (names[i].empty() || names[i].find('-') != std::string::npos) {
      return ValueError(fmt::format(
          "{}: axis name '{}' must be non-empty and without '-', which joins names in keys", where,
          names[i]));
    }
    if (shape[i] < 1) {
      return ValueError(
          fmt::format("{}: axis {} has size {}; sizes are at least 1", where, names[i], shape[i]));
    }
  }
  if (const auto twice = FirstDuplicate(names)) {
    return ValueError(fmt::format("{}: axis name {} is used twice in [{}]", where, *twice,
                                  fmt::join(names, ", ")));
  }
  return Status::Ok();
}

}  // namespace

std::string_view ToString(GridError kind) {
  switch (kind) {
    case GridError::kValue:
      return "value error";
    case GridError::kRuntime:
      return "runtime error";
    case GridError::kKey:
      return "key error";
  }
  return "";
}

std::optional<GridError> GridErrorOf(const Status& status) {
  for (const GridError kind : {GridError::kValue, GridError::kRuntime, GridError::kKey}) {
    if (!status.ok() && status.message().find(ToString(kind)) == 0) return kind;
  }
  return std::nullopt;
}

std::string GroupKey::ToString() const {
  return fmt::format("{}{}{}", view, view.empty() ? "" : "/", fmt::join(names, "-"));
}

Result<ProcessGrid> ProcessGrid::Make(std::vector<int64_t> shape, std::vector<std::string> names,
                                      int64_t offset, std::optional<int64_t> world_size) {
  MW_RETURN_IF_ERROR(CheckAxes(shape, names, "grid"));
  if (offset < 0) {
    return ValueError(
        fmt::format("grid: offset {} is negative; it is the first global rank", offset));
  }
  if (!world_size) return RuntimeError("grid: the world size is unknown; start the world first");
  const std::optional<int64_t> size = BoundedProduct(shape);
  if (!size || offset > *world_size || *size > *world_size - offset) {
    return RuntimeError(
        fmt::format("grid: over-sized: {} (= {}) ranks from offset {} do not fit a world of {}",
                    fmt::join(shape, " x "), size ? std::to_string(*size) : "more than 2^24",
                    offset, *world_size));
  }
  ProcessGrid grid;
  grid.shape_ = std::move(shape);
  grid.names_ = std::move(names);
  grid.offset_ = offset;
  grid.size_ = *size;
  return grid;
}

Result<ProcessGrid::Axes> ProcessGrid::AxesOf(std::string_view view) const {
  if (view.empty()) return Axes{&shape_, &names_};
  const auto it = views_.find(view);
  if (it == views_.end()) {
    std::vector<std::string> known;
    for (const auto& [name, unused] : views_) known.push_back(name);
    return KeyError(
        fmt::format("grid has no view '{}'; views: [{}]", view, fmt::join(known, ", ")));
  }
  return Axes{&it->second.shape, &it->second.names};
}

Result<std::vector<size_t>> ProcessGrid::AxisIndices(const std::vector<std::string>& dims,
                                                     const Axes& axes,
                                                     std::string_view view) const {
  if (dims.empty()) return ValueError("grid: no axis named; name at least one");
  if (const auto twice = FirstDuplicate(dims)) {
    return ValueError(
        fmt::format("grid: axis {} named twice in [{}]", *twice, fmt::join(dims, ", ")));
  }
  std::vector<size_t> indices;
  for (const std::string& name : dims) {
    const auto it = std::find(axes.names->begin(), axes.names->end(), name);
    if (it == axes.names->end()) {
      return ValueError(fmt::format("axis '{}' is not in {}, whose axes are [{}]", name,
                                    view.empty() ? "the base grid" : fmt::format("view '{}'", view),
                                    fmt::join(*axes.names, ", ")));
    }
    indices.push_back(static_cast<size_t>(it - axes.names->begin()));
  }
  return indices;
}

Result<int64_t> ProcessGrid::AxisSize(std::string_view axis, std::string_view view) const {
  MW_ASSIGN_OR_RETURN(const Axes axes, AxesOf(view));
  MW_ASSIGN_OR_RETURN(const auto indices, AxisIndices({std::string(axis)}, axes, view));
  return (*axes.shape)[indices[0]];
}

Result<std::vector<int64_t>> ProcessGrid::Coordinates(int64_t rank, std::string_view view) const {
  MW_ASSIGN_OR_RETURN(const Axes axes, AxesOf(view));
  if (!Contains(rank)) {
    return ValueError(fmt::format("rank {} is outside of the grid's ranks [{}, {})", rank, offset_,
                                  offset_ + size_));
  }
  std::vector<int64_t> coordinates;
  int64_t rest = rank - offset_;
  for (const int64_t size : *axes.shape) {
    coordinates.push_back(rest % size);
    rest /= size;
  }
  return coordinates;
}

Result<int64_t> ProcessGrid::RankAt(const std::vector<int64_t>& coordinates,
                                    std::string_view view) const {
  MW_ASSIGN_OR_RETURN(const Axes axes, AxesOf(view));
  if (coordinates.size() != axes.shape->size()) {
    return ValueError(
        fmt::format("{} coordinates for {} axes", coordinates.size(), axes.shape->size()));
  }
  int64_t rank = offset_;
  int64_t stride = 1;
  for (size_t i = 0; i < coordinates.size(); ++i) {
    if (coordinates[i] < 0 || coordinates[i] >= (*axes.shape)[i]) {
      return ValueError(fmt::format("coordinate {} of axis {} is outside of [0, {})",
                                    coordinates[i], (*axes.names)[i], (*axes.shape)[i]));
    }
    rank += coordinates[i] * stride;
    stride *= (*axes.shape)[i];
  }
  return rank;
}

// All groups along the axes `ordered` (outermost first), in the order of the remaining axes.
std::vector<RankGroup> ProcessGrid::Groups(const Axes& axes,
                                           const std::vector<size_t>& ordered) const {
  const std::vector<int64_t>& shape = *axes.shape;
  std::vector<int64_t> stride(shape.size(), 1);
  for (size_t i = 1; i < shape.size(); ++i) stride[i] = stride[i - 1] * shape[i - 1];
  // Offsets of all index combinations of some axes, the first axis outermost.
  const auto offsets = [&](const std::vector<size_t>& which) {
    std::vector<int64_t> result{0};
    for (const size_t axis : which) {
      std::vector<int64_t> next;
      next.reserve(result.size() * static_cast<size_t>(shape[axis]));
      for (const int64_t base : result) {
        for (int64_t i = 0; i < shape[axis]; ++i) next.push_back(base + i * stride[axis]);
      }
      result = std::move(next);
    }
    return result;
  };
  std::vector<size_t> rest;
  for (size_t i = shape.size(); i-- > 0;) {
    if (std::find(ordered.begin(), ordered.end(), i) == ordered.end()) rest.push_back(i);
  }
  const std::vector<int64_t> members = offsets(ordered);
  std::vector<RankGroup> groups;
  for (const int64_t start : offsets(rest)) {
    RankGroup& group = groups.emplace_back(members);
    for (int64_t& rank : group) rank += offset_ + start;
  }
  return groups;
}

Result<std::vector<RankGroup>> ProcessGrid::Enumerate(const std::vector<std::string>& dims,
                                                      std::string_view view) const {
  MW_ASSIGN_OR_RETURN(const Axes axes, AxesOf(view));
  MW_ASSIGN_OR_RETURN(auto indices, AxisIndices(dims, axes, view));
  std::sort(indices.rbegin(), indices.rend());
  return Groups(axes, indices);
}

Result<std::vector<RankGroup>> ProcessGrid::EnumerateRaw(const std::vector<std::string>& dims,
                                                         std::string_view view) const {
  MW_ASSIGN_OR_RETURN(const Axes axes, AxesOf(view));
  MW_ASSIGN_OR_RETURN(const auto indices, AxisIndices(dims, axes, view));
  return Groups(axes, indices);
}

Status ProcessGrid::RegisterView(const std::string& name, GridView view) {
  const std::string where = fmt::format("view '{}'", name);
  if (name.empty()) return ValueError("view without a name; the empty name is the base grid");
  if (views_.count(name) > 0) return ValueError(where + " is registered already");
  MW_RETURN_IF_ERROR(CheckAxes(view.shape, view.names, where));
  const std::optional<int64_t> size = BoundedProduct(view.shape);
  if (!size || *size != size_) {
    return ValueError(fmt::format("{}: {} is not the grid's {} ranks", where,
                                  fmt::join(view.shape, " x "), size_));
  }
  if (const auto twice = FirstDuplicate(view.shared)) {
    return ValueError(fmt::format("{}: shared axis {} is listed twice", where, *twice));
  }
  for (const std::string& axis : view.shared) {
    for (const auto& [names, side] :
         {std::pair(&names_, "base grid"), std::pair(&view.names, "view")}) {
      if (!Has(*names, axis)) {
        return ValueError(
            fmt::format("{}: shared axis {} is missing in the {}, whose axes are [{}]", where, axis,
                        side, fmt::join(*names, ", ")));
      }
    }
  }
  std::vector<std::vector<std::string>> checks;
  for (const std::string& axis : view.shared) checks.push_back({axis});
  if (view.shared.size() > 1) checks.push_back(view.shared);
  const std::vector<std::string> shared = view.shared;
  views_.emplace(name, std::move(view));
  for (const auto& dims : checks) {
    if (*Enumerate(dims) != *Enumerate(dims, name)) {
      views_.erase(name);
      return ValueError(fmt::format("{}: shared axes [{}] make other groups than in the base grid",
                                    where, fmt::join(dims, ", ")));
    }
  }
  return Status::Ok();
}

Result<GroupKey> ProcessGrid::KeyFor(const std::vector<std::string>& dims,
                                     std::string_view view) const {
  MW_ASSIGN_OR_RETURN(Axes axes, AxesOf(view));
  MW_ASSIGN_OR_RETURN(auto indices, AxisIndices(dims, axes, view));
  GroupKey key{std::string(view), {}};
  if (!view.empty()) {
    const std::vector<std::string>& shared = views_.find(view)->second.shared;
    if (std::all_of(dims.begin(), dims.end(), [&](const auto& d) { return Has(shared, d); })) {
      return KeyFor(dims, {});
    }
  }
  std::sort(indices.rbegin(), indices.rend());
  for (const size_t i : indices) key.names.push_back((*axes.names)[i]);
  return key;
}

Result<GroupKey> ProcessGrid::Create(const std::vector<std::string>& dims, std::string_view view) {
  MW_ASSIGN_OR_RETURN(GroupKey key, KeyFor(dims, view));
  if (std::find(created_.begin(), created_.end(), key) != created_.end()) {
    return KeyError(fmt::format("group {} exists already; get it instead", key.ToString()));
  }
  created_.push_back(key);
  return key;
}

Result<std::vector<RankGroup>> ProcessGrid::Get(const std::vector<std::string>& dims,
                                                std::string_view view) const {
  MW_ASSIGN_OR_RETURN(const GroupKey key, KeyFor(dims, view));
  if (std::find(created_.begin(), created_.end(), key) == created_.end()) {
    return KeyError(fmt::format("group {} was not created", key.ToString()));
  }
  return Enumerate(key.names, key.view);
}

std::vector<GroupKey> ProcessGrid::Destroy(int64_t rank) {
  std::vector<GroupKey> keys = std::exchange(created_, {});
  if (!Contains(rank)) keys.clear();
  return keys;
}

}  // namespace meshwright::topologies
