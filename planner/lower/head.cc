#include <algorithm>

#include "planner/lower/passes.h"

namespace meshwright::planner::lower {
namespace {

GraphTensor Scalar8(Scalar cell, DType dtype, const std::string& name) {
  GraphTensor t;
  t.view = {name, dtype, {1}, Region::kScalar, 8 * static_cast<int64_t>(cell)};
  t.role = Role::kExternal;
  t.placed = true;
  return t;
}

/// Builds the loss part of the head over row chunks of the gathered input.
class HeadStep {
 public:
  HeadStep(const SplitFacts& split, const ItemParameters& parameters, bool first, int64_t chunks)
      : split_(split),
        parameters_(parameters),
        first_(first),
        chunks_(chunks),
        graph_(BuildHead(split, parameters)) {}

  Graph Run() {
    Shard(graph_, split_);
    graph_.name = "head";
    graph_.phase = Phase::kBackward;
    const int n = graph_.output;
    OpAttributes tensor_group;
    tensor_group.communicator = 0;
    int full = n;
    if (split_.sequence_parallel) {
      full = FullRows("n.gathered");
      graph_.AddNode(OpKind::kAllGather, {Read(n), Write(full)}, tensor_group);
    }
    GraphTensor labels;
    labels.view = {"labels", DType::kI32, {split_.sequence, split_.micro_batch}, Region::kIo, 0};
    labels.role = Role::kExternal;
    labels.placed = true;
    labels_ = graph_.AddTensor(labels);
    loss_ = graph_.AddTensor(Scalar8(Scalar::kLossSum, DType::kF64, "loss"));
    inverse_ = graph_.AddTensor(Scalar8(Scalar::kInverseCount, DType::kF64, "inverse_count"));
    const int dfull = FullRows("dn");
    for (int64_t c = 0; c < chunks_; ++c) Chunk(c, full, dfull);
    int dn = dfull;
    if (split_.sequence_parallel) {
      GraphTensor t = graph_.tensor(n);
      t.view.name = "dn.local";
      t.storage = -1;
      dn = graph_.AddTensor(t);
      graph_.AddNode(OpKind::kReduceScatter, {Read(dfull), Write(dn)}, tensor_group);
    } else if (split_.tp > 1) {
      graph_.AddNode(OpKind::kAllReduce, {InPlace(dfull)}, tensor_group);
    }
    FinishNorm(dn);
    return std::move(graph_);
  }

 private:
  int FullRows(const std::string& name) {
    GraphTensor t;
    t.view.name = name;
    t.view.dtype = split_.dtypes.compute;
    t.view.shape = {split_.sequence, split_.micro_batch, split_.module->hidden};
    return graph_.AddTensor(t);
  }

  int RowSlice(int whole, int64_t c, const std::string& name) {
    if (chunks_ == 1) return whole;
    GraphTensor t = graph_.tensor(whole);
    t.view.name = name;
    t.view.shape[0] /= chunks_;
    t.view.offset += c * t.view.bytes();
    return graph_.AddTensor(t);
  }

  int VocabularyParameter(bool gradient) {
    const char* name = split_.module->tied_embeddings ? "embedding.weight" : "head.weight";
    const int index = parameters_.Find(name);
    const ItemParameter& p = parameters_.list[static_cast<size_t>(index)];
    const DType dtype = gradient ? split_.dtypes.gradient : split_.dtypes.compute;
    GraphTensor t;
    t.view = {gradient ? std::string(name) + ".grad" : name, dtype, p.local_shape,
              gradient ? Region::kGradient : Region::kParameter, p.offset * SizeOf(dtype)};
    t.role = gradient ? Role::kGradient : Role::kParameter;
    t.parameter = index;
    t.placed = true;
    return graph_.AddTensor(t);
  }

