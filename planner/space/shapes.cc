#include "planner/space/shapes.h"

#include "planner/space/axes.h"

namespace meshwright::planner::space {
namespace {

using stack::LinearFormat;
using stack::Split;

/// (ep, expert_tp) whose product divides `ranks`.
std::vector<std::pair<int64_t, int64_t>> ExpertSplits(const Divisibility& divisible,
                                                      const SpaceOptions& options, int64_t ranks) {
  std::vector<std::pair<int64_t, int64_t>> splits;
  for (const int64_t ep : DivisorsOf(ranks)) {
    if (!Open(options.held.ep, options.excluded.ep, ep) || !Within(ep, options.most_ep)) continue;
    for (const int64_t expert_tp : DivisorsOf(ranks / ep)) {
      if (!Open(options.held.expert_tp, options.excluded.expert_tp, expert_tp)) continue;
      if (expert_tp > 1 && (!options.expert_tp || !Within(expert_tp, options.most_tp))) continue;
      if (divisible.Expert(ep, expert_tp)) splits.emplace_back(ep, expert_tp);
    }
  }
  return splits;
}

}  // namespace

Shapes::Shapes(const std::vector<DeviceGroup>& groups, const SpaceOptions& options, int64_t gpus,
               std::function<int64_t(const Split&)> weight)
    : groups_(groups), options_(options), gpus_(gpus), weight_(std::move(weight)) {
  const Divisibility divisible(groups.front().costs->module(), groups.front().costs->sequence());
  const int64_t ranks = divisible.experts() ? DevicesOf(groups, gpus).common : 1;
  experts_ = ExpertSplits(divisible, options, ranks);
}

void Shapes::ForEachLayout(const std::function<void(Shape)>& visit) const {
  const Divisibility divisible(groups_.front().costs->module(), groups_.front().costs->sequence());
  const int64_t common = DevicesOf(groups_, gpus_).common;
  const Axes& held = options_.held;
  const Axes& excluded = options_.excluded;
  for (const int64_t tp : DivisorsOf(common)) {
    if (!Open(held.tp, excluded.tp, tp) || !Within(tp, options_.most_tp)) continue;
    if (!divisible.Tensor(tp)) continue;
    for (const int64_t cp : DivisorsOf(common / tp)) {
      if (!Open(held.cp, excluded.cp, cp) || !Within(cp, options_.most_cp)) continue;
      if (!divisible.Context(cp)) continue;
      for (const int64_t micro_batch : DivisorsOf(options_.global_batch)) {
        if (!Open(held.micro_batch, excluded.micro_batch, micro_batch)) continue;
        if (!Within(micro_batch, options_.most_micro_batch)) break;
        for (const bool sequence_parallel : {false, true}) {
          if (!Open(held.sequence_parallel, excluded.sequence_parallel, sequence_parallel)) {
            continue;
          }
          if (sequence_parallel && !divisible.SequenceParallel(tp, cp)) continue;
          if (options_.sequence_parallel_tied && sequence_parallel != (tp > 1)) continue;
          visit({tp, cp, 1, 1, micro_batch, sequence_parallel, LinearFormat::kBf16});
        }
      }
    }
  }
}

void Shapes::ForEachFamily(const std::function<void(const Shape&, const Count&)>& visit) {
  ForEachLayout([&](Shape family) {
    const Count count = CountOf(family);
    if (count.shapes == 0) return;
    for (const LinearFormat format : options_.formats) {
      if (!Open(options_.held.format, options_.excluded.format, format)) continue;
      family.format = format;
      visit(family, count);
    }
  });
}

void Shapes::ForEachShape(Shape family, const std::function<void(const Shape&)>& visit) {
  for (const auto& [ep, expert_tp] : experts_) {
    family.ep = ep;
    family.expert_tp = expert_tp;
    if (SplitsOf(family) > 0) visit(family);
  }
}

size_t Shapes::KeyHash::operator()(const Key& key) const {
  uint64_t hash = 0;
  for (const int64_t part : {key.ranks, key.context, key.micro_batch, key.expert_ranks}) {
    // Multiply and fold: the low bits of powers of two are zeros.
    hash = (hash ^ static_cast<uint64_t>(part)) * 0x9e3779b97f4a7c15ULL;
    hash ^= hash >> 32;
  }
  return hash;
}

int64_t Shapes::SplitsOf(const Shape& shape) {
  const Key key{shape.tp * shape.cp, shape.cp > 1 ? 1 : 0, shape.micro_batch,
                shape.ep * shape.expert_tp};
  const auto [at, fresh] = splits_.try_emplace(key, 0);
  if (!fresh) return at->second;
  int64_t count = 0;
  ForEachSplit(groups_, options_, gpus_, shape,
               [&](const Split& split) { count += weight_ ? weight_(split) : 1; });
  at->second = count;
  return count;
}

Shapes::Count Shapes::CountOf(const Shape& family) {
  const Key key{family.tp * family.cp, family.cp > 1 ? 1 : 0, family.micro_batch, 0};
  const auto [at, fresh] = counts_.try_emplace(key);
  Count& count = at->second;
  if (!fresh) return count;
  ForEachShape(family, [&](const Shape& shape) {
    ++count.shapes;
    count.splits += SplitsOf(shape);
  });
  return count;
}

std::vector<Shape> ShapesOf(const std::vector<DeviceGroup>& groups, const SpaceOptions& options,
                            int64_t gpus) {
  std::vector<Shape> all;
  Shapes shapes(groups, options, gpus);
  shapes.ForEachFamily([&](const Shape& family, const Shapes::Count&) {
    shapes.ForEachShape(family, [&](const Shape& shape) { all.push_back(shape); });
  });
  return all;
}

}  // namespace meshwright::planner::space
