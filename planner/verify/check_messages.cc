#include <fmt/format.h>

#include <algorithm>

#include "planner/ir/op_schema.h"
#include "planner/verify/channel_ops.h"
#include "planner/verify/checks.h"
#include "planner/verify/names.h"

namespace meshwright::planner {
namespace {

using verify::OpPlace;

Status Bad(const std::string& what) {
  return Infeasible("messages: " + what);
}

const RankProgram& ProgramOf(const Programs& programs, int32_t rank) {
  return programs.programs[static_cast<size_t>(programs.ranks[static_cast<size_t>(rank)].program)];
}

std::string NameOpOf(const Programs& programs, int32_t rank, const OpPlace& place) {
  return fmt::format("{}, {}", verify::NameRank(programs, rank),
                     verify::NameOp(ProgramOf(programs, rank), place));
}

/// Elements and dtype that travel; what partners must agree on.
struct Payload {
  int64_t elements = 0;
  DType dtype = DType::kF32;
};
Payload PayloadOf(const Block& block, const Op& op) {
  // The full buffer: all-gather's output, reduce-scatter's input, else the only one.
  const size_t index = op.kind == OpKind::kAllGather ? 1 : 0;
  if (index >= op.operands.size() || op.operands[index].tensor < 0) return {};
  const TensorView& t = block.tensors[static_cast<size_t>(op.operands[index].tensor)];
  return {t.elements(), t.dtype};
}

/// Messages are on edges, collectives on other communicators.
Status CheckKinds(const Programs& programs, int32_t index) {
  const RankProgram& program = programs.programs[static_cast<size_t>(index)];
  for (const Block& block : program.blocks) {
    for (const Op& op : block.ops) {
      if (!IsMessage(op.kind) && !IsCollective(op.kind)) continue;
      const CommunicatorInfo& info =
          program.communicators[static_cast<size_t>(op.attributes.communicator)];
      if (IsMessage(op.kind) == (info.kind == CommunicatorKind::kEdge)) continue;
      return Bad(fmt::format(
          "{}, block {}: {} on communicator {}; edges carry send and recv, all "
          "others collectives",
          verify::NameRanksOf(programs, index), block.name, ToString(op.kind), info.name));
    }
  }
  return Status::Ok();
}

/// The partner of every message is the other end of its edge, on every rank.
Status CheckPeers(const Programs& programs) {
  struct Use {
    size_t block, op;
  };
  std::vector<std::vector<Use>> uses(programs.programs.size());
  for (size_t p = 0; p < programs.programs.size(); ++p) {
    const RankProgram& program = programs.programs[p];
    for (size_t b = 0; b < program.blocks.size(); ++b) {
      for (size_t i = 0; i < program.blocks[b].ops.size(); ++i) {
        if (IsMessage(program.blocks[b].ops[i].kind)) uses[p].push_back({b, i});
      }
    }
  }
  for (size_t r = 0; r < programs.ranks.size(); ++r) {
    const RankBinding& binding = programs.ranks[r];
    const RankProgram& program = programs.programs[static_cast<size_t>(binding.program)];
    for (const Use& use : uses[static_cast<size_t>(binding.program)]) {
      const Block& block = program.blocks[use.block];
      const OpAttributes& a = block.ops[use.op].attributes;
      const Group& group =
          programs.groups[static_cast<size_t>(binding.groups[static_cast<size_t>(a.communicator)])];
      const bool exists = a.peer >= 0 && a.peer < static_cast<int32_t>(group.ranks.size());
      if (exists && group.ranks[static_cast<size_t>(a.peer)] != static_cast<int32_t>(r)) continue;
      return Bad(fmt::format(
          "{}, block {}, op {} {}: its partner is position {} of {} ({} ranks), {}; name the other "
          "end",
          verify::NameRank(programs, static_cast<int32_t>(r)), block.name, use.op,
          ToString(block.ops[use.op].kind), a.peer, group.name, group.ranks.size(),
          exists ? "which is the rank itself" : "which does not exist"));
    }
  }
  return Status::Ok();
}

/// Same micro-batch, direction and (within a module) consecutive pieces of the model.
bool LabelsAgree(const Programs& programs, const RankProgram& from, const Task& send,
                 const RankProgram& to, const Task& recv) {
  if (send.kind != TaskKind::kSend || recv.kind != TaskKind::kRecv) return true;
  if (send.micro_batch != recv.micro_batch || send.gradient != recv.gradient) return false;
  if (from.module != to.module) return true;
  const int64_t pp = programs.modules[static_cast<size_t>(from.module)].pp;
  const int64_t step = send.gradient ? (from.stage == 0 ? -1 : 0) : (from.stage == pp - 1 ? 1 : 0);
  return recv.chunk == send.chunk + step;
}

class ChannelCheck {
 public:
  ChannelCheck(const Programs& programs, const RankClasses& classes, const Channel& channel)
      : programs_(programs), classes_(classes), channel_(channel) {
    rank_ = classes.representative(channel.participants.front().rank_class);
    const int32_t local = channel.participants.front().communicator;
    group_ = &programs.groups[static_cast<size_t>(
        programs.ranks[static_cast<size_t>(rank_)].groups[static_cast<size_t>(local)])];
  }

