#include <cmath>

#include "planner/lower/passes.h"

namespace meshwright::planner::lower {
namespace {

/// Adds tensors and ops of one item with the module's facts at hand.
class Builder {
 public:
  Builder(const SplitFacts& split, const ItemParameters& parameters, Graph& graph)
      : split_(split), parameters_(parameters), graph_(graph), module_(*split.module) {}

  int Residual(const std::string& name, Role role = Role::kActivation) {
    GraphTensor t =
        Named(name, split_.dtypes.compute, {split_.sequence, split_.micro_batch, module_.hidden});
    t.sequence_axis = 0;
    t.role = role;
    return graph_.AddTensor(t);
  }

  int Activation(const std::string& name, int64_t width, std::vector<ParameterPart> parts) {
    GraphTensor t =
        Named(name, split_.dtypes.compute, {split_.sequence, split_.micro_batch, width});
    t.cut_axis = 2;
    t.parts = std::move(parts);
    return graph_.AddTensor(t);
  }

  int Parameter(const std::string& name) {
    const int index = parameters_.Find(name);
    if (index < 0) return -1;
    const ItemParameter& p = parameters_.list[static_cast<size_t>(index)];
    GraphTensor t = Named(name, split_.dtypes.compute, p.local_shape);
    t.role = Role::kParameter;
    t.parameter = index;
    t.placed = true;
    t.view.region = p.late_area ? Region::kParameterLate : Region::kParameter;
    t.view.offset = p.offset * SizeOf(split_.dtypes.compute);
    return graph_.AddTensor(t);
  }

  /// n, statistics = norm(x); returns n.
  int Norm(const std::string& name, int x, const std::string& output) {
    const bool layer_norm = module_.norm == NormKind::kLayerNorm;
    const int n = Residual(output);
    GraphTensor stat =
        Named(output + ".stat", split_.dtypes.statistics, {split_.sequence, split_.micro_batch});
    stat.sequence_axis = 0;
    if (layer_norm) {
      stat.view.shape.insert(stat.view.shape.begin(), 2);
      stat.sequence_axis = 1;
    }
    const int s = graph_.AddTensor(stat);
    OpAttributes a;
    a.norm = module_.norm;
    a.eps = module_.norm_eps;
    a.one_plus = module_.norm_one_plus;
    const int beta = layer_norm ? Parameter(name + ".bias") : -1;
    const int gamma = Parameter(name + ".weight");
    graph_.AddNode(
        OpKind::kNorm,
        {Read(x), Absent(), Read(gamma), Read(beta), {-1, Access::kWrite}, Write(n), Write(s), Absent()},
        a);
    return n;
  }

  void Linear(int x, const std::string& name, int y, Cut cut) {
    graph_.AddNode(
        OpKind::kLinear,
        {Read(x), Read(Parameter(name + ".weight")), Read(Parameter(name + ".bias")), Write(y)}, {},
        cut);
  }

  int Add(int a, int b, const std::string& name) {
    const int out = Residual(name);
    graph_.AddNode(OpKind::kAdd, {Read(a), Read(b), Write(out)});
    return out;
  }

  GraphTensor Named(const std::string& name, DType dtype, std::vector<int64_t> shape) {
    GraphTensor t;
    t.view.name = name;
    t.view.dtype = dtype;
    t.view.shape = std::move(shape);
    return t;
  }

