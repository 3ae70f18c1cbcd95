#include "planner/space/tuple_stages.h"

#include <cmath>
#include <limits>

#include "planner/lower/make_plan.h"

namespace meshwright::planner::space {
namespace {

using stack::kLayerModes;
using stack::LayerMode;
using stack::Schedule;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
/// Sums in another order differ by less; bounds give way by this share.
constexpr double kRounding = 1e-9;

double D(int64_t value) {
  return static_cast<double>(value);
}
size_t S(int64_t value) {
  return static_cast<size_t>(value);
}

}  // namespace

TupleStages::TupleStages(const std::vector<DeviceGroup>& groups, const SpaceOptions& options,
                         const Tuple& tuple)
    : tuple_(tuple), module_(groups.front().costs->module()), even_(options.even_layers) {
  one_kind_ = std::all_of(module_.layers.begin(), module_.layers.end(),
                          [&](int kind) { return kind == module_.layers.front(); });
  std::array<bool, kLayerModes> modes = options.modes;
  if (P() > 1 && !options.offload_in_pipelines) {
    modes[static_cast<size_t>(LayerMode::kOffload)] = false;
  }
  PlaceStages(groups, modes);
  const bool late = split().schedule == Schedule::kZeroBubbleH1;
  const auto least = [&](const stack::ItemCost& c) {
    return c.forward_s + c.backward_s - (late ? 2 * c.weight_s : 0.0);
  };
  std::vector<double> layer(module_.layer_kinds.size(), kInfinity);
  double head = kInfinity, exposed = kInfinity, message = 0.0;
  least_layer_s_ = kInfinity;
  const stack::ItemTable* before = nullptr;
  for (const StagePlace& place : places_) {
    if (place.table == before) continue;
    before = place.table;
    for (size_t kind = 0; kind < layer.size(); ++kind) {
      for (size_t mode = 0; mode < kLayerModes; ++mode) {
        if (!modes[mode]) continue;
        const stack::ItemCost& c = place.table->layers[kind][mode];
        layer[kind] = std::min(layer[kind], least(c));
        least_layer_s_ = std::min(least_layer_s_, c.forward_s + c.backward_s);
      }
    }
    head = std::min(head, least(place.table->head));
    exposed = std::min(exposed, place.table->exposed_message_s);
    message = std::max(message, place.table->message_s);
  }
  messages_s_ = stack::FillMessages(split()) * message;
  head_z_ = head / D(v());
  stage_z_ = exposed;
  least_z_.assign(S(layers() + 1), 0.0);
  for (int64_t i = layers() - 1; i >= 0; --i) {
    least_z_[S(i)] = least_z_[S(i + 1)] + layer[S(module_.layers[S(i)])] / D(v());
  }
  if (v() > 1 && !one_kind_) chunks_ = EvenLayers(layers(), P() * v());
}

void TupleStages::PlaceStages(const std::vector<DeviceGroup>& groups,
                              const std::array<bool, kLayerModes>& modes) {
  const std::vector<int32_t> of = GroupOfStages(groups, tuple_);
  places_.reserve(of.size());
  for (int64_t p = 0; p < P(); ++p) {
    const DeviceGroup& group = groups[S(of[S(p)])];
    StagePlace place;
    place.costs = group.costs;
    place.table = p > 0 && of[S(p)] == of[S(p - 1)] ? places_.back().table
                                                    : &group.costs->Items(tuple_.split);
    place.split = &tuple_.split;
    place.memory_bytes = group.memory_bytes;
    place.in_flight = stack::InFlight(tuple_.split, p);
    place.embedding = p == 0;
    place.head = p == P() - 1;
    place.modes = modes;
    places_.push_back(place);
  }
}

double TupleStages::Steady() const {
  const double m = D(split().micro_batches);
  return split().schedule == Schedule::kZeroBubbleH1 ? m - 1 : m - 1 / D(v());
}

double TupleStages::LeastZ(int64_t stage, int64_t used) const {
  return std::max(0.0, least_z_[S(used)] + head_z_ + D(P() - stage) * stage_z_);
}

std::pair<int64_t, int64_t> TupleStages::CountRange(int64_t stage) const {
  if (fixed()) {
    int64_t n = 0;
    for (int64_t c = 0; c < v(); ++c) n += chunks_[S(c * P() + stage)];
    return {n, n};
  }
  if (even_) return {layers() / P(), layers() / P()};
  return {v(), layers() - (P() - 1) * v()};
}

std::vector<int64_t> TupleStages::MostByTime(double most_y) const {
  std::vector<int64_t> most(S(P()));
  int64_t total = 0;
  for (int64_t p = 0; p < P(); ++p) {
    const auto [low, high] = CountRange(p);
    most[S(p)] = high;
    // y >= steady x t, and t rises with the layers.
    if (Steady() > 0 && least_layer_s_ > 0) {
      const double by_time = most_y / (Steady() * least_layer_s_) * (1 + kRounding);
      if (by_time < D(high)) most[S(p)] = static_cast<int64_t>(std::floor(by_time));
    }
    if (most[S(p)] < low) return {};
    total += most[S(p)];
  }
  if (total < layers()) return {};
  return most;
}

void TupleStages::CountKinds(int64_t stage, int64_t first, int64_t count,
                             std::vector<int64_t>& kinds) const {
  kinds.assign(module_.layer_kinds.size(), 0);
  if (one_kind_) {
    kinds[S(module_.layers.front())] = count;
    return;
  }
  ForLayers(stage, first, count, [&](size_t kind) { ++kinds[kind]; });
}

}  // namespace meshwright::planner::space