  Status Check(const std::vector<std::vector<OpPlace>>& ops) const {
    if (!verify::HasPartners(channel_)) return Status::Ok();
    for (size_t p = 1; p < ops.size(); ++p) MW_RETURN_IF_ERROR(Compare(ops[0], ops[p], p));
    return Status::Ok();
  }

 private:
  Status Compare(const std::vector<OpPlace>& a, const std::vector<OpPlace>& b, size_t p) const {
    const int32_t other = RankOf(p);
    for (size_t k = 0; k < std::min(a.size(), b.size()); ++k) {
      const std::string wrong = Mismatch(a[k], other, b[k]);
      if (wrong.empty()) continue;
      return Bad(
          fmt::format("number {} on {}: {} meets {}: {}; partners must post the same ops in "
                      "the same order",
                      k, group_->name, NameOpOf(programs_, rank_, a[k]),
                      NameOpOf(programs_, other, b[k]), wrong));
    }
    if (a.size() == b.size()) return Status::Ok();
    const bool first_longer = a.size() > b.size();
    const int32_t longer = first_longer ? rank_ : other;
    const int32_t shorter = first_longer ? other : rank_;
    const OpPlace& extra = first_longer ? a[b.size()] : b[a.size()];
    return Bad(
        fmt::format("{} has no partner on {}: {} posts {} ops there, {} posts {}; add the "
                    "missing op or drop the extra one",
                    NameOpOf(programs_, longer, extra), group_->name,
                    verify::NameRank(programs_, longer), std::max(a.size(), b.size()),
                    verify::NameRank(programs_, shorter), std::min(a.size(), b.size())));
  }

  /// A rank of participant `p` in the group of the first participant's representative.
  int32_t RankOf(size_t p) const {
    const Channel::Participant& participant = channel_.participants[p];
    for (int32_t rank : group_->ranks) {
      if (rank != rank_ && classes_.class_of[static_cast<size_t>(rank)] == participant.rank_class) {
        return rank;
      }
    }
    return classes_.representative(participant.rank_class);
  }

  /// Empty when the two ops are partners; else what differs.
  std::string Mismatch(const OpPlace& a, int32_t other, const OpPlace& b) const {
    const RankProgram& pa = ProgramOf(programs_, rank_);
    const RankProgram& pb = ProgramOf(programs_, other);
    const Op& x = verify::OpAt(pa, a);
    const Op& y = verify::OpAt(pb, b);
    const bool edge = group_->kind == CommunicatorKind::kEdge;
    if (edge ? x.kind == y.kind : x.kind != y.kind) {
      return edge ? fmt::format("both {}", ToString(x.kind))
                  : fmt::format("{} and {}", ToString(x.kind), ToString(y.kind));
    }
    const Payload u = PayloadOf(verify::BlockAt(pa, a), x);
    const Payload v = PayloadOf(verify::BlockAt(pb, b), y);
    if (u.elements != v.elements) {
      return fmt::format("sizes of {} and {} elements differ", u.elements, v.elements);
    }
    if (u.dtype != v.dtype) {
      return fmt::format("dtypes {} and {} differ", ToString(u.dtype), ToString(v.dtype));
    }
    if (!edge) return "";
    const Task& s = pa.tasks[static_cast<size_t>(a.task)];
    const Task& t = pb.tasks[static_cast<size_t>(b.task)];
    const bool sends = x.kind == OpKind::kSend;
    const bool agree =
        sends ? LabelsAgree(programs_, pa, s, pb, t) : LabelsAgree(programs_, pb, t, pa, s);
    return agree ? "" : "they are of different micro-batches, chunks or directions";
  }

  const Programs& programs_;
  const RankClasses& classes_;
  const Channel& channel_;
  int32_t rank_ = 0;
  const Group* group_ = nullptr;
};

}  // namespace

Status CheckMessages(const Programs& programs, const RankClasses& classes) {
  MW_RETURN_IF_ERROR(CheckIndices(programs));
  for (size_t p = 0; p < programs.programs.size(); ++p) {
    MW_RETURN_IF_ERROR(CheckKinds(programs, static_cast<int32_t>(p)));
  }
  MW_RETURN_IF_ERROR(CheckPeers(programs));
  const Channels channels = ChannelsOf(programs, classes);
  const verify::ChannelOps ops = verify::ListChannelOps(programs, classes, channels);
  for (size_t c = 0; c < channels.channels.size(); ++c) {
    MW_RETURN_IF_ERROR(ChannelCheck(programs, classes, channels.channels[c]).Check(ops[c]));
  }
  return Status::Ok();
}

}  // namespace meshwright::planner