 private:
  const SplitFacts& split_;
  const ItemParameters& parameters_;
  Graph& graph_;
  const ModuleSpec& module_;
};

int Attention(Builder& b, Graph& g, const SplitFacts& split, const AttentionSpec& spec, int n) {
  const int64_t q = spec.heads * spec.head_dim;
  const int64_t k = spec.kv_heads * spec.head_dim;
  const int qkv =
      b.Activation("qkv", q + 2 * k, {{q, 1}, {k, split.kv_copies}, {k, split.kv_copies}});
  b.Linear(n, "attention.qkv", qkv, Cut::kColumn);
  OpAttributes a;
  a.sequence = split.sequence;
  a.batch = split.micro_batch;
  a.heads = spec.heads;        // made local by the shard pass
  a.kv_heads = spec.kv_heads;  // made local by the shard pass
  a.head_dim = spec.head_dim;
  a.causal = spec.causal;
  a.window = spec.window;
  a.rope_theta = spec.rope_theta;
  a.scale = spec.score_scale > 0.0 ? spec.score_scale
                                   : 1.0 / std::sqrt(static_cast<double>(spec.head_dim));
  if (split.module->positions == PositionKind::kRotary) {
    g.AddNode(OpKind::kRotary, {InPlace(qkv)}, a);
  }
  const int o = b.Activation("o", q, {{q, 1}});
  GraphTensor lse =
      b.Named("lse", split.dtypes.statistics, {split.micro_batch, spec.heads, split.sequence});
  lse.cut_axis = 1;
  const int l = g.AddTensor(lse);
  // Sized by local heads in the shard pass.
  const int w = g.AddTensor(b.Named("attention.workspace", split.dtypes.statistics, {1}));
  g.AddNode(OpKind::kAttention, {Read(qkv), Write(o), Write(l), Write(w)}, a);
  return o;
}

}  // namespace

Graph BuildLayer(const SplitFacts& split, int kind_index, const ItemParameters& parameters,
                 bool with_delta) {
  const LayerSpec& layer = split.module->layer_kinds[static_cast<size_t>(kind_index)];
  Graph g;
  g.name = "layer";
  Builder b(split, parameters, g);
  g.input = b.Residual("r", Role::kInput);
  if (with_delta) g.input_delta = b.Residual("delta", Role::kInput);

  // x1 is what the residual stream holds at the layer's entry; backward needs it either way.
  int x1 = -1;
  if (with_delta) {
    x1 = b.Add(g.input, g.input_delta, "x1");
  } else {
    x1 = b.Residual("x1");
    g.AddNode(OpKind::kCopy, {Read(g.input), Write(x1)});
  }
  const int n1 = b.Norm("norm1", x1, "n1");
  const int o = Attention(b, g, split, layer.attention, n1);
  const int p = b.Residual("attention.out");
  b.Linear(o, "attention.output", p, Cut::kRow);
  const int x2 = b.Add(x1, p, "x2");
  const int n2 = b.Norm("norm2", x2, "n2");

  const int64_t f = layer.mlp.ffn;
  const bool gated = layer.mlp.gated;
  const int u = b.Activation(
      "u", gated ? 2 * f : f,
      gated ? std::vector<ParameterPart>{{f, 1}, {f, 1}} : std::vector<ParameterPart>{{f, 1}});
  b.Linear(n2, "mlp.up", u, Cut::kColumn);
  const int s = b.Activation("s", f, {{f, 1}});
  OpAttributes a;
  a.gated = gated;
  a.activation = layer.mlp.activation;
  g.AddNode(OpKind::kActivation, {Read(u), Write(s)}, a);
  const int down = b.Residual("mlp.out", Role::kOutput);
  b.Linear(s, "mlp.down", down, Cut::kRow);
  g.output = x2;
  g.tensor(x2).role = Role::kOutput;
  g.output_delta = down;
  return g;
}

Graph BuildEmbedding(const SplitFacts& split, const ItemParameters& parameters) {
  const ModuleSpec& m = *split.module;
  Graph g;
  g.name = "embedding";
  Builder b(split, parameters, g);
  GraphTensor tokens = b.Named("tokens", DType::kI32, {split.sequence, split.micro_batch});
  tokens.saved = true;
  const int t = g.AddTensor(tokens);
  const int r = b.Residual("r", Role::kOutput);
  OpAttributes a;
  a.vocab = m.vocab;
  a.batch = split.micro_batch;
  a.sequence = split.sequence;
  g.AddNode(OpKind::kEmbed, {Read(t), Read(b.Parameter("embedding.weight")), Write(r)}, a,
            Cut::kRow);
  if (m.positions == PositionKind::kLearned) {
    g.AddNode(OpKind::kAddPositions, {Read(b.Parameter("positions.weight")), InPlace(r)}, a);
  }
  g.output = r;
  return g;
}

Graph BuildHead(const SplitFacts& split, const ItemParameters& parameters) {
  Graph g;
  g.name = "head";
  Builder b(split, parameters, g);
  g.input = b.Residual("x", Role::kInput);
  g.output = b.Norm("final_norm", g.input, "n");
  return g;
}

}  // namespace meshwright::planner::lower
