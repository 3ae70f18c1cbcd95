#include "planner/ir/op_schema.h"
#include "planner/lower/passes.h"

namespace meshwright::planner::lower {
namespace {

/// Reverse-mode differentiation with one rule a kind. Ids of forward tensors stay valid.
class Differentiator {
 public:
  Differentiator(const Graph& forward, const SplitFacts& split, const ItemParameters& parameters,
                 const DifferentiateOptions& options)
      : forward_(forward), split_(split), parameters_(parameters), options_(options) {
    back_.name = forward.name;
    back_.phase = Phase::kBackward;
    back_.tensors = forward.tensors;
    // What entered or left the forward block is made again inside this one, if at all.
    for (GraphTensor& t : back_.tensors) {
      if (t.role == Role::kInput || t.role == Role::kOutput) t.role = Role::kActivation;
    }
    gradient_.assign(forward.tensors.size(), -1);
  }

  Graph Run() {
    GraphTensor dx = Like(forward_.output, "dx");
    dx.role = Role::kInput;
    back_.input = back_.AddTensor(dx);
    // The stream leaves as a sum, so both addends have the gradient of the sum.
    gradient_[Index(forward_.output)] = back_.input;
    if (forward_.output_delta >= 0) gradient_[Index(forward_.output_delta)] = back_.input;
    for (size_t i = forward_.nodes.size(); i-- > 0;) Reverse(forward_.nodes[i]);
    return std::move(back_);
  }

 private:
  static size_t Index(int tensor) { return static_cast<size_t>(tensor); }

  GraphTensor Like(int model, const std::string& name) {
    GraphTensor t = back_.tensor(model);
    t.view.name = name;
    t.view.offset = 0;
    t.storage = -1;
    t.saved = false;
    t.placed = false;
    t.role = Role::kActivation;
    return t;
  }
  int NewLike(int model, const std::string& name) { return back_.AddTensor(Like(model, name)); }
  int GradientOf(int tensor) const {
    const int g = gradient_[Index(tensor)];
    MW_CHECK(g >= 0);
    return g;
  }

  /// Accumulated gradient of the parameter that forward tensor `parameter` is; absent stays absent.
  Operand ParameterGradient(int parameter, bool always_add = false) {
    if (parameter < 0) return {-1, Access::kAccumulate};
    const GraphTensor& source = back_.tensor(parameter);
    const ItemParameter& p = parameters_.list[static_cast<size_t>(source.parameter)];
    GraphTensor t = source;
    t.view.name += ".grad";
    t.view.dtype = split_.dtypes.gradient;
    t.view.region = p.late_area ? Region::kGradientLate : Region::kGradient;
    t.view.offset = p.offset * SizeOf(split_.dtypes.gradient);
    t.role = Role::kGradient;
    t.storage = -1;
    return {back_.AddTensor(t),
            options_.first && !always_add ? Access::kWrite : Access::kAccumulate};
  }

