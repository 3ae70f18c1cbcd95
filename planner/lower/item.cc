#include "planner/lower/item.h"

#include <cmath>

namespace meshwright::planner::lower {
namespace {

/// Collects parameters and assigns offsets in the two areas of the item.
class Collector {
 public:
  explicit Collector(const SplitFacts& split) : split_(split) {}

  /// A parameter replicated over tensor ranks. `sequence_sliced`: its gradient is partial over the
  /// tensor group under sequence parallelism (fed by a slice of the sequence).
  void Replicated(const std::string& name, std::vector<int64_t> shape, InitKind init, bool decay,
                  bool sequence_sliced, double init_std = 0.0) {
    ItemParameter p;
    p.name = name;
    p.global_shape = p.local_shape = std::move(shape);
    p.init = init;
    p.init_std = init_std;
    p.decay = decay;
    if (sequence_sliced && split_.sequence_parallel && split_.tp > 1) {
      p.late = LateReduction::kTensorPartial;
      p.late_area = true;
    }
    Place(std::move(p));
  }

  void Cut(const std::string& name, std::vector<int64_t> shape, int32_t axis,
           std::vector<ParameterPart> parts, InitKind init, bool decay, double init_std = 0.0) {
    ItemParameter p;
    p.name = name;
    p.global_shape = std::move(shape);
    p.local_shape = p.global_shape;
    p.init = init;
    p.init_std = init_std;
    p.decay = decay;
    p.axis = axis;
    p.parts = std::move(parts);
    int64_t local = 0;
    for (const ParameterPart& part : p.parts) {
      local += part.extent * part.copies / split_.tp;
      if (part.copies > 1) p.late = LateReduction::kKeyValueCopies;
    }
    p.local_shape[static_cast<size_t>(axis)] = local;
    Place(std::move(p));
  }

  ItemParameter& back() { return result_.list.back(); }
  ItemParameters Take() { return std::move(result_); }

 private:
  void Place(ItemParameter p) {
    int64_t& area = p.late_area ? result_.late_elements : result_.main_elements;
    p.offset = area;
    area = RoundUp(area + p.elements(), kElementAlignment);
    result_.list.push_back(std::move(p));
  }

  const SplitFacts& split_;
  ItemParameters result_;
};

void AddNorm(Collector& c, const ModuleSpec& m, const std::string& name) {
  c.Replicated(name + ".weight", {m.hidden}, m.norm_one_plus ? InitKind::kZeros : InitKind::kOnes,
               false, true);
  if (m.norm == NormKind::kLayerNorm) {
    c.Replicated(name + ".bias", {m.hidden}, InitKind::kZeros, false, true);
  }
}

void AddLayer(Collector& c, const SplitFacts& split, const LayerSpec& layer) {
  const ModuleSpec& m = *split.module;
  const AttentionSpec& a = layer.attention;
  const double output_std =
      m.init_std / std::sqrt(2.0 * static_cast<double>(split.residual_layers));
  const int64_t q = a.heads * a.head_dim;
  const int64_t k = a.kv_heads * a.head_dim;
  const std::vector<ParameterPart> qkv = {{q, 1}, {k, split.kv_copies}, {k, split.kv_copies}};

  AddNorm(c, m, "norm1");
  c.Cut("attention.qkv.weight", {q + 2 * k, m.hidden}, 0, qkv, InitKind::kNormal, true, m.init_std);
  if (a.qkv_bias) c.Cut("attention.qkv.bias", {q + 2 * k}, 0, qkv, InitKind::kZeros, false);
  c.Cut("attention.output.weight", {m.hidden, q}, 1, {{q, 1}}, InitKind::kNormal, true, output_std);
  if (a.output_bias) {
    c.Replicated("attention.output.bias", {m.hidden}, InitKind::kZeros, false, true);
  }
  AddNorm(c, m, "norm2");
  const int64_t f = layer.mlp.ffn;
  const std::vector<ParameterPart> up = layer.mlp.gated ? std::vector<ParameterPart>{{f, 1}, {f, 1}}
                                                        : std::vector<ParameterPart>{{f, 1}};
  const int64_t up_rows = layer.mlp.gated ? 2 * f : f;
  c.Cut("mlp.up.weight", {up_rows, m.hidden}, 0, up, InitKind::kNormal, true, m.init_std);
  if (layer.mlp.bias) c.Cut("mlp.up.bias", {up_rows}, 0, up, InitKind::kZeros, false);
  c.Cut("mlp.down.weight", {m.hidden, f}, 1, {{f, 1}}, InitKind::kNormal, true, output_std);
  if (layer.mlp.bias) c.Replicated("mlp.down.bias", {m.hidden}, InitKind::kZeros, false, true);
}

void AddVocabularyMatrix(Collector& c, const SplitFacts& split, const std::string& name) {
  const ModuleSpec& m = *split.module;
  c.Cut(name, {split.padded_vocab, m.hidden}, 0, {{split.padded_vocab, 1}}, InitKind::kNormal, true,
        m.init_std);
  c.back().valid_rows = m.vocab;
}

}  // namespace

ItemParameters ParametersOf(ItemKind kind, int kind_index, const SplitFacts& split) {
  const ModuleSpec& m = *split.module;
  Collector c(split);
  switch (kind) {
    case ItemKind::kEmbedding:
      AddVocabularyMatrix(c, split, "embedding.weight");
      if (m.tied_embeddings && split.tied_across) c.back().late = LateReduction::kTied;
      if (m.positions == PositionKind::kLearned) {
        c.Replicated("positions.weight", {m.max_positions, m.hidden}, InitKind::kNormal, true, true,
                     m.init_std);
      }
      if (split.tied_here) AddNorm(c, m, "final_norm");  // the head's area is the embedding's
      break;
    case ItemKind::kLayer:
      AddLayer(c, split, m.layer_kinds[static_cast<size_t>(kind_index)]);
      break;
    case ItemKind::kHead:
      if (split.tied_here) return ParametersOf(ItemKind::kEmbedding, 0, split);
      AddNorm(c, m, "final_norm");
      if (!m.tied_embeddings) {
        AddVocabularyMatrix(c, split, "head.weight");
      } else if (split.tied_across) {
        AddVocabularyMatrix(c, split, "embedding.weight");
        c.back().late = LateReduction::kTied;
      }
      break;
  }
  return c.Take();
}

}  // namespace meshwright::planner::lower
