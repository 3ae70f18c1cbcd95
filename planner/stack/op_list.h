// OpList: appends ops of the common forms; internal to the item builders.
#pragma once

#include <cstdint>

#include "planner/stack/item_ops.h"

namespace meshwright::planner::stack::internal {

/// A product Y[m, n] = X[m, k] W[k, n] with weights, its gradients and its casts.
struct Linear {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t batch = 1;  ///< expert products: one an expert
  bool bias = false;
  bool low_precision = true;  ///< runs in the split's format; else in bf16
};

class OpList {
 public:
  OpList(const ItemContext& context, ItemOps* item) : context_(context), item_(*item) {
    constexpr size_t kUsual = 64;  // ops of a mixture of experts
    item_.ops.reserve(kUsual);
  }

  /// Forward product, gradient of the input, gradient of the weights.
  void AddLinear(const Linear& linear);
  /// A kernel bounded by memory: bytes read and written together.
  void AddPointwise(Phase phase, double bytes, int launches = 1, bool core = false);
  /// A pass of a norm over `bytes`, by the kernels of the stack.
  void AddNormPass(Phase phase, double bytes);
  /// Softmax or dropout of attention scores: bytes read and written.
  void AddScores(Phase phase, double bytes);
  /// A product without weights (attention scores), in bf16.
  void AddBatchedProduct(Phase phase, int64_t batch, int64_t m, int64_t n, int64_t k);
  void AddAttention(Phase phase, double flops, int64_t head_dim, int64_t keys, bool causal,
                    double bytes);
  void AddCollective(Phase phase, cost::CollectiveKind kind, double bytes, Group group,
                     bool hidden);
  void AddParameters(double dense) { item_.parameters.dense += dense; }
  /// Kept in every mode but full recomputation.
  void Save(double bytes) {
    item_.saved[static_cast<size_t>(LayerMode::kKeep)] += bytes;
    item_.saved[static_cast<size_t>(LayerMode::kSelective)] += bytes;
    item_.saved[static_cast<size_t>(LayerMode::kOffload)] += bytes;
  }
  /// Kept unless it is recomputed selectively.
  void SaveCore(double bytes) {
    item_.saved[static_cast<size_t>(LayerMode::kKeep)] += bytes;
    item_.saved[static_cast<size_t>(LayerMode::kOffload)] += bytes;
  }
  void Transient(double bytes) {
    item_.transient = item_.transient < bytes ? bytes : item_.transient;
  }

  /// At the backward pass of its last product: gradients of activations, parameters of the product.
  void Working(double bytes, double parameters) {
    item_.working = item_.working < bytes ? bytes : item_.working;
    item_.last_product += parameters;
  }

  const ItemContext& context() const { return context_; }
  std::vector<StackOp>& ops() { return item_.ops; }

 private:
  StackOp& Append(Phase phase, cost::WorkKind kind);
  void AddProduct(Phase phase, int64_t m, int64_t n, int64_t k, int64_t batch, bool low);
  void AddCast(Phase phase, double elements);

  const ItemContext& context_;
  ItemOps& item_;
};

/// Experts in place of the dense MLP: those that tokens are routed to, and those that see all.
void AddExperts(OpList& list, const MlpSpec& mlp, const MoeSpec& moe, ItemOps* item);
void AddSharedExperts(OpList& list, const MlpSpec& mlp, const MoeSpec& moe);
/// A dense MLP of width `ffn` cut over the tensor group.
void AddDenseMlp(OpList& list, const MlpSpec& mlp, int64_t ffn);

}  // namespace meshwright::planner::stack::internal
