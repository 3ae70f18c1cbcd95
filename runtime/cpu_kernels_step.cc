// End of step: gradient norm, statistics, clip factor, optimizer. Buckets are seen whole; a rank
// works on its own shard of them under ZeRO-1 and on everything otherwise.
#include <algorithm>
#include <cmath>

#include "runtime/cpu_kernels.h"
#include "runtime/parameter_layout.h"

namespace meshwright::runtime::cpu {
namespace {

using planner::ParameterEntry;

/// Elements [begin, end) of a bucket.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

Range Intersect(Range a, Range b) {
  const Range both = {std::max(a.begin, b.begin), std::min(a.end, b.end)};
  return both.begin < both.end ? both : Range{};
}

const planner::Bucket& BucketOf(const OpCall& call) {
  const auto& buckets = call.rank.program->buckets;
  const int32_t index = call.op.attributes.bucket;
  MW_CHECK(index >= 0 && static_cast<size_t>(index) < buckets.size());
  return buckets[static_cast<size_t>(index)];
}

/// What this rank updates: its data-parallel shard under ZeRO-1, else the whole bucket.
Range UpdatedRange(const OpCall& call) {
  const planner::Bucket& bucket = BucketOf(call);
  const planner::ModulePlan& grid = call.rank.grid;
  if (grid.sharding == planner::Sharding::kNone) return {0, bucket.elements};
  MW_CHECK(bucket.elements % grid.dp == 0);
  const int64_t shard = bucket.elements / grid.dp;
  return {call.rank.binding->dp_index * shard, (call.rank.binding->dp_index + 1) * shard};
}

template <typename F>
void ForEachEntry(const OpCall& call, F f) {
  const planner::Bucket& bucket = BucketOf(call);
  for (const ParameterEntry& entry : call.rank.program->parameters) {
    if (entry.bucket != call.op.attributes.bucket) continue;
    const int64_t at = entry.offset - bucket.offset;
    MW_CHECK(at >= 0 && at + entry.elements() <= bucket.elements);
    f(entry, at);
  }
}

template <typename T>
double SumOfSquares(const T* gradient, Range range) {
  double sum = 0.0;
  for (int64_t i = range.begin; i < range.end; ++i) {
    const auto g = static_cast<double>(gradient[i]);
    sum += g * g;
  }
  return sum;
}

/// Sum over what exactly one rank of the module counts.
template <typename T>
Status SquaredNormT(const OpCall& call) {
  const Operands operands(call);
  const planner::RankBinding& rank = *call.rank.binding;
  const planner::ModulePlan& grid = call.rank.grid;
  const T* gradient = operands.Get<T>("gradient", BucketOf(call).elements);
  const Range own = grid.sharding == planner::Sharding::kNone && rank.dp_index != 0
                        ? Range{}
                        : UpdatedRange(call);
  double sum = 0.0;
  ForEachEntry(call, [&](const ParameterEntry& entry, int64_t at) {
    if (entry.tied_copy) return;
    const AxisSplit split = SplitAtCutAxis(entry);
    for (const planner::ShardSegment& segment :
         planner::SegmentsOf(entry, rank.tp_index, grid.tp)) {
      if (!segment.owner) continue;
      for (int64_t o = 0; o < split.outer; ++o) {
        const int64_t begin = at + (o * split.local + segment.local_begin) * split.inner;
        sum +=
            SumOfSquares(gradient, Intersect({begin, begin + segment.length * split.inner}, own));
      }
    }
  });
  double* norm = operands.Get<double>("norm", 1);
  *norm = operands.Accumulates("norm") ? *norm + sum : sum;
  return Status::Ok();
}

/// Coefficients of one optimizer step.
struct StepFactors {
  double clip = 1.0;
  double rate = 0.0;
  double decay = 0.0;        ///< of the entry at hand
  double correction1 = 1.0;  ///< 1 - beta1^step
  double correction2 = 1.0;
};

/// m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2,
/// p -= rate (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + decay p).
template <typename T>
void AdamW(const OptimizerOptions& o, const StepFactors& f, int64_t n, const T* gradient, T* p,
           T* m, T* v) {
  for (int64_t i = 0; i < n; ++i) {
    const double g = static_cast<double>(gradient[i]) * f.clip;
    const double m1 = o.beta1 * static_cast<double>(m[i]) + (1.0 - o.beta1) * g;
    const double v1 = o.beta2 * static_cast<double>(v[i]) + (1.0 - o.beta2) * g * g;
    m[i] = static_cast<T>(m1);
    v[i] = static_cast<T>(v1);
    const double update = m1 / f.correction1 / (std::sqrt(v1 / f.correction2) + o.epsilon);
    const auto old = static_cast<double>(p[i]);
    p[i] = static_cast<T>(old - f.rate * (update + f.decay * old));
  }
}

template <typename T>
void Sgd(const StepFactors& f, int64_t n, const T* gradient, T* p) {
  for (int64_t i = 0; i < n; ++i) {
    const auto old = static_cast<double>(p[i]);
    p[i] =
        static_cast<T>(old - f.rate * (static_cast<double>(gradient[i]) * f.clip + f.decay * old));
  }
}

template <typename T>
Status OptimizerStepT(const OpCall& call) {
  const Operands operands(call);
  const OptimizerOptions& options = call.rank.optimizer;
  const int64_t elements = BucketOf(call).elements;
  const Range own = UpdatedRange(call);
  T* parameter = operands.Get<T>("parameter", elements);
  const T* gradient = operands.Get<T>("gradient", elements);
  // In fp32 and fp64 the parameter is its own master: state is m, then v, of the own range.
  MW_CHECK(!call.rank.facts.dtypes.master);
  const bool adam = call.rank.facts.optimizer == planner::OptimizerKind::kAdamW;
  T* m = adam ? operands.Get<T>("state", 2 * own.size()) : nullptr;
  MW_CHECK(!adam || m != nullptr);

  StepFactors factors;
  factors.clip = *operands.Get<double>("clip", 1);
  factors.rate = *operands.Get<double>("learning_rate", 1);
  const auto step = static_cast<double>(*operands.Get<int64_t>("step", 1));
  factors.correction1 = 1.0 - std::pow(options.beta1, step);
  factors.correction2 = 1.0 - std::pow(options.beta2, step);
  ForEachEntry(call, [&](const ParameterEntry& entry, int64_t at) {
    const Range range = Intersect({at, at + entry.elements()}, own);
    if (range.size() == 0) return;
    factors.decay = entry.decay ? options.weight_decay : 0.0;
    if (adam) {
      T* first = m + (range.begin - own.begin);
      AdamW(options, factors, range.size(), gradient + range.begin, parameter + range.begin, first,
            first + own.size());
    } else {
      Sgd(factors, range.size(), gradient + range.begin, parameter + range.begin);
    }
  });
  return Status::Ok();
}

}  // namespace

Status SquaredNorm(const OpCall& call) {
  return ForDType(call, "gradient", [&](auto zero) { return SquaredNormT<decltype(zero)>(call); });
}

/// The sum over all ranks is the loss sum of the step and its token count: each data-parallel rank
/// reports its own losses once, one rank reports the count, which is global already.
Status StepStatistics(const OpCall& call) {
  const Operands operands(call);
  const planner::RankBinding& rank = *call.rank.binding;
  double* statistics = operands.Get<double>("statistics", 3);
  const bool reports = rank.tp_index == 0 && rank.pp_index == call.rank.grid.pp - 1;
  statistics[1] = reports ? *operands.Get<double>("loss", 1) : 0.0;
  statistics[2] =
      reports && rank.dp_index == 0 ? static_cast<double>(*operands.Get<int64_t>("count", 1)) : 0.0;
  return Status::Ok();
}

Status ClipFactor(const OpCall& call) {
  const Operands operands(call);
  const double norm = std::sqrt(*operands.Get<double>("statistics", 3));
  const double limit = call.rank.optimizer.clip;
  double factor = 1.0;
  if (limit > 0) {
    factor = limit / (norm + 1e-6);
    if (factor > 1.0) factor = 1.0;  // a NaN norm stays a NaN
  }
  *operands.Get<double>("clip", 1) = factor;
  return Status::Ok();
}

Status OptimizerStep(const OpCall& call) {
  return ForDType(call, "parameter",
                  [&](auto zero) { return OptimizerStepT<decltype(zero)>(call); });
}

}  // namespace meshwright::runtime::cpu
