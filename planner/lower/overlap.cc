#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "planner/lower/passes.h"

namespace meshwright::planner::lower {
namespace {

/// Whether the first axis can be cut; true for no tensor.
bool CanCutRows(const Graph& graph, int tensor, int64_t chunks) {
  return tensor < 0 || (graph.tensor(tensor).view.shape[0] % chunks == 0 &&
                        graph.tensor(tensor).view.shape.size() > 1);
}

/// Cuts the rows of products around all-reduces of the tensor group into chunks.
class Overlapper {
 public:
  Overlapper(Graph& graph, int64_t chunks) : graph_(graph), chunks_(chunks) {}

  void Run() {
    const std::vector<Node> nodes = std::exchange(graph_.nodes, {});
    for (size_t i = 0; i < nodes.size();) {
      const size_t begin = i;
      const size_t reduced = ReducedProduct(nodes, i);
      if (reduced == 0) {
        graph_.nodes.push_back(nodes[i++]);
        continue;
      }
      const size_t consumers = Consumers(nodes, begin + reduced);
      Emit(nodes, begin, reduced);
      Emit(nodes, begin + reduced, consumers);
      i = begin + reduced + consumers;
    }
  }

 private:
  static int Tensor(const Node& node, size_t operand) { return node.operands[operand].tensor; }

  bool CanSlice(int tensor) const { return CanCutRows(graph_, tensor, chunks_); }

  /// 2 for a product whose output the next node reduces, 3 with a bias added to it, else 0.
  size_t ReducedProduct(const std::vector<Node>& nodes, size_t i) const {
    if (i + 1 >= nodes.size() || nodes[i].kind != OpKind::kLinear ||
        nodes[i + 1].kind != OpKind::kAllReduce || Tensor(nodes[i + 1], 0) != Tensor(nodes[i], 3) ||
        !CanSlice(Tensor(nodes[i], 0)) || !CanSlice(Tensor(nodes[i], 3))) {
      return 0;
    }
    const bool bias = i + 2 < nodes.size() && nodes[i + 2].kind == OpKind::kBiasAdd &&
                      Tensor(nodes[i + 2], 1) == Tensor(nodes[i], 3);
    return bias ? 3 : 2;
  }

  /// A norm of rows and the product over it, which can begin with the rows that are reduced.
  size_t Consumers(const std::vector<Node>& nodes, size_t i) const {
    if (i + 1 >= nodes.size()) return 0;
    const Node& norm = nodes[i];
    const Node& product = nodes[i + 1];
    if (!CanCutNorm(graph_, norm, chunks_) || product.kind != OpKind::kLinear ||
        Tensor(product, 0) != Tensor(norm, 5)) {
      return 0;
    }
    return CanSlice(Tensor(product, 3)) ? 2 : 0;
  }

  void Emit(const std::vector<Node>& nodes, size_t begin, size_t count) {
    for (int64_t c = 0; count > 0 && c < chunks_; ++c) {
      for (size_t i = begin; i < begin + count; ++i) graph_.nodes.push_back(RowsOf(nodes[i], c));
    }
  }

  Node RowsOf(Node node, int64_t c) {
    const auto slice = [&](size_t operand) {
      Operand& o = node.operands[operand];
      if (o.tensor >= 0) o.tensor = Slice(o.tensor, c);
    };
    switch (node.kind) {
      case OpKind::kLinear:
        slice(0);
        slice(3);
        break;
      case OpKind::kAllReduce:
        slice(0);
        break;
      case OpKind::kBiasAdd:
        slice(1);
        break;
      default:
        for (const size_t operand : kNormRows) slice(operand);
    }
    return node;
  }

  int Slice(int whole, int64_t c) {
    const auto [it, added] = slices_.emplace(std::pair{whole, c}, -1);
    if (added) it->second = RowChunk(graph_, whole, c, chunks_);
    return it->second;
  }

  Graph& graph_;
  const int64_t chunks_;
  std::map<std::pair<int, int64_t>, int> slices_;
};

}  // namespace

int RowChunk(Graph& graph, int whole, int64_t chunk, int64_t chunks) {
  GraphTensor t = graph.tensor(whole);
  t.view.shape[0] /= chunks;
  // Offsets count from the start of the storage; that of a saved one is known already.
  if (t.storage == whole) t.view.offset = 0;
  t.view.offset += chunk * t.view.bytes();
  return graph.AddTensor(t);
}

bool ShareBytes(const Graph& graph, int a, int b) {
  const GraphTensor& x = graph.tensor(a);
  const GraphTensor& y = graph.tensor(b);
  if (x.storage != y.storage) return false;
  const int64_t x_begin = a == x.storage ? 0 : x.view.offset;
  const int64_t y_begin = b == y.storage ? 0 : y.view.offset;
  return x_begin < y_begin + y.view.bytes() && y_begin < x_begin + x.view.bytes();
}

bool CanCutNorm(const Graph& graph, const Node& norm, int64_t chunks) {
  if (norm.kind != OpKind::kNorm || norm.attributes.norm != NormKind::kRmsNorm) return false;
  return std::all_of(std::begin(kNormRows), std::end(kNormRows), [&](size_t operand) {
    return CanCutRows(graph, norm.operands[operand].tensor, chunks);
  });
}

void OverlapTensorTraffic(Graph& graph, const SplitFacts& split) {
  if (split.tensor_chunks == 1) return;
  if (split.sequence_parallel) {
    OverlapSlices(graph, split);
  } else {
    Overlapper(graph, split.tensor_chunks).Run();
  }
}

}  // namespace meshwright::planner::lower
