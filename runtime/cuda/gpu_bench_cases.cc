#include "runtime/cuda/gpu_bench_cases.h"

#include <cmath>
#include <string>
#include <utility>

namespace meshwright::runtime::cuda {
namespace {

using planner::AttentionShape;
using planner::DType;
using planner::OpKind;

// Widths between those of known models; rows are the tokens of small to large micro-batches.
constexpr int64_t kRows[] = {1024, 4096, 16384};
constexpr int64_t kHidden = 2560;
constexpr int64_t kInner = 9216;
constexpr int64_t kVocabulary = 96000;

BenchOperand Bf16(std::string name, std::vector<int64_t> shape) {
  return {std::move(name), std::move(shape), DType::kBf16};
}
BenchOperand Fp32(std::string name, std::vector<int64_t> shape) {
  return {std::move(name), std::move(shape), DType::kF32};
}

void AddNorms(int64_t rows, int64_t h, std::vector<BenchCase>* cases) {
  for (const bool layer : {false, true}) {
    BenchCase c;
    c.attributes.norm = layer ? planner::NormKind::kLayerNorm : planner::NormKind::kRmsNorm;
    c.attributes.eps = 1e-5;
    const BenchOperand stat = Fp32("stat", {layer ? 2 * rows : rows});
    c.kind = OpKind::kNorm;
    c.operands = {Bf16("r", {rows, h}),  Bf16("delta", {rows, h}), Bf16("gamma", {h}),
                  Bf16("r1", {rows, h}), Bf16("n", {rows, h}),     stat};
    if (layer) c.operands.push_back(Bf16("beta", {h}));
    cases->push_back(c);
    c.kind = OpKind::kNormApply;
    c.operands = {Bf16("r1", {rows, h}), stat, Bf16("gamma", {h}), Bf16("n", {rows, h})};
    if (layer) c.operands.push_back(Bf16("beta", {h}));
    cases->push_back(c);
    c.kind = OpKind::kNormGrad;
    c.operands = {Bf16("dn", {rows, h}),  Bf16("r1", {rows, h}),    stat,
                  Bf16("gamma", {h}),     Bf16("dr_in", {rows, h}), Bf16("dr_out", {rows, h}),
                  Fp32("gamma_grad", {h})};
    if (layer) c.operands.push_back(Fp32("beta_grad", {h}));
    cases->push_back(c);
  }
}

void AddElementwise(int64_t rows, int64_t h, std::vector<BenchCase>* cases) {
  cases->push_back(
      {OpKind::kAdd, {}, {Bf16("a", {rows, h}), Bf16("b", {rows, h}), Bf16("out", {rows, h})}});
  cases->push_back({OpKind::kCopy, {}, {Bf16("a", {rows, h}), Bf16("out", {rows, h})}});
  cases->push_back({OpKind::kBiasAdd, {}, {Bf16("bias", {h}), Bf16("y", {rows, h})}});
  cases->push_back({OpKind::kBiasGrad, {}, {Bf16("dy", {rows, h}), Fp32("bias_grad", {h})}});
  BenchCase rotary;
  rotary.kind = OpKind::kRotary;
  planner::OpAttributes& a = rotary.attributes;
  a.head_dim = 80;
  a.heads = h / a.head_dim;
  a.kv_heads = a.heads / 4;
  a.sequence = std::min<int64_t>(rows, 2048);
  a.batch = rows / a.sequence;
  a.rope_theta = 10000.0;
  rotary.operands = {Bf16("qkv", {a.sequence, a.batch, (a.heads + 2 * a.kv_heads) * a.head_dim})};
  cases->push_back(rotary);
}

void AddActivations(int64_t rows, int64_t f, std::vector<BenchCase>* cases) {
  for (const auto& [activation, gated] : {std::pair{planner::Activation::kSilu, true},
                                          std::pair{planner::Activation::kGeluTanh, true},
                                          std::pair{planner::Activation::kGeluTanh, false}}) {
    BenchCase c;
    c.attributes.activation = activation;
    c.attributes.gated = gated;
    const int64_t width = gated ? 2 * f : f;
    c.kind = OpKind::kActivation;
    c.operands = {Bf16("u", {rows, width}), Bf16("s", {rows, f})};
    cases->push_back(c);
    c.kind = OpKind::kActivationGrad;
    c.operands = {Bf16("u", {rows, width}), Bf16("ds", {rows, f}), Bf16("du", {rows, width})};
    cases->push_back(c);
  }
}

void AddEmbedding(int64_t rows, int64_t h, std::vector<BenchCase>* cases) {
  BenchCase c;
  c.attributes.vocab = kVocabulary;
  const BenchOperand tokens = {"tokens", {rows}, DType::kI32};
  c.kind = OpKind::kEmbed;
  c.operands = {tokens, Bf16("weight", {kVocabulary, h}), Bf16("y", {rows, h})};
  cases->push_back(c);
  c.kind = OpKind::kEmbedGrad;
  c.operands = {tokens, Bf16("dy", {rows, h}), Fp32("weight_grad", {kVocabulary, h})};
  cases->push_back(c);
  BenchCase positions;
  positions.attributes.batch = 4;
  positions.kind = OpKind::kAddPositions;
  positions.operands = {Bf16("positions", {rows / 4, h}), Bf16("y", {rows, h})};
  cases->push_back(positions);
  positions.kind = OpKind::kPositionsGrad;
  positions.operands = {Bf16("dy", {rows, h}), Fp32("positions_grad", {rows / 4, h})};
  cases->push_back(positions);
}

void AddLoss(int64_t rows, std::vector<BenchCase>* cases) {
  BenchCase c;
  c.attributes.vocab = kVocabulary;
  const BenchOperand labels = {"labels", {rows}, DType::kI32};
  c.kind = OpKind::kSoftmaxStats;
  c.operands = {Bf16("logits", {rows, kVocabulary}), labels, Fp32("stats", {rows, 3})};
  cases->push_back(c);
  c.kind = OpKind::kCrossEntropyGrad;
  c.operands = {Bf16("logits", {rows, kVocabulary}),
                labels,
                Fp32("stats", {rows, 3}),
                {"loss", {1}, DType::kF64},
                {"inverse", {1}, DType::kF64}};
  cases->push_back(c);
}

void AddStep(int64_t elements, std::vector<BenchCase>* cases) {
  const BenchOperand gradient = Fp32("gradient", {elements});
  cases->push_back({OpKind::kSquaredNorm, {}, {gradient, {"norm", {1}, DType::kF64}}});
  cases->push_back({OpKind::kOptimizerStep,
                    {},
                    {Bf16("parameter", {elements}),
                     gradient,
                     Fp32("state", {3 * elements}),  // first and second moments, master weights
                     {"clip", {1}, DType::kF64},
                     {"learning_rate", {1}, DType::kF64},
                     {"step", {1}, DType::kI64}}});
}

}  // namespace

std::vector<BenchCase> KernelCases() {
  std::vector<BenchCase> cases;
  for (const int64_t rows : kRows) {
    AddNorms(rows, kHidden, &cases);
    AddElementwise(rows, kHidden, &cases);
    AddActivations(rows, kInner, &cases);
    AddEmbedding(rows, kHidden, &cases);
  }
  for (const int64_t rows : {128, 512, 1536}) AddLoss(rows, &cases);
  for (const int64_t elements : {4 << 20, 24 << 20, 96 << 20}) AddStep(elements, &cases);
  return cases;
}

std::vector<GpuProductSample> ProductCases() {
  constexpr OpKind kKinds[] = {OpKind::kLinear, OpKind::kLinearInputGrad,
                               OpKind::kLinearWeightGrad};
  constexpr int64_t kWidths[] = {1280, 2560, 3584, 5120, 7168, 10240, 18432};
  constexpr int64_t kSmallWidths[] = {640, 1152, 1920, 2304, 4480};  // of small models
  constexpr double kLeastFlops = 1e9;                                // below, it is a launch
  constexpr double kMostFlops =
      1.3e12;  // about 2 ms: the limit is the time that measuring may take
  std::vector<GpuProductSample> cases;
  size_t turn = 0;
  const auto add = [&](OpKind kind, int64_t tokens, int64_t in, int64_t out) {
    GpuProductSample c;
    c.kind = kind;
    c.m = kind == OpKind::kLinearWeightGrad ? out : tokens;
    c.n = kind == OpKind::kLinear ? out : in;
    c.k = kind == OpKind::kLinear ? in : kind == OpKind::kLinearInputGrad ? out : tokens;
    const double flops =
        2.0 * static_cast<double>(c.m) * static_cast<double>(c.n) * static_cast<double>(c.k);
    if (flops >= kLeastFlops && flops <= kMostFlops) cases.push_back(c);
  };
  for (const int64_t tokens : {1024, 3072, 6144, 12288, 20480}) {
    for (const int64_t in : kWidths) {
      for (const int64_t out : kWidths) {
        // A third of the passes of every second shape: the fit has five constants.
        if (turn++ % 2 == 0) add(kKinds[turn / 2 % 3], tokens, in, out);
      }
    }
  }
  for (const OpKind kind : kKinds) {
    for (const int64_t in : kWidths) add(kind, 1024, in, kVocabulary);  // chunks of the head
  }
  turn = 0;
  for (const int64_t tokens : {512, 1024, 2048}) {
    for (const int64_t in : kSmallWidths) {
      for (const int64_t out : kSmallWidths) add(kKinds[turn++ % 3], tokens, in, out);
    }
  }
  for (const OpKind kind : kKinds) {
    for (const int64_t off : {1, 2, 4, 8}) {  // rows of 2, 4, 8 or 16 bytes more than a multiple
      add(kind, 2048, 1536 + off, 6144);
      for (const int64_t tokens : {1024, 2048}) add(kind, tokens, 1024, 40960 + off);
    }
  }
  return cases;
}

std::vector<AttentionShape> AttentionCases() {
  constexpr int64_t kTokens = 8192;
  std::vector<AttentionShape> cases;
  for (const int64_t head_dim : {64, 96, 128, 256}) {
    for (const int64_t sequence : {1024, 2048, 4096, 8192}) {
      for (const int64_t groups : {1, 4}) {
        AttentionShape s;
        s.sequence = sequence;
        s.batch = kTokens / sequence;
        s.heads = head_dim <= 64 ? 32 : head_dim <= 96 ? 24 : head_dim <= 128 ? 20 : 12;
        s.kv_heads = s.heads / groups;
        s.head_dim = head_dim;
        s.scale = 1.0 / std::sqrt(static_cast<double>(head_dim));
        cases.push_back(s);
      }
    }
  }
  return cases;
}

BenchCase AttentionCase(const AttentionShape& s, bool backward, bool deterministic) {
  BenchCase c;
  c.kind = backward ? OpKind::kAttentionGrad : OpKind::kAttention;
  planner::OpAttributes& a = c.attributes;
  a.sequence = s.sequence, a.batch = s.batch;
  a.heads = s.heads, a.kv_heads = s.kv_heads;
  a.head_dim = s.head_dim, a.scale = s.scale;
  a.causal = s.causal, a.window = s.window;
  const int64_t width = s.heads * s.head_dim;
  const int64_t scratch =
      planner::AttentionWorkspaceBytes(s, DType::kBf16, backward, deterministic);
  c.operands = {
      Bf16("qkv", {s.sequence, s.batch, s.packed()}), Bf16("o", {s.sequence, s.batch, width}),
      Fp32("lse", {s.batch, s.heads, s.sequence}), Fp32("workspace", {(scratch + 3) / 4})};
  if (backward) {
    c.operands.push_back(Bf16("do", {s.sequence, s.batch, width}));
    c.operands.push_back(Bf16("dqkv", {s.sequence, s.batch, s.packed()}));
  }
  return c;
}

}  // namespace meshwright::runtime::cuda