  void Reverse(const Node& node) {
    switch (node.kind) {
      case OpKind::kReduceScatter: {
        const int dy = GradientOf(node.operands[1].tensor);
        const int full = NewLike(node.operands[0].tensor, back_.tensor(dy).view.name + ".gathered");
        back_.AddNode(OpKind::kAllGather, {Read(dy), Write(full)}, node.attributes);
        gradient_[Index(node.operands[0].tensor)] = full;
        break;
      }
      case OpKind::kAllGather: {
        const int x = node.operands[0].tensor;
        const int dx = NewLike(x, "d" + back_.tensor(x).view.name);
        back_.AddNode(OpKind::kReduceScatter,
                      {Read(GradientOf(node.operands[1].tensor)), Write(dx)}, node.attributes);
        gradient_[Index(x)] = dx;
        break;
      }
      case OpKind::kAllReduce:
        break;  // every rank's partial sum has the gradient of the sum
      case OpKind::kBiasAdd:
        // After the product below it, so that the gather of the same gradient leaves first.
        row_bias_.push_back({OpKind::kBiasGrad,
                             {Read(GradientOf(node.operands[1].tensor)),
                              ParameterGradient(node.operands[0].tensor)},
                             {},
                             Cut::kNone});
        break;
      case OpKind::kLinear:
        ReverseLinear(node);
        break;
      case OpKind::kRotary: {
        OpAttributes a = node.attributes;
        a.inverse = true;
        back_.AddNode(OpKind::kRotary, {InPlace(GradientOf(node.operands[0].tensor))}, a);
        break;
      }
      case OpKind::kAttention:
        ReverseAttention(node);
        break;
      case OpKind::kActivation:
        ReverseActivation(node);
        break;
      case OpKind::kNorm:
        ReverseNorm(node);
        break;
      case OpKind::kEmbed:
        back_.AddNode(OpKind::kEmbedGrad,
                      {Read(node.operands[0].tensor), Read(GradientOf(node.operands[2].tensor)),
                       ParameterGradient(node.operands[1].tensor, options_.tied_here)},
                      node.attributes);
        break;
      case OpKind::kAddPositions:
        back_.AddNode(
            OpKind::kPositionsGrad,
            {Read(GradientOf(node.operands[1].tensor)), ParameterGradient(node.operands[0].tensor)},
            node.attributes);
        break;
      default:
        MW_CHECK(false && "op kind without a gradient rule");
    }
  }

  void ReverseLinear(const Node& node) {
    const int x = node.operands[0].tensor;
    const int weight = node.operands[1].tensor;
    const int dy = GradientOf(node.operands[3].tensor);
    const int dx = NewLike(x, "d" + back_.tensor(x).view.name);
    back_.AddNode(OpKind::kLinearInputGrad, {Read(dy), Read(weight), Write(dx)});
    for (Node& n : row_bias_) back_.nodes.push_back(std::move(n));
    row_bias_.clear();
    if (node.cut == Cut::kColumn && !split_.sequence_parallel && split_.tp > 1) {
      OpAttributes a;
      a.communicator = 0;
      back_.AddNode(OpKind::kAllReduce, {InPlace(dx)}, a);
    }
    gradient_[Index(x)] = dx;
    Node weight_grad{
        OpKind::kLinearWeightGrad, {Read(dy), Read(x), ParameterGradient(weight)}, {}, Cut::kNone};
    // The activation's gradient makes the activation again: the product over it waits for that.
    if (MadeByActivation(x)) {
      deferred_.push_back(std::move(weight_grad));
    } else {
      back_.nodes.push_back(std::move(weight_grad));
    }
    if (node.operands[2].tensor >= 0) {
      back_.AddNode(OpKind::kBiasGrad, {Read(dy), ParameterGradient(node.operands[2].tensor)});
    }
  }

  bool MadeByActivation(int tensor) const {
    for (const Node& node : forward_.nodes) {
      if (node.kind == OpKind::kActivation && node.operands[1].tensor == tensor) return true;
    }
    return false;
  }

  void ReverseActivation(const Node& node) {
    const int u = node.operands[0].tensor;
    const int s = node.operands[1].tensor;
    GraphTensor du = Like(u, "du");
    du.storage = back_.tensor(u).storage;
    const int d = back_.AddTensor(du);
    back_.AddNode(OpKind::kActivationGrad, {Read(u), Read(GradientOf(s)), Write(d), Write(s)},
                  node.attributes);
    gradient_[Index(u)] = d;
    for (Node& n : deferred_) back_.nodes.push_back(std::move(n));
    deferred_.clear();
  }

  void ReverseAttention(const Node& node) {
    const int qkv = node.operands[0].tensor;
    const int o = node.operands[1].tensor;
    const int dqkv = NewLike(qkv, "dqkv");
    const int workspace = NewLike(node.operands[3].tensor, "attention.grad.workspace");
    back_.tensor(workspace).view.shape = {
        AttentionWorkspaceElements(node.attributes, split_, true)};
    back_.AddNode(OpKind::kAttentionGrad,
                  {Read(qkv), Read(o), Read(node.operands[2].tensor), Read(GradientOf(o)),
                   Write(dqkv), Write(workspace)},
                  node.attributes);
    gradient_[Index(qkv)] = dqkv;
  }

