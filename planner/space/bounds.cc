#include "planner/space/bounds.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "planner/space/stage_place.h"

namespace meshwright::planner::space {
namespace {

using stack::ItemCost;
using stack::ItemTable;
using stack::kLayerModes;
using stack::LayerMode;
using stack::Schedule;
using stack::Split;
using stack::StageSums;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double D(int64_t value) {
  return static_cast<double>(value);
}

template <typename Least, typename F>
double LeastOf(const std::vector<Least>& minima, const F& f) {
  double least = kInfinity;
  for (const Least& m : minima) least = std::min(least, f(m));
  return least;
}

double LeastOf(const std::vector<std::pair<double, double>>& by_kind, double layers) {
  double sum = 0.0;
  for (const auto& [each, count] : by_kind) {
    const double n = std::min(layers, count);
    sum += n * each;
    layers -= n;
  }
  return sum;
}

}  // namespace

stack::ItemParameters TableMinima::LeastParameters(double layers) const {
  return {LeastOf(dense, layers), LeastOf(expert, layers)};
}

Bounds::Bounds(const std::vector<DeviceGroup>& groups, const SpaceOptions& options)
    : groups_(groups), options_(options) {
  const ModuleSpec& module = groups.front().costs->module();
  kind_layers_.resize(module.layer_kinds.size());
  for (const int kind : module.layers) ++kind_layers_[static_cast<size_t>(kind)];
  layers_ = D(module.layer_count());
}

std::array<bool, kLayerModes> Bounds::Modes(const Split& split) const {
  std::array<bool, kLayerModes> modes = options_.modes;
  if (split.pp > 1 && !options_.offload_in_pipelines) {
    modes[static_cast<size_t>(LayerMode::kOffload)] = false;
  }
  return modes;
}

TableMinima Bounds::MinimaOf(const ItemTable& table, const std::array<bool, kLayerModes>& modes,
                             bool exact) const {
  TableMinima m(table.layers.size());
  m.least_layer_s = kInfinity;
  double late = PassesOf(table.embedding) - 2 * table.embedding.weight_s + PassesOf(table.head) -
                2 * table.head.weight_s;
  for (size_t kind = 0; kind < table.layers.size(); ++kind) {
    if (kind_layers_[kind] == 0) continue;
    double least = kInfinity, least_late = kInfinity;
    for (size_t mode = 0; mode < kLayerModes; ++mode) {
      if (!modes[mode]) continue;
      const ItemCost& cost = table.layers[kind][mode];
      least = std::min(least, PassesOf(cost));
      least_late = std::min(least_late, PassesOf(cost) - 2 * cost.weight_s);
      m.memory.emplace_back(cost.transient_bytes, cost.saved_bytes);
    }
    m.layer_s[kind] = least;
    m.least_layer_s = std::min(m.least_layer_s, least);
    m.layers_s += kind_layers_[kind] * least;
    late += kind_layers_[kind] * least_late;
    m.dense.emplace_back(table.layer_parameters[kind].dense, kind_layers_[kind]);
    m.expert.emplace_back(table.layer_parameters[kind].expert, kind_layers_[kind]);
  }
  std::sort(m.dense.begin(), m.dense.end());
  std::sort(m.expert.begin(), m.expert.end());
  std::sort(m.memory.begin(), m.memory.end());
  double saved = kInfinity;
  std::erase_if(m.memory, [&](const auto& point) {
    const bool useless = point.second >= saved;
    saved = std::min(saved, point.second);
    return useless;
  });
  m.embedding_s = PassesOf(table.embedding);
  m.head_s = PassesOf(table.head);
  m.late_s = exact ? late : -kInfinity;
  m.message_s = table.message_s;
  m.exposed_message_s = table.exposed_message_s;
  return m;
}

double Bounds::WorkOf(const stack::LeastSeconds& least) const {
  double work = least.embedding_s + least.head_s;
  for (size_t kind = 0; kind < kind_layers_.size(); ++kind) {
    if (kind_layers_[kind] > 0) work += kind_layers_[kind] * least.layer_s[kind];
  }
  return work;
}

template <typename Least>
double Bounds::WeightedWork(const std::vector<double>& stages, const std::vector<Least>& minima,
                            double* largest) const {
  const auto work_of = [&](const Least& m) {
    return std::max(WorkOf(m), std::numeric_limits<double>::min());
  };
  double total = 0.0;
  for (size_t g = 0; g < minima.size(); ++g) total += stages[g] / work_of(minima[g]);
  const auto weight = [&](const Least& m) { return 1.0 / (work_of(m) * total); };
  double work = LeastOf(minima, [&](const auto& m) { return weight(m) * m.embedding_s; }) +
                LeastOf(minima, [&](const auto& m) { return weight(m) * m.head_s; });
  for (size_t kind = 0; kind < kind_layers_.size(); ++kind) {
    if (kind_layers_[kind] == 0) continue;
    work += kind_layers_[kind] *
            LeastOf(minima, [&](const auto& m) { return weight(m) * m.layer_s[kind]; });
  }
  if (largest != nullptr) {
    *largest = 0.0;
    for (const Least& m : minima) *largest = std::max(*largest, weight(m));
  }
  return work;
}

double Bounds::Time(const Split& split, const std::vector<TableMinima>& minima) const {
  const double P = D(split.pp), v = D(split.virtual_stages), m = D(split.micro_batches);
  double mean = 0.0, largest = 1.0 / P;
  double exposed = minima.front().exposed_message_s, message = minima.front().message_s;
  if (minima.size() == 1) {
    mean = minima.front().work_s() / P;
  } else {
    std::vector<double> stages;
    for (const int64_t n : StagesOfGroups(groups_, split)) stages.push_back(D(n));
    mean = WeightedWork(stages, minima, &largest);
    exposed = LeastOf(minima, [](const auto& x) { return x.exposed_message_s; });
    message = LeastOf(minima, [](const auto& x) { return x.message_s; });
  }
  mean += v * exposed;
  const double messages = stack::FillMessages(split) * message;
  const double ceiling = std::ceil(layers_ / P);
  double end = kInfinity, fullest = kInfinity;
  const double steady = m - 1 / v;
  for (size_t g = 0; g < minima.size(); ++g) {
    const TableMinima& x = minima[g];
    const double end_g = groups_[g].costs->EndOfStepBound(split, x.LeastParameters(v));
    const double end_full = groups_[g].costs->EndOfStepBound(split, x.LeastParameters(ceiling));
    end = std::min(end, options_.even_layers ? end_full : end_g);
    const double t = ceiling * x.least_layer_s + v * x.exposed_message_s;
    fullest = std::min(fullest,
                       end_full + t * (split.schedule == Schedule::kZeroBubbleH1 ? m - 1 : steady));
  }
  if (split.schedule == Schedule::kZeroBubbleH1) {
    const double late = LeastOf(minima, [](const auto& x) { return x.late_s; });
    const double sum = std::max(0.0, late + P * exposed);
    // m t - z + e >= (m - 1) t + e, and the sum of z besides.
    return messages + std::max({m * mean + end + std::max(0.0, 1 - largest) * sum, sum + fullest});
  }
  double sum = P * exposed;
  if (minima.size() == 1) {
    sum += minima.front().work_s() / v;
  } else {
    double work = LeastOf(minima, [](const auto& x) { return x.embedding_s; }) +
                  LeastOf(minima, [](const auto& x) { return x.head_s; });
    for (size_t kind = 0; kind < kind_layers_.size(); ++kind) {
      if (kind_layers_[kind] == 0) continue;
      work += kind_layers_[kind] * LeastOf(minima, [&](const auto& x) { return x.layer_s[kind]; });
    }
    sum += work / v;
  }
  return messages + sum + std::max(steady * mean + end, fullest);
}

double Bounds::ShapeTime(const Shape& shape, int64_t gpus,
                         const std::vector<stack::LeastSeconds>& least) const {
  // T >= m max t, for any one dp: both m and the stages of a group go as 1 / dp.
  const double batches = D(options_.global_batch) / D(shape.micro_batch);
  if (least.size() == 1) return batches * WorkOf(least.front()) * D(shape.tp * shape.cp) / D(gpus);
  std::vector<double> stages;
  for (const DeviceGroup& g : groups_) {
    stages.push_back(D(g.gpus) / D(shape.tp * shape.cp));
  }
  return batches * WeightedWork(stages, least, nullptr);
}

bool Bounds::MayFit(const Split& split, const std::vector<TableMinima>& minima) const {
  const double ceiling = std::ceil(layers_ / D(split.pp));
  const double in_flight = stack::InFlight(split, split.pp - 1);
  for (size_t g = 0; g < minima.size(); ++g) {
    StageSums sums;
    sums.parameters = minima[g].LeastParameters(ceiling);
    for (const auto& [transient, saved] : minima[g].memory) {
      sums.transient_bytes = transient;
      sums.saved_bytes = ceiling * saved;
      if (groups_[g].costs->Memory(split, sums, in_flight).total() <= groups_[g].memory_bytes) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace meshwright::planner::space
