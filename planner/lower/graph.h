// Graph: what the lowering passes work on before streams and addresses are known. A forward graph is
// one layer item for one micro-batch; passes rewrite it and derive its backward graph.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/ir/program.h"

namespace meshwright::planner::lower {

/// How a matrix product is cut over the tensor group (parallelism.md 7.2, 7.3).
enum class Cut : uint8_t { kNone, kColumn, kRow };

enum class Role : uint8_t {
  kActivation,  ///< made and consumed inside the block
  kParameter,
  kGradient,   ///< gradient of a parameter
  kInput,      ///< residual stream or its gradient entering the block
  kOutput,     ///< ... leaving the block
  kExternal,   ///< labels, scalars
};

struct GraphTensor {
  TensorView view;
  Role role = Role::kActivation;
  int storage = -1;         ///< tensors with the same storage share memory (in place, row slices)
  int sequence_axis = -1;   ///< axis cut by sequence parallelism (residual stream and its like)
  int cut_axis = -1;        ///< axis cut over tensor ranks
  std::vector<ParameterPart> parts;  ///< how `cut_axis` is cut; empty: one part, no copies
  bool saved = false;       ///< kept in the slot from forward to backward
  bool placed = false;      ///< region and offset are final
  int32_t parameter = -1;   ///< kParameter, kGradient: index into the item's parameter list
};

struct Node {
  OpKind kind = OpKind::kCopy;
  std::vector<Operand> operands;
  OpAttributes attributes;
  Cut cut = Cut::kNone;
  bool on_tensor_stream = false;  ///< no collective, but goes beside the products like one
};

struct Graph {
  std::string name;
  Phase phase = Phase::kForward;
  std::vector<GraphTensor> tensors;
  std::vector<Node> nodes;
  int input = -1;          ///< residual stream in (forward) or gradient in (backward)
  int input_delta = -1;    ///< pending addend in; -1: none
  int output = -1;         ///< residual stream out
  int output_delta = -1;   ///< pending addend out

  int AddTensor(GraphTensor tensor) {
    if (tensor.storage < 0) tensor.storage = static_cast<int>(tensors.size());
    tensors.push_back(std::move(tensor));
    return static_cast<int>(tensors.size()) - 1;
  }
  Node& AddNode(OpKind kind, std::vector<Operand> operands, const OpAttributes& attributes = {},
                Cut cut = Cut::kNone) {
    nodes.push_back({kind, std::move(operands), attributes, cut});
    return nodes.back();
  }
  const GraphTensor& tensor(int id) const { return tensors[static_cast<size_t>(id)]; }
  GraphTensor& tensor(int id) { return tensors[static_cast<size_t>(id)]; }
};

inline Operand Read(int t) { return {t, Access::kRead}; }
inline Operand Write(int t) { return {t, Access::kWrite}; }
inline Operand InPlace(int t) { return {t, Access::kReadWrite}; }
inline Operand Absent() { return {-1, Access::kRead}; }

/// True when the access changes the tensor.
inline bool Writes(Access access) { return access != Access::kRead; }

}  // namespace meshwright::planner::lower