  void ReverseNorm(const Node& node) {
    const int r = node.operands[0].tensor;
    const int delta = node.operands[1].tensor;
    const int r1 = node.operands[4].tensor >= 0 ? node.operands[4].tensor : r;
    const int dr_in = gradient_[Index(r1)];
    const bool enters_block = r == forward_.input;
    GraphTensor out = Like(r, enters_block ? "dx.out" : "dx.mid");
    if (enters_block) {
      out.role = Role::kOutput;
    } else {
      out.storage = back_.tensor(dr_in).storage;
      out.role = back_.tensor(dr_in).role;
    }
    const int dr_out = back_.AddTensor(out);
    back_.AddNode(
        OpKind::kNormGrad,
        {Read(GradientOf(node.operands[5].tensor)), Read(r1), Read(node.operands[6].tensor),
         Read(node.operands[2].tensor), Read(dr_in), Write(dr_out),
         ParameterGradient(node.operands[2].tensor), ParameterGradient(node.operands[3].tensor)},
        node.attributes);
    gradient_[Index(r)] = dr_out;
    if (delta >= 0) gradient_[Index(delta)] = dr_out;
    if (enters_block) back_.output = dr_out;
  }

  const Graph& forward_;
  const SplitFacts& split_;
  const ItemParameters& parameters_;
  const DifferentiateOptions options_;
  Graph back_;
  std::vector<int> gradient_;   ///< per forward tensor: its gradient tensor, -1 while unknown
  std::vector<Node> deferred_;  ///< weight gradients that wait for the activation
  std::vector<Node> row_bias_;  ///< gradients of biases added after a reduction
};

/// Re-emits forward ops in front of their first use in backward.
class Remaker {
 public:
  Remaker(const Graph& forward, Graph& backward, Recompute mode)
      : forward_(forward),
        backward_(backward),
        mode_(mode),
        available_(backward.tensors.size(), false) {}

  void MarkSaved(Graph& forward) {
    std::vector<bool> made(backward_.tensors.size(), false);
    for (const Node& node : backward_.nodes) {
      for (const Operand& o : node.operands) {
        if (o.tensor >= 0 && o.access == Access::kRead) Need(o.tensor, made, forward);
      }
      for (const Operand& o : node.operands) {
        if (o.tensor >= 0 && Writes(o.access)) made[static_cast<size_t>(o.tensor)] = true;
      }
    }
    for (size_t i = 0; i < forward.tensors.size(); ++i) {
      backward_.tensors[i].saved = forward.tensors[i].saved;
      available_[i] = forward.tensors[i].saved;
    }
  }

  void Insert() {
    std::vector<Node> original = std::move(backward_.nodes);
    backward_.nodes.clear();
    for (Node& node : original) {
      for (const Operand& o : node.operands) {
        if (o.tensor >= 0 && o.access == Access::kRead) Demand(o.tensor);
      }
      for (const Operand& o : node.operands) {
        if (o.tensor >= 0 && Writes(o.access)) available_[static_cast<size_t>(o.tensor)] = true;
      }
      backward_.nodes.push_back(std::move(node));
    }
  }

 private:
  bool IsForward(int tensor) const {
    return static_cast<size_t>(tensor) < forward_.tensors.size() &&
           forward_.tensor(tensor).role != Role::kParameter &&
           forward_.tensor(tensor).role != Role::kExternal;
  }

  const Node* Producer(int tensor) const {
    for (const Node& node : forward_.nodes) {
      for (const Operand& o : node.operands) {
        if (o.tensor == tensor && Writes(o.access)) return &node;
      }
    }
    return nullptr;
  }

