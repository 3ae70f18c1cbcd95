#include "runtime/cuda/communicate.h"

#include "planner/ir/op_schema.h"

namespace meshwright::runtime::cuda {

Status Communicate(const OpCall& call, DeviceCommunicator& c, cudaStream_t stream) {
  using planner::OpKind;
  const planner::OpAttributes& a = call.op.attributes;
  const planner::TensorView* first = call.View(0);
  std::byte* in = call.Address(0);
  switch (call.op.kind) {
    case OpKind::kAllReduce:
      return c.AllReduce(in, first->elements(), first->dtype, stream);
    case OpKind::kSend:
      return c.Send(in, first->elements(), first->dtype, a.peer, stream);
    case OpKind::kRecv:
      return c.Recv(in, first->elements(), first->dtype, a.peer, stream);
    case OpKind::kAllGather: {
      const planner::TensorView* out = call.View(1);
      const int64_t count = out->elements() / c.size();
      std::byte* whole = call.Address(1);
      if (in == nullptr) in = whole + c.rank() * count * planner::SizeOf(out->dtype);
      return c.AllGather(in, whole, count, out->dtype, stream);
    }
    case OpKind::kShift:
      return c.Shift(in, call.Address(1), first->elements(), first->dtype, stream);
    case OpKind::kReduceScatter: {
      const int64_t count = first->elements() / c.size();
      std::byte* out = call.Address(1);
      if (out == nullptr) out = in + c.rank() * count * planner::SizeOf(first->dtype);
      return c.ReduceScatter(in, out, count, first->dtype, stream);
    }
    default:
      return Unsupported("op " + planner::ToString(call.op.kind) + " is no communication");
  }
}

}  // namespace meshwright::runtime::cuda
