#include "runtime/cuda/peer_copies.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <utility>

#include "planner/ir/hash.h"
#include "planner/ir/op_schema.h"
#include "runtime/issue_order.h"

namespace meshwright::runtime::cuda {
namespace {

using planner::CommunicatorKind;
using planner::DType;
using planner::OpKind;

int64_t ThisHost() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return static_cast<int64_t>(planner::Hasher().Add(std::string(name.data())).value());
}

bool Allowed(CommunicatorKind kind, const PeerCopyOptions& options) {
  return (kind == CommunicatorKind::kTensor && options.tensor) ||
         ((kind == CommunicatorKind::kData || kind == CommunicatorKind::kTied) && options.data) ||
         (kind == CommunicatorKind::kEdge && options.edges);
}

/// Position of `rank` in a group that may be carried; -1: it is none.
int PositionIn(const planner::Group& group, int rank, const PeerCopyOptions& options) {
  const bool rings =
      group.kind == CommunicatorKind::kTensor || group.kind == CommunicatorKind::kData;
  const bool size = group.ranks.size() == 2 || (rings && group.ranks.size() > 2);
  if (!size || !Allowed(group.kind, options)) return -1;
  const auto at = std::find(group.ranks.begin(), group.ranks.end(), rank);
  return at == group.ranks.end() ? -1 : static_cast<int>(at - group.ranks.begin());
}

/// The rank `hops` behind the one at `position`, around the ring.
int Neighbour(const planner::Group& group, int position, int hops) {
  const int n = static_cast<int>(group.ranks.size());
  return group.ranks[static_cast<size_t>((position + n + hops) % n)];
}

const planner::RankBinding& BindingOf(const planner::Programs& programs, int rank) {
  return programs.ranks[static_cast<size_t>(rank)];
}

/// Class-local number of the communicator that is `group` on a rank.
int32_t LocalOf(const planner::RankBinding& binding, size_t group) {
  const auto at =
      std::find(binding.groups.begin(), binding.groups.end(), static_cast<int32_t>(group));
  return at == binding.groups.end() ? -1 : static_cast<int32_t>(at - binding.groups.begin());
}

/// Where a rank has the mailboxes of its groups. Its neighbours reckon the same.
struct Mailboxes {
  struct Box {
    int64_t at = 0;
    int64_t ring_bytes = 0;
  };
  std::vector<Box> boxes;  ///< by class-local number of the communicator
  int64_t bytes = 0;
};
Mailboxes MailboxesOf(const planner::Programs& programs, int rank, const PeerCopyOptions& options) {
  const planner::RankBinding& binding = BindingOf(programs, rank);
  const planner::RankProgram& program = programs.programs[static_cast<size_t>(binding.program)];
  Mailboxes all;
  for (size_t c = 0; c < binding.groups.size(); ++c) {
    const planner::Group& group = programs.groups[static_cast<size_t>(binding.groups[c])];
    Mailboxes::Box box{all.bytes};
    if (PositionIn(group, rank, options) >= 0) {
      const bool receives = group.kind == CommunicatorKind::kEdge && group.ranks[1] == rank;
      box.ring_bytes = receives && options.idle
                           ? 2 * planner::kMostBufferedMessageBytes
                           : planner::MessageRingBytes(program, static_cast<int32_t>(c));
      all.bytes += PeerChannel::kCounterBytes;
      const int64_t sums = group.ranks.size() == 2 ? PeerChannel::kMostSmallSumBytes : 0;
      all.bytes += box.ring_bytes > 0 ? box.ring_bytes : sums;
    }
    all.boxes.push_back(box);
  }
  return all;
}

/// With `theirs` as the rank before uses this one's memory.
PeerOp PeerOpOf(const IssuedOp& issued) {
  const ByteRange first = RangeOf(issued, 0);
  const OpKind kind = issued.op->kind;
  PeerOp op{kind, first.end - first.begin, first.begin};
  if (kind == OpKind::kAllGather || kind == OpKind::kShift) op.theirs = RangeOf(issued, 1).begin;
  if (kind == OpKind::kAllGather) {
    const ByteRange out = RangeOf(issued, 1);
    op.bytes = out.end - out.begin;
  }
  return op;
}

DType TypeOf(const IssuedOp& issued) {
  const size_t index = issued.op->kind == OpKind::kAllGather ? 1 : 0;
  return issued.block->tensors[static_cast<size_t>(issued.op->operands[index].tensor)].dtype;
}

/// The partner's kind of an op of `kind`.
OpKind MatchOf(OpKind kind) {
  if (kind == OpKind::kSend) return OpKind::kRecv;
  return kind == OpKind::kRecv ? OpKind::kSend : kind;
}

Result<std::vector<PeerOp>> OpsOf(const PeerSide& side, const PeerRoutes& routes) {
  MW_ASSIGN_OR_RETURN(const IssueOrder order, MakeIssueOrder(*side.program));
  std::vector<PeerOp> ops;
  for (const IssuedOp& issued : order.ops) {
    const OpKind kind = issued.op->kind;
    const bool carried = planner::IsCollective(kind) || planner::IsMessage(kind);
    if (!carried || issued.op->attributes.communicator != side.local) continue;
    const PeerOp op = PeerOpOf(issued);
    if (routes.Of(kind, op.bytes, TypeOf(issued)) != planner::PeerCarrier::kNccl) {
      ops.push_back(op);
    }
  }
  return ops;
}

}  // namespace