  /// What the mode keeps: nothing that an all-gather or (selective) one pass over rows remakes;
  /// full keeps only what the residual stream held at the item's entry.
  bool Keep(int tensor) const {
    const Node* producer = Producer(tensor);
    MW_CHECK(producer != nullptr);
    if (producer->kind == OpKind::kAllGather) return false;
    if (mode_ == Recompute::kFull)
      return producer == &forward_.nodes.front() && IsR1(*producer, tensor);
    if (mode_ == Recompute::kSelective) {
      if (producer->kind == OpKind::kAttention) return false;
      if (producer->kind == OpKind::kNorm) return producer->operands[5].tensor != tensor;
    }
    return true;
  }
  static bool IsR1(const Node& node, int tensor) {
    return node.kind == OpKind::kNorm && node.operands[4].tensor == tensor;
  }

  void Need(int tensor, std::vector<bool>& seen, Graph& forward) {
    if (!IsForward(tensor) || seen[static_cast<size_t>(tensor)]) return;
    seen[static_cast<size_t>(tensor)] = true;
    if (forward.tensor(tensor).saved) return;
    if (Keep(tensor)) {
      forward.tensor(tensor).saved = true;
      return;
    }
    const Node& producer = *Producer(tensor);
    if (producer.kind == OpKind::kNorm && producer.operands[4].tensor >= 0 &&
        mode_ != Recompute::kFull) {
      Need(producer.operands[4].tensor, seen, forward);  // norm_apply needs r1 and statistics
      Need(producer.operands[6].tensor, seen, forward);
      return;
    }
    if (producer.kind == OpKind::kNorm && Keep(producer.operands[4].tensor)) {
      Need(producer.operands[4].tensor, seen, forward);  // norm of the kept sum
      return;
    }
    for (const Node& node : forward_.nodes) {
      bool writes = false;
      for (const Operand& o : node.operands)
        writes = writes || (o.tensor == tensor && Writes(o.access));
      if (!writes) continue;
      for (const Operand& o : node.operands) {
        if (o.tensor >= 0 && o.access == Access::kRead) Need(o.tensor, seen, forward);
      }
    }
  }

  bool Available(int tensor) const { return available_[static_cast<size_t>(tensor)]; }

  void Emit(Node node) {
    for (const Operand& o : node.operands) {
      if (o.tensor >= 0 && o.access == Access::kRead) Demand(o.tensor);
    }
    for (const Operand& o : node.operands) {
      if (o.tensor >= 0 && Writes(o.access)) available_[static_cast<size_t>(o.tensor)] = true;
    }
    backward_.nodes.push_back(std::move(node));
  }

  void Demand(int tensor) {
    if (!IsForward(tensor) || Available(tensor)) return;
    for (const Node& node : forward_.nodes) {
      bool writes = false;
      for (const Operand& o : node.operands)
        writes = writes || (o.tensor == tensor && Writes(o.access));
      if (writes) Emit(node.kind == OpKind::kNorm ? RemakeNorm(node) : node);
    }
    MW_CHECK(Available(tensor));
  }

  /// The cheapest form of a norm given what is at hand.
  Node RemakeNorm(const Node& node) const {
    const int r1 = node.operands[4].tensor;
    const int stat = node.operands[6].tensor;
    if (r1 < 0 || !Available(r1)) return node;
    Node out = node;
    out.attributes.has_delta = false;
    if (Available(stat)) {
      out.kind = OpKind::kNormApply;
      out.operands = {Read(r1), Read(stat), node.operands[2], node.operands[3], node.operands[5]};
      return out;
    }
    out.operands[0] = Read(r1);
    out.operands[1] = Absent();
    out.operands[4] = {-1, Access::kWrite};
    return out;
  }

  const Graph& forward_;
  Graph& backward_;
  const Recompute mode_;
  std::vector<bool> available_;
};

}  // namespace

Graph Differentiate(const Graph& forward, const SplitFacts& split, const ItemParameters& parameters,
                    const DifferentiateOptions& options) {
  return Differentiator(forward, split, parameters, options).Run();
}

void ApplyRecompute(Graph& forward, Graph& backward, Recompute mode) {
  Remaker remaker(forward, backward, mode);
  remaker.MarkSaved(forward);
  remaker.Insert();
}

}  // namespace meshwright::planner::lower
