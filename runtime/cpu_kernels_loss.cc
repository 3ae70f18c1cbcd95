// Vocabulary-parallel cross-entropy in two steps: every rank reduces its columns to three numbers a
// row; the numbers of all ranks, in rank order, give loss and gradient without further exchange.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/cpu_kernels.h"

namespace meshwright::runtime::cpu {
namespace {

/// The head's rows on this rank and which of its columns are real.
struct LogitShape {
  int64_t rows = 0;
  int64_t columns = 0;       ///< local, padding included
  int64_t first_column = 0;  ///< global index of local column 0
  int64_t valid = 0;         ///< local columns within the true vocabulary
};

LogitShape ShapeOf(const OpCall& call) {
  const planner::TensorView& logits = *Operands(call).View("logits");
  LogitShape s;
  s.columns = Width(logits);
  s.rows = RowCount(logits);
  s.first_column = call.rank.binding->tp_index * s.columns;
  s.valid = std::clamp<int64_t>(call.op.attributes.vocab - s.first_column, 0, s.columns);
  return s;
}

/// Labels of the rows of this call (a chunk of the rows of the micro-batch).
const int32_t* LabelsOf(const OpCall& call, int64_t rows) {
  const Operands operands(call);
  const int64_t all = operands.View("labels")->elements();
  const int64_t begin = all == rows ? 0 : call.op.attributes.row_begin;
  MW_CHECK(begin >= 0 && begin + rows <= all);
  return operands.Get<int32_t>("labels", all) + begin;
}

template <typename T>
Status SoftmaxStatsT(const OpCall& call) {
  const Operands operands(call);
  const LogitShape s = ShapeOf(call);
  const T* logits = operands.Get<T>("logits", s.rows * s.columns);
  const int32_t* labels = LabelsOf(call, s.rows);
  T* stats = operands.Get<T>("stats", s.rows * 3);
  for (int64_t row = 0; row < s.rows; ++row) {
    const T* z = logits + row * s.columns;
    const int64_t label = labels[row];
    if (label != kMaskedLabel && (label < 0 || label >= call.op.attributes.vocab)) {
      return RunFailed(
          fmt::format("{}: label {} in row {} is outside the vocabulary of {} (or {}: not "
                      "counted); check the data",
                      Where(call), label, row, call.op.attributes.vocab, kMaskedLabel));
    }
    // A rank may hold padding only: its maximum is -inf and its sum 0.
    T top = -std::numeric_limits<T>::infinity();
    for (int64_t j = 0; j < s.valid; ++j) top = std::max(top, z[j]);
    double sum = 0.0;
    for (int64_t j = 0; j < s.valid; ++j) sum += static_cast<double>(std::exp(z[j] - top));
    const int64_t local = label - s.first_column;
    stats[row * 3] = top;
    stats[row * 3 + 1] = static_cast<T>(sum);
    stats[row * 3 + 2] = local >= 0 && local < s.valid ? z[local] : T{0};
  }
  return Status::Ok();
}

/// Maximum, sum of exponentials and target logit of one row over all ranks, in rank order.
struct RowStats {
  double top = -std::numeric_limits<double>::infinity();
  double sum = 0.0;
  double target = 0.0;
};

template <typename T>
RowStats Combine(const T* stats, int64_t ranks, int64_t rows, int64_t row) {
  RowStats all;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    all.top = std::max(all.top, static_cast<double>(stats[(rank * rows + row) * 3]));
  }
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const T* one = stats + (rank * rows + row) * 3;
    all.sum += static_cast<double>(one[1]) * std::exp(static_cast<double>(one[0]) - all.top);
    all.target += static_cast<double>(one[2]);
  }
  return all;
}

template <typename T>
Status CrossEntropyGradT(const OpCall& call) {
  const Operands operands(call);
  const LogitShape s = ShapeOf(call);
  const int64_t ranks = operands.View("stats")->elements() / (s.rows * 3);
  const T* stats = operands.Get<T>("stats", ranks * s.rows * 3);
  const int32_t* labels = LabelsOf(call, s.rows);
  T* logits = operands.Get<T>("logits", s.rows * s.columns);
  const double inverse = *operands.Get<double>("inverse", 1);
  double loss = 0.0;
  for (int64_t row = 0; row < s.rows; ++row) {
    T* z = logits + row * s.columns;
    if (labels[row] == kMaskedLabel) {
      std::fill(z, z + s.columns, T{0});
      continue;
    }
    const RowStats all = Combine(stats, ranks, s.rows, row);
    loss += std::log(all.sum) + all.top - all.target;
    const T top = static_cast<T>(all.top);
    const T factor = static_cast<T>(inverse / all.sum);
    for (int64_t j = 0; j < s.valid; ++j) z[j] = std::exp(z[j] - top) * factor;
    std::fill(z + s.valid, z + s.columns, T{0});
    const int64_t local = labels[row] - s.first_column;
    if (local >= 0 && local < s.valid) z[local] -= static_cast<T>(inverse);
  }
  double* total = operands.Get<double>("loss", 1);
  *total = operands.Accumulates("loss") ? *total + loss : loss;
  return Status::Ok();
}

}  // namespace

Status SoftmaxStats(const OpCall& call) {
  return ForDType(call, "logits", [&](auto zero) { return SoftmaxStatsT<decltype(zero)>(call); });
}
Status CrossEntropyGrad(const OpCall& call) {
  return ForDType(call, "logits",
                  [&](auto zero) { return CrossEntropyGradT<decltype(zero)>(call); });
}

}  // namespace meshwright::runtime::cpu