  void Chunk(int64_t c, int full, int dfull) {
    const int64_t rows = split_.sequence / chunks_ * split_.micro_batch;
    const int64_t columns = split_.padded_vocab / split_.tp;
    const int x = RowSlice(full, c, "n.rows");
    const int dx = RowSlice(dfull, c, "dn.rows");
    if (weight_ < 0) {
      weight_ = VocabularyParameter(false);
      weight_grad_ = VocabularyParameter(true);
      GraphTensor logits;
      logits.view.name = "logits";
      logits.view.dtype = split_.dtypes.compute;
      logits.view.shape = {split_.sequence / chunks_, split_.micro_batch, columns};
      logits_ = graph_.AddTensor(logits);
      GraphTensor stats;
      stats.view.name = "softmax.stats";
      stats.view.dtype = split_.dtypes.statistics;
      stats.view.shape = {rows, 3};
      stats_ = graph_.AddTensor(stats);
      stats.view.name = "softmax.stats.all";
      stats.view.shape = {split_.tp, rows, 3};
      stats.storage = -1;
      all_stats_ = split_.tp > 1 ? graph_.AddTensor(stats) : stats_;
    }
    OpAttributes a;
    a.vocab = split_.module->vocab;
    a.row_begin = c * rows;
    a.batch = split_.micro_batch;
    graph_.AddNode(OpKind::kLinear, {Read(x), Read(weight_), Absent(), Write(logits_)});
    graph_.AddNode(OpKind::kSoftmaxStats, {Read(logits_), Read(labels_), Write(stats_)}, a);
    if (split_.tp > 1) {
      OpAttributes group;
      group.communicator = 0;
      graph_.AddNode(OpKind::kAllGather, {Read(stats_), Write(all_stats_)}, group);
    }
    const Access add = first_ && c == 0 ? Access::kWrite : Access::kAccumulate;
    graph_.AddNode(
        OpKind::kCrossEntropyGrad,
        {Read(all_stats_), Read(labels_), InPlace(logits_), {loss_, add}, Read(inverse_)}, a);
    graph_.AddNode(OpKind::kLinearInputGrad, {Read(logits_), Read(weight_), Write(dx)});
    graph_.AddNode(OpKind::kLinearWeightGrad, {Read(logits_), Read(x), {weight_grad_, add}});
  }

  void FinishNorm(int dn) {
    Node norm;
    for (const Node& node : graph_.nodes) {
      if (node.kind == OpKind::kNorm) norm = node;
    }
    const Access add = first_ ? Access::kWrite : Access::kAccumulate;
    const auto gradient = [&](int parameter) -> Operand {
      if (parameter < 0) return {-1, Access::kAccumulate};
      GraphTensor t = graph_.tensor(parameter);
      const ItemParameter& p = parameters_.list[static_cast<size_t>(t.parameter)];
      t.view.name += ".grad";
      t.view.dtype = split_.dtypes.gradient;
      t.view.region = p.late_area ? Region::kGradientLate : Region::kGradient;
      t.view.offset = p.offset * SizeOf(split_.dtypes.gradient);
      t.role = Role::kGradient;
      t.storage = -1;
      return {graph_.AddTensor(t), add};
    };
    GraphTensor out = graph_.tensor(graph_.input);
    out.view.name = "dx.out";
    out.role = Role::kOutput;
    out.storage = -1;
    const int dx = graph_.AddTensor(out);
    const Operand gamma_grad = gradient(norm.operands[2].tensor);
    const Operand beta_grad = gradient(norm.operands[3].tensor);
    graph_.AddNode(OpKind::kNormGrad,
                   {Read(dn), Read(graph_.input), Read(norm.operands[6].tensor),
                    Read(norm.operands[2].tensor), Absent(), Write(dx), gamma_grad, beta_grad},
                   norm.attributes);
    graph_.output = dx;
  }

  const SplitFacts& split_;
  const ItemParameters& parameters_;
  const bool first_;
  const int64_t chunks_;
  Graph graph_;
  int labels_ = -1, loss_ = -1, inverse_ = -1;
  int weight_ = -1, weight_grad_ = -1, logits_ = -1, stats_ = -1, all_stats_ = -1;
};

}  // namespace

int64_t HeadRowChunks(const SplitFacts& split) {
  const int64_t logits = split.sequence * split.micro_batch * (split.padded_vocab / split.tp) *
                         SizeOf(split.dtypes.compute);
  constexpr int64_t kMostChunks = 1024;  // a block has six ops a chunk
  int64_t chunks = 1;
  while (logits / chunks > split.logits_chunk_bytes && chunks < kMostChunks &&
         split.sequence % (2 * chunks) == 0) {
    chunks *= 2;
  }
  return chunks;
}

Graph BuildHeadStep(const SplitFacts& split, const ItemParameters& parameters, bool first,
                    int64_t row_chunks) {
  return HeadStep(split, parameters, first, row_chunks).Run();
}

}  // namespace meshwright::planner::lower
