// Small random models, splits and clusters for the tests of the search.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "planner/ir/model_spec.h"
#include "planner/lower/make_plan.h"

namespace meshwright::planner {

class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(engine_() % static_cast<uint64_t>(high - low + 1));
  }
  bool Coin() { return Between(0, 1) == 1; }
  int64_t Pick(const std::vector<int64_t>& choices) {
    return choices[static_cast<size_t>(Between(0, static_cast<int64_t>(choices.size()) - 1))];
  }

 private:
  std::mt19937_64 engine_;
};

inline LayerSpec RandomLayer(Dice& dice) {
  LayerSpec layer;
  layer.attention.heads = dice.Pick({2, 4, 8});
  layer.attention.kv_heads = layer.attention.heads / dice.Pick({1, 2});
  layer.attention.head_dim = dice.Pick({8, 16});
  layer.attention.qkv_bias = dice.Coin();
  layer.attention.output_bias = dice.Coin();
  layer.mlp.ffn = 8 * dice.Between(2, 12);
  layer.mlp.gated = dice.Coin();
  layer.mlp.activation = layer.mlp.gated ? Activation::kSilu : Activation::kGeluTanh;
  layer.mlp.bias = dice.Coin();
  return layer;
}

/// A dense decoder with `layers` layers of one or two kinds; every kind is used.
inline ModelSpec RandomModel(Dice& dice, int64_t layers, int kinds) {
  kinds = static_cast<int>(std::min<int64_t>(kinds, layers));
  ModuleSpec s;
  s.name = "language";
  s.hidden = 8 * dice.Between(3, 9);
  s.norm = dice.Coin() ? NormKind::kRmsNorm : NormKind::kLayerNorm;
  s.positions = dice.Coin() ? PositionKind::kRotary : PositionKind::kLearned;
  s.max_positions = 64;
  s.vocab = dice.Between(50, 300);
  s.tied_embeddings = dice.Coin();
  for (int k = 0; k < kinds; ++k) s.layer_kinds.push_back(RandomLayer(dice));
  for (int64_t l = 0; l < layers; ++l)
    s.layers.push_back(static_cast<int>(dice.Between(0, kinds - 1)));
  for (int k = 0; k < kinds && k < layers; ++k) s.layers[static_cast<size_t>(k)] = k;
  ModelSpec m;
  m.name = "random";
  m.family = "llama";
  m.modules = {s};
  return m;
}

/// `layers` in `stages` parts of at least one each, at random places.
inline std::vector<int64_t> RandomParts(Dice& dice, int64_t layers, int64_t stages) {
  std::vector<int64_t> parts(static_cast<size_t>(stages), 1);
  for (int64_t rest = layers - stages; rest > 0; --rest) {
    ++parts[static_cast<size_t>(dice.Between(0, stages - 1))];
  }
  return parts;
}

/// A split that CheckPlan may or may not accept.
inline SplitRequest RandomSplit(Dice& dice, int64_t layers) {
  SplitRequest r;
  r.tp = dice.Pick({1, 2, 4});
  r.pp = dice.Pick({1, 2, 3, 4});
  r.dp = dice.Pick({1, 2, 3});
  r.virtual_stages = r.pp > 1 ? dice.Pick({1, 1, 2, 3}) : 1;
  r.micro_batch = dice.Pick({1, 2});
  r.global_batch = r.dp * r.micro_batch * dice.Between(1, 9);
  r.sequence = dice.Pick({8, 16, 32});
  r.sequence_parallel = r.tp > 1 && dice.Coin();
  if (r.tp == 2 || (r.tp > 1 && !*r.sequence_parallel)) {
    r.tensor_chunks = dice.Pick({1, 2, 4});
  } else if (r.tp > 2) {
    r.tensor_chunks = r.micro_batch == 1 ? r.tp : 2 * r.tp;
  }
  r.sharding = dice.Coin() ? Sharding::kZero1 : Sharding::kNone;
  for (int64_t p = 0; p < r.pp; ++p) {
    r.recompute.push_back(static_cast<Recompute>(dice.Between(0, 2)));
  }
  if (r.pp * r.virtual_stages <= layers)
    r.layers = RandomParts(dice, layers, r.pp * r.virtual_stages);
  r.dtype = static_cast<DType>(dice.Between(0, 2));
  r.optimizer = dice.Coin() ? OptimizerKind::kAdamW : OptimizerKind::kSgd;
  r.vocab_quantum = dice.Pick({1, 8, 64});
  r.bucket_elements = dice.Pick({1, 3000, 20000, 10000000});
  r.logits_chunk_bytes = dice.Pick({1, 4096, kLogitsChunkBytes});
  return r;
}

/// Two hosts of two GPUs: NVLink inside, one NIC a GPU between them; the rates are invented.
inline constexpr const char* kTwoHosts = R"(
meshwright_cluster: 1
name: two-hosts
sources:
  test: {origin: assumed, text: "invented for a test"}
hosts:
  - name: host
    count: 2
    device: {kind: gpu, name: H100-SXM, profile: h100-sxm, memory: 80 GB, source: test}
    nodes: [numa0, nvlink_switch0, "gpu[0-1]", "nic[0-1]", "rail[0-1]"]
    links:
      - {from: "gpu[0-1]", to: nvlink_switch0, kind: nvlink, label: NV18, each_way: 450 GB/s, latency: 0.5 us, source: test, latency_source: test}
      - {from: "gpu[0-1]", to: numa0, kind: pcie, each_way: 63 GB/s, latency: 0.5 us, source: test, latency_source: test}
      - {from: "nic[0-1]", to: numa0, kind: pcie, each_way: 63 GB/s, latency: 0.5 us, source: test, latency_source: test}
      - {from: "nic[0-1]", to: "rail[0-1]", kind: network, each_way: 100 Gb/s, latency: 1 us, source: test, latency_source: test}
fabric: {name: test, oversubscription: 1, source: test, spine_latency: 1 us, latency_source: test}
)";

}  // namespace meshwright::planner
