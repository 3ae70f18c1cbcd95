#include <utility>

#include "planner/ir/attention_workspace.h"
#include "planner/ir/op_schema.h"
#include "planner/lower/passes.h"

namespace meshwright::planner::lower {
namespace {

void MakeShapesLocal(Graph& graph, const SplitFacts& split) {
  for (GraphTensor& t : graph.tensors) {
    if (t.role == Role::kParameter || t.role == Role::kGradient) continue;
    if (t.sequence_axis >= 0 && split.sequence_parallel) {
      t.view.shape[static_cast<size_t>(t.sequence_axis)] /= split.tp;
    }
    if (t.cut_axis >= 0) {
      int64_t& extent = t.view.shape[static_cast<size_t>(t.cut_axis)];
      if (t.parts.empty()) t.parts = {{extent, 1}};
      extent = 0;
      for (const ParameterPart& part : t.parts) extent += part.extent * part.copies / split.tp;
    }
  }
}

void MakeAttributesLocal(Graph& graph, const SplitFacts& split) {
  for (Node& node : graph.nodes) {
    OpAttributes& a = node.attributes;
    if (node.kind == OpKind::kRotary || node.kind == OpKind::kAttention) {
      a.heads /= split.tp;
      a.kv_heads = a.kv_heads * split.kv_copies / split.tp;
    }
    if (node.kind == OpKind::kAttention) {
      const auto workspace = static_cast<size_t>(node.operands[3].tensor);
      graph.tensors[workspace].view.shape = {AttentionWorkspaceElements(a, split, false)};
    }
    if (node.kind == OpKind::kAddPositions) a.sequence_sharded = split.sequence_parallel;
  }
}

OpAttributes OnTensorGroup() {
  OpAttributes a;
  a.communicator = 0;  // the tensor group is communicator 0 of every class with tp > 1
  return a;
}

/// A tensor like `model` with the whole sequence: what an all-gather makes and a product consumes.
int FullSequence(Graph& graph, int model, const std::string& suffix, const SplitFacts& split) {
  GraphTensor t = graph.tensor(model);
  t.view.name += suffix;
  t.view.shape[static_cast<size_t>(t.sequence_axis)] = split.sequence;
  t.sequence_axis = -1;
  t.role = Role::kActivation;
  t.storage = -1;
  return graph.AddTensor(t);
}

/// The output of a row-cut op is partial over the tensor group: reduce it, then add the bias.
void ReduceRowCut(Graph& graph, std::vector<Node>& out, Node node, const SplitFacts& split) {
  const size_t y_index = node.kind == OpKind::kEmbed ? 2 : 3;
  const int y = node.operands[y_index].tensor;
  int bias = -1;
  if (node.kind == OpKind::kLinear) bias = std::exchange(node.operands[2].tensor, -1);
  if (split.sequence_parallel) {
    const int partial = FullSequence(graph, y, ".partial", split);
    node.operands[y_index].tensor = partial;
    out.push_back(std::move(node));
    out.push_back({OpKind::kReduceScatter, {Read(partial), Write(y)}, OnTensorGroup(), Cut::kNone});
  } else {
    out.push_back(std::move(node));
    out.push_back({OpKind::kAllReduce, {InPlace(y)}, OnTensorGroup(), Cut::kNone});
  }
  if (bias >= 0) out.push_back({OpKind::kBiasAdd, {Read(bias), InPlace(y)}, {}, Cut::kNone});
}

}  // namespace

int64_t AttentionWorkspaceElements(const OpAttributes& a, const SplitFacts& split, bool backward) {
  if (split.device == topologies::DeviceKind::kCpu) {
    return 2 * 64 * a.sequence + a.batch * a.heads * a.sequence;
  }
  const int64_t bytes = AttentionWorkspaceBytes(AttentionShapeOf(a), split.dtypes.compute, backward,
                                                split.deterministic);
  const int64_t size = SizeOf(split.dtypes.statistics);
  return (bytes + size - 1) / size;
}

void Shard(Graph& graph, const SplitFacts& split) {
  MakeShapesLocal(graph, split);
  MakeAttributesLocal(graph, split);
  if (split.tp == 1) return;
  std::vector<Node> out;
  for (Node node : graph.nodes) {
    if (node.cut == Cut::kRow) {
      ReduceRowCut(graph, out, std::move(node), split);
      continue;
    }
    if (node.cut == Cut::kColumn && split.sequence_parallel) {
      const int x = node.operands[0].tensor;
      const int gathered = FullSequence(graph, x, ".gathered", split);
      out.push_back({OpKind::kAllGather, {Read(x), Write(gathered)}, OnTensorGroup(), Cut::kNone});
      node.operands[0].tensor = gathered;
    }
    out.push_back(std::move(node));
  }
  graph.nodes = std::move(out);
}

void Fuse(Graph& graph) {
  // add (or copy) directly followed by the norm of its result: one pass over the row.
  for (size_t i = 0; i + 1 < graph.nodes.size();) {
    Node& first = graph.nodes[i];
    Node& norm = graph.nodes[i + 1];
    const bool add = first.kind == OpKind::kAdd;
    const bool copy = first.kind == OpKind::kCopy;
    if ((add || copy) && norm.kind == OpKind::kNorm && norm.operands[4].tensor < 0 &&
        norm.operands[0].tensor == first.operands.back().tensor) {
      norm.operands[4] = Write(first.operands.back().tensor);
      norm.operands[0] = Read(first.operands[0].tensor);
      if (add) norm.operands[1] = Read(first.operands[1].tensor);
      norm.attributes.has_delta = add;
      graph.nodes.erase(graph.nodes.begin() + static_cast<std::ptrdiff_t>(i));
      continue;
    }
    ++i;
  }
}

std::string DumpGraph(const Graph& graph) {
  std::string out = "graph " + graph.name + "\n";
  for (const Node& node : graph.nodes) {
    out += "  " + ToString(node.kind);
    const OpRow& row = RowOf(node.kind);
    for (size_t i = 0; i < node.operands.size(); ++i) {
      if (node.operands[i].tensor < 0) continue;
      const GraphTensor& t = graph.tensor(node.operands[i].tensor);
      out += std::string(" ") + row.operands[i].name + "=" + t.view.name + "[";
      for (size_t d = 0; d < t.view.shape.size(); ++d) {
        out += (d ? "," : "") + std::to_string(t.view.shape[d]);
      }
      out += t.saved ? "]*" : "]";
    }
    out += "\n";
  }
  return out;
}

}  // namespace meshwright::planner::lower
