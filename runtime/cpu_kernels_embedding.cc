// Token counts, vocabulary-parallel embedding and learned positions.
#include <fmt/format.h>

#include <algorithm>

#include "runtime/cpu_kernels.h"

namespace meshwright::runtime::cpu {
namespace {

/// Local row of a token id in this rank's slice of `rows` rows; -1 when another rank holds it.
int64_t LocalRow(const OpCall& call, int64_t id, int64_t rows) {
  const int64_t row = id - call.rank.binding->tp_index * rows;
  return row >= 0 && row < rows ? row : -1;
}

template <typename T>
Status EmbedT(const OpCall& call) {
  const Operands operands(call);
  const planner::TensorView& table = *operands.View("weight");
  const int64_t rows = table.shape[0];
  const int64_t h = table.shape[1];
  const int64_t tokens = operands.View("y")->elements() / h;
  const int32_t* ids = operands.Get<int32_t>("tokens", tokens);
  const T* weight = operands.Get<T>("weight", rows * h);
  T* y = operands.Get<T>("y", tokens * h);
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t row = LocalRow(call, ids[t], rows);
    if (row < 0) {
      std::fill(y + t * h, y + (t + 1) * h, T{0});
    } else {
      std::copy(weight + row * h, weight + (row + 1) * h, y + t * h);
    }
  }
  return Status::Ok();
}

template <typename T>
Status EmbedGradT(const OpCall& call) {
  const Operands operands(call);
  const planner::TensorView& table = *operands.View("weight_grad");
  const int64_t rows = table.shape[0];
  const int64_t h = table.shape[1];
  const int64_t tokens = operands.View("dy")->elements() / h;
  const int32_t* ids = operands.Get<int32_t>("tokens", tokens);
  const T* dy = operands.Get<T>("dy", tokens * h);
  T* gradient = operands.Get<T>("weight_grad", rows * h);
  if (!operands.Accumulates("weight_grad")) std::fill(gradient, gradient + rows * h, T{0});
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t row = LocalRow(call, ids[t], rows);
    if (row < 0) continue;
    for (int64_t j = 0; j < h; ++j) gradient[row * h + j] += dy[t * h + j];
  }
  return Status::Ok();
}

/// Positions of the rows of a [sequence, batch, h] tensor that may be a slice of the sequence.
struct Positions {
  int64_t first = 0;
  int64_t count = 0;
};

Result<Positions> PositionsOf(const OpCall& call, int64_t tokens, int64_t max_positions) {
  const planner::OpAttributes& a = call.op.attributes;
  MW_CHECK(a.batch > 0 && tokens % a.batch == 0);
  Positions p;
  p.count = tokens / a.batch;
  p.first = a.sequence_sharded ? call.rank.binding->tp_index * p.count : 0;
  if (p.first + p.count > max_positions) {
    return Unsupported(
        fmt::format("{}: positions up to {} asked for, the model has {}; use a shorter sequence",
                    Where(call), p.first + p.count, max_positions));
  }
  return p;
}

template <typename T>
Status AddPositionsT(const OpCall& call) {
  const Operands operands(call);
  const planner::TensorView& table = *operands.View("positions");
  const int64_t h = table.shape[1];
  const int64_t batch = call.op.attributes.batch;
  const int64_t tokens = operands.View("y")->elements() / h;
  MW_ASSIGN_OR_RETURN(const Positions p, PositionsOf(call, tokens, table.shape[0]));
  const T* positions = operands.Get<T>("positions", table.shape[0] * h);
  T* y = operands.Get<T>("y", tokens * h);
  for (int64_t t = 0; t < tokens; ++t) {
    const T* row = positions + (p.first + t / batch) * h;
    for (int64_t j = 0; j < h; ++j) y[t * h + j] += row[j];
  }
  return Status::Ok();
}

template <typename T>
Status PositionsGradT(const OpCall& call) {
  const Operands operands(call);
  const planner::TensorView& table = *operands.View("positions_grad");
  const int64_t h = table.shape[1];
  const int64_t batch = call.op.attributes.batch;
  const int64_t tokens = operands.View("dy")->elements() / h;
  MW_ASSIGN_OR_RETURN(const Positions p, PositionsOf(call, tokens, table.shape[0]));
  const T* dy = operands.Get<T>("dy", tokens * h);
  T* gradient = operands.Get<T>("positions_grad", table.shape[0] * h);
  if (!operands.Accumulates("positions_grad")) {
    std::fill(gradient, gradient + table.shape[0] * h, T{0});
  }
  for (int64_t t = 0; t < tokens; ++t) {
    T* row = gradient + (p.first + t / batch) * h;
    for (int64_t j = 0; j < h; ++j) row[j] += dy[t * h + j];
  }
  return Status::Ok();
}

}  // namespace

Status CountTokens(const OpCall& call) {
  const Operands operands(call);
  const int64_t n = operands.View("labels")->elements();
  const int32_t* labels = operands.Get<int32_t>("labels", n);
  *operands.Get<int64_t>("count", 1) =
      n - static_cast<int64_t>(std::count(labels, labels + n, kMaskedLabel));
  return Status::Ok();
}

Status InvertCount(const OpCall& call) {
  const Operands operands(call);
  const int64_t count = *operands.Get<int64_t>("count", 1);
  *operands.Get<double>("inverse", 1) = 1.0 / static_cast<double>(std::max<int64_t>(count, 1));
  return Status::Ok();
}

Status Embed(const OpCall& call) {
  return ForDType(call, "weight", [&](auto zero) { return EmbedT<decltype(zero)>(call); });
}
Status EmbedGrad(const OpCall& call) {
  return ForDType(call, "dy", [&](auto zero) { return EmbedGradT<decltype(zero)>(call); });
}
Status AddPositions(const OpCall& call) {
  return ForDType(call, "y", [&](auto zero) { return AddPositionsT<decltype(zero)>(call); });
}
Status PositionsGrad(const OpCall& call) {
  return ForDType(call, "dy", [&](auto zero) { return PositionsGradT<decltype(zero)>(call); });
}

}  // namespace meshwright::runtime::cpu
