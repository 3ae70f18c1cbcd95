// The stages of one tuple before its layers are chosen: places, the ranges of layers that they may
// take, and sums over ranges.
//
// Layers. One chunk a stage: any contiguous ranges, at least one layer each. Several chunks and
// layers of one kind: any number of at least v layers on a stage, dealt over its chunks. Several
// chunks and kinds: the chunks are EvenLayers. `even_layers`: equal numbers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "planner/space/space.h"
#include "planner/space/stage_options.h"

namespace meshwright::planner::space {

class TupleStages {
 public:
  TupleStages(const std::vector<DeviceGroup>& groups, const SpaceOptions& options,
              const Tuple& tuple);
  TupleStages(const TupleStages&) = delete;  // places point into it
  TupleStages& operator=(const TupleStages&) = delete;

  const Tuple& tuple() const { return tuple_; }
  const stack::Split& split() const { return tuple_.split; }
  int64_t P() const { return tuple_.split.pp; }
  int64_t v() const { return tuple_.split.virtual_stages; }
  int64_t layers() const { return module_.layer_count(); }
  bool one_kind() const { return one_kind_; }
  bool fixed() const { return !chunks_.empty(); }  ///< chunks are EvenLayers
  const StagePlace& place(int64_t stage) const { return places_[static_cast<size_t>(stage)]; }

  /// m t - z >= Steady() t.
  double Steady() const;
  /// Messages of filling and draining, seconds.
  double messages_s() const { return messages_s_; }
  /// Least sum of z over stages from `stage` on when `used` layers lie before it, seconds.
  double LeastZ(int64_t stage, int64_t used) const;
  /// Least forward + backward of any layer, seconds.
  double least_layer_s() const { return least_layer_s_; }

  /// Range of numbers of layers that a stage may take.
  std::pair<int64_t, int64_t> CountRange(int64_t stage) const;
  /// Layers that each stage may take at most when y <= most_y; empty: too few.
  std::vector<int64_t> MostByTime(double most_y) const;
  /// Layers by kind of a stage's range; `first` counts the layers of earlier stages.
  void CountKinds(int64_t stage, int64_t first, int64_t count, std::vector<int64_t>& kinds) const;
  /// f(kind) for each layer of the range, in order.
  template <typename F>
  void ForLayers(int64_t stage, int64_t first, int64_t count, const F& f) const {
    const auto call = [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        f(static_cast<size_t>(module_.layers[static_cast<size_t>(i)]));
      }
    };
    if (!fixed()) return call(first, first + count);
    int64_t begin = 0;
    for (size_t chunk = 0; chunk < chunks_.size(); ++chunk) {
      if (static_cast<int64_t>(chunk) % P() == stage) call(begin, begin + chunks_[chunk]);
      begin += chunks_[chunk];
    }
  }

 private:
  void PlaceStages(const std::vector<DeviceGroup>& groups,
                   const std::array<bool, stack::kLayerModes>& modes);

  Tuple tuple_;
  const ModuleSpec& module_;
  bool even_ = false;
  bool one_kind_ = false;
  std::vector<StagePlace> places_;
  std::vector<int64_t> chunks_;
  double messages_s_ = 0.0;
  double least_layer_s_ = 0.0;
  std::vector<double> least_z_;  ///< of layers from n on, without head and messages
  double head_z_ = 0.0, stage_z_ = 0.0;
};

}  // namespace meshwright::planner::space