Result<std::optional<std::vector<PeerOp>>> PeerOps(std::span<const PeerSide> members,
                                                   size_t position, const PeerRoutes& routes) {
  std::vector<std::vector<PeerOp>> all;
  for (const PeerSide& side : members) {
    MW_ASSIGN_OR_RETURN(all.emplace_back(), OpsOf(side, routes));
  }
  const auto next = [&](size_t member) -> const std::vector<PeerOp>& {
    return all[(member + 1) % all.size()];
  };
  for (size_t member = 0; member + 1 < all.size(); ++member) {
    const bool match = std::equal(all[member].begin(), all[member].end(), next(member).begin(),
                                  next(member).end(), [](const PeerOp& a, const PeerOp& b) {
                                    return b.kind == MatchOf(a.kind) && a.bytes == b.bytes;
                                  });
    if (!match) return std::optional<std::vector<PeerOp>>();
  }
  std::vector<PeerOp> ops = all[position];
  for (size_t i = 0; i < ops.size(); ++i) ops[i].theirs = next(position)[i].theirs;
  return std::optional(std::move(ops));
}

/// What a rank tells the others of itself, in 64-bit words.
struct PeerCopies::Entry {
  int64_t host = 0;
  int64_t usable = 0;  ///< the driver can do it
  cudaIpcMemHandle_t arena{};
  cudaIpcMemHandle_t mailboxes{};
};

/// Memory of another rank. Its handles can be opened once.
struct PeerCopies::Mapping {
  std::byte* arena = nullptr;
  std::byte* mailboxes = nullptr;
  Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (arena != nullptr) static_cast<void>(cudaIpcCloseMemHandle(arena));
    if (mailboxes != nullptr) static_cast<void>(cudaIpcCloseMemHandle(mailboxes));
  }
};

PeerCopies::PeerCopies(int device, size_t groups) : device_(device), channels_(groups) {}

PeerCopies::~PeerCopies() {
  if (releasing_.joinable()) releasing_.join();
  channels_.clear();
  mappings_.clear();
  if (release_ != nullptr) static_cast<void>(cudaStreamDestroy(release_));
}

Status PeerCopies::Share(std::byte* arena, Entry* own) {
  own->host = ThisHost();
  own->usable = CheckStreamMemoryOps().ok() ? 1 : 0;
  MW_RETURN_IF_ERROR(mailboxes_.Allocate(mailbox_bytes_));
  MW_CUDA_CALL(cudaMemset(mailboxes_.data(), 0, static_cast<size_t>(mailbox_bytes_)));
  MW_CUDA_CALL(cudaDeviceSynchronize());
  MW_CUDA_CALL(cudaStreamCreateWithFlags(&release_, cudaStreamNonBlocking));
  const bool shared = cudaIpcGetMemHandle(&own->arena, arena) == cudaSuccess &&
                      cudaIpcGetMemHandle(&own->mailboxes, mailboxes_.data()) == cudaSuccess;
  static_cast<void>(cudaGetLastError());  // memory that cannot be shared is no error
  if (!shared) own->usable = 0;
  return Status::Ok();
}

/// False when the rank's memory cannot be reached.
Result<bool> PeerCopies::Map(const Entry& theirs, int rank) {
  auto mapping = std::make_unique<Mapping>();
  const auto open = [](const cudaIpcMemHandle_t& handle, std::byte** to) {
    void* address = nullptr;
    const cudaError_t error =
        cudaIpcOpenMemHandle(&address, handle, cudaIpcMemLazyEnablePeerAccess);
    if (error == cudaSuccess) *to = static_cast<std::byte*>(address);
    return error == cudaSuccess;
  };
  const bool opened =
      open(theirs.arena, &mapping->arena) && open(theirs.mailboxes, &mapping->mailboxes);
  static_cast<void>(cudaGetLastError());  // a GPU that cannot be reached is no error
  if (opened) mappings_[static_cast<size_t>(rank)] = std::move(mapping);
  return opened;
}

/// The channel of a group whose ranks reach each other.
Status PeerCopies::Open(const planner::Programs& programs, int rank, size_t g,
                        const PeerCopyOptions& options) {
  const planner::Group& group = programs.groups[g];
  const int position = PositionIn(group, rank, options);
  std::vector<PeerSide> members;
  for (const int32_t r : group.ranks) {
    const planner::RankBinding& binding = BindingOf(programs, r);
    members.push_back(
        {&programs.programs[static_cast<size_t>(binding.program)], LocalOf(binding, g)});
  }
  const auto ranks = static_cast<int64_t>(members.size());
  const PeerRoutes routes{group.kind, ranks, options.moves};
  MW_ASSIGN_OR_RETURN(auto ops, PeerOps(members, static_cast<size_t>(position), routes));
  // The same on all ranks; NCCL will say what does not match.
  if (!ops || (ops->empty() && !options.idle)) return Status::Ok();
  const auto box = [&](int of) {
    const auto local = static_cast<size_t>(LocalOf(BindingOf(programs, of), g));
    return MailboxesOf(programs, of, options).boxes[local];
  };
  const int next = Neighbour(group, position, 1), before = Neighbour(group, position, -1);
  const Mapping& theirs = *mappings_[static_cast<size_t>(next)];
  const Mailboxes::Box own = box(rank), their_box = box(next);
  PeerChannel::Ends ends{position, static_cast<int>(ranks)};
  ends.their_arena = theirs.arena;
  ends.own_mailbox = mailboxes_.data() + own.at;
  ends.their_mailbox = theirs.mailboxes + their_box.at;
  ends.before_mailbox = mappings_[static_cast<size_t>(before)]->mailboxes + box(before).at;
  ends.own_ring_bytes = own.ring_bytes;
  ends.their_ring_bytes = their_box.ring_bytes;
  channels_[g] = std::make_unique<PeerChannel>(ends);
  channels_[g]->Follow(*std::move(ops), routes);
  return Status::Ok();
}

Result<std::unique_ptr<PeerCopies>> PeerCopies::Connect(Communicator& world,
                                                        const planner::Programs& programs,
                                                        int device, std::byte* arena,
                                                        const PeerCopyOptions& options) {
  const int rank = world.rank();
  const auto ranks = static_cast<size_t>(world.size());
  std::unique_ptr<PeerCopies> copies(new PeerCopies(device, programs.groups.size()));
  copies->mappings_.resize(ranks);
  Entry own;
  // A rank without pairs shares some, too: nobody opens it.
  copies->mailbox_bytes_ =
      std::max(MailboxesOf(programs, rank, options).bytes, PeerChannel::kCounterBytes);
  MW_RETURN_IF_ERROR(copies->Share(arena, &own));
  static_assert(sizeof(Entry) % sizeof(int64_t) == 0);
  std::vector<Entry> all(ranks);
  MW_RETURN_IF_ERROR(world.AllGather(reinterpret_cast<const std::byte*>(&own),
                                     reinterpret_cast<std::byte*>(all.data()),
                                     sizeof(Entry) / sizeof(int64_t), DType::kI64));
  std::vector<int64_t> reached(ranks, 0);
  for (const planner::Group& group : programs.groups) {
    const int position = PositionIn(group, rank, options);
    if (position < 0) continue;
    for (const int hops : {1, -1}) {
      const int neighbour = Neighbour(group, position, hops);
      if (reached[static_cast<size_t>(neighbour)] != 0) continue;
      const Entry& theirs = all[static_cast<size_t>(neighbour)];
      if (theirs.host != own.host || theirs.usable == 0 || own.usable == 0) continue;
      MW_ASSIGN_OR_RETURN(const bool mapped, copies->Map(theirs, neighbour));
      reached[static_cast<size_t>(neighbour)] = mapped ? 1 : 0;
    }
  }
  std::vector<int64_t> by_all(ranks * ranks);
  MW_RETURN_IF_ERROR(world.AllGather(reinterpret_cast<const std::byte*>(reached.data()),
                                     reinterpret_cast<std::byte*>(by_all.data()),
                                     static_cast<int64_t>(ranks), DType::kI64));
  const auto connected = [&](int from, int to) {
    return by_all[static_cast<size_t>(from) * ranks + static_cast<size_t>(to)] != 0;
  };
  for (size_t g = 0; g < programs.groups.size(); ++g) {
    const planner::Group& group = programs.groups[g];
    if (PositionIn(group, rank, options) < 0) continue;
    bool ring = true;  // the same answer on all of its ranks
    for (int p = 0; p < static_cast<int>(group.ranks.size()); ++p) {
      const int at = Neighbour(group, p, 0), next = Neighbour(group, p, 1);
      ring = ring && connected(at, next) && connected(next, at);
    }
    if (ring) MW_RETURN_IF_ERROR(copies->Open(programs, rank, g, options));
  }
  const bool any = std::any_of(copies->channels_.begin(), copies->channels_.end(),
                               [](const auto& channel) { return channel != nullptr; });
  if (!any) copies.reset();
  return copies;
}

void PeerCopies::Release() {
  releasing_ = std::thread([this] {
    // Above every value that is waited for, which are compared as differences of 32 bits.
    static_cast<void>(cudaSetDevice(device_));
    static_cast<void>(
        cudaMemsetAsync(mailboxes_.data(), 0x3f, static_cast<size_t>(mailbox_bytes_), release_));
  });
}

}  // namespace meshwright::runtime::cuda
