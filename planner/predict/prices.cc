#include "planner/predict/prices.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <optional>

#include "planner/ir/op_schema.h"

namespace meshwright::planner {
namespace {

int32_t Milli(double share) {
  return static_cast<int32_t>(std::lround(std::clamp(share, 0.0, 1.0) * 1000));
}

Bytes Scaled(int64_t bytes, double share) {
  return Bytes(static_cast<int64_t>(std::ceil(static_cast<double>(bytes) * share)));
}

/// A collective or message as the runtime carries it.
struct Traffic {
  cost::CollectiveWork work;
  cost::PathFacts path;
  int64_t times = 1;  ///< one behind the other
};

/// `reach`: as of PeersReach.
Traffic TrafficOver(const OpWork& of, CommunicatorKind kind, OpKind op, const cost::PathFacts& path,
                    bool reach) {
  const int64_t n = path.ranks;
  Traffic t{{CollectiveKindOf(op), Bytes(of.message_bytes), TrafficOf(kind)}, path};
  const bool peers = reach && t.work.traffic && path.hosts == 1 &&
                     PeerTrafficPossible(of.message_bytes, n, of.dtype);
  if (peers) t.work.carrier = CarrierOf(PeerCarrierOf(op, of.message_bytes, n));
  const bool copied = t.work.carrier == cost::Carrier::kCopyEngines;
  const bool ring = op == OpKind::kAllGather && n > 2 && copied;
  if (op != OpKind::kShift && !ring) return t;
  if (ring) {  // a slice to the next rank at a time
    t.times = n - 1;
    t.work.bytes = Bytes(of.message_bytes / n);
  }
  if (t.work.carrier != cost::Carrier::kNccl) t.path.ranks = t.path.ranks_per_host = 2;
  if (copied) {  // a message each way at once
    t.work.kind = cost::CollectiveKind::kSend;
    t.work.traffic = cost::Traffic::kEdge;
  } else {  // what the gather of all parts would move over a link
    t.work.bytes = Bytes(of.message_bytes * t.path.ranks / (t.path.ranks - 1));
  }
  return t;
}

/// Bytes of the scores of an attention op, half of the square when it is causal.
int64_t ScoreBytes(const OpAttributes& a, DType dtype) {
  const int64_t pairs = a.sequence * a.sequence / (a.causal ? 2 : 1);
  return pairs * a.heads * a.batch * SizeOf(dtype);
}

}  // namespace

/// Paths by shape of the group: for each member in order of device ids the kind of its host, its
/// NVLink domain and host numbered in order of appearance, and its place in the host.
struct Prices::PathCache {
  std::mutex mutex;
  std::map<std::vector<int64_t>, cost::PathFacts> paths;  // guarded by mutex
  int64_t queries = 0;                                    // guarded by mutex
};

cost::CollectiveKind CollectiveKindOf(OpKind kind) {
  switch (kind) {
    case OpKind::kAllReduce:
      return cost::CollectiveKind::kAllReduce;
    case OpKind::kAllGather:
    case OpKind::kShift:
      return cost::CollectiveKind::kAllGather;
    case OpKind::kReduceScatter:
      return cost::CollectiveKind::kReduceScatter;
    default:
      return cost::CollectiveKind::kSend;
  }
}

std::optional<cost::Traffic> TrafficOf(CommunicatorKind kind) {
  switch (kind) {
    case CommunicatorKind::kTensor:
      return cost::Traffic::kTensor;
    case CommunicatorKind::kData:
    case CommunicatorKind::kTied:
      return cost::Traffic::kData;
    case CommunicatorKind::kEdge:
      return cost::Traffic::kEdge;
    default:
      return std::nullopt;
  }
}

cost::Carrier CarrierOf(PeerCarrier carrier) {
  switch (carrier) {
    case PeerCarrier::kNccl:
      return cost::Carrier::kNccl;
    case PeerCarrier::kKernels:
      return cost::Carrier::kKernels;
    case PeerCarrier::kCopyEngines:
      return cost::Carrier::kCopyEngines;
  }
  return cost::Carrier::kNccl;
}

std::string KernelName(OpKind kind, const OpAttributes& attributes) {
  std::string name = RowOf(kind).name;
  switch (kind) {
    case OpKind::kNorm:
    case OpKind::kNormApply:
    case OpKind::kNormGrad:
      return name + "." + ToString(attributes.norm);
    case OpKind::kActivation:
    case OpKind::kActivationGrad:
      name += "." + ToString(attributes.activation);
      return attributes.gated ? name + ".gated" : name;
    default:
      return name;
  }
}

cost::Precision PrecisionOf(DType dtype) {
  switch (dtype) {
    case DType::kBf16:
      return cost::Precision::kBf16;
    case DType::kF64:
      return cost::Precision::kFp64;
    case DType::kF32:
    case DType::kI32:
    case DType::kI64:
      return cost::Precision::kFp32;
  }
  return cost::Precision::kFp32;
}

cost::Work CostWork(const RankProgram& program, const Block& block, const Op& op,
                    double owned_share) {
  const OpWork from = WorkOf(block, op, program);
  cost::Work work;
  work.precision = PrecisionOf(from.dtype);
  work.flops = Flops(from.flops);
  work.read = Bytes(from.bytes_read);
  work.written = Bytes(from.bytes_written);
  work.kernel = KernelName(op.kind, op.attributes);
  switch (from.kind) {
    case WorkKind::kMatrixProduct:
      work.kind = cost::WorkKind::kGemm;
      work.m = from.m;
      work.n = from.n;
      work.k = from.k;
      work.accumulate = op.kind == OpKind::kLinearWeightGrad;
      break;
    case WorkKind::kAttention:
      work.kind = cost::WorkKind::kAttention;
      work.head_dim = op.attributes.head_dim;
      work.kv_length = op.attributes.sequence;
      work.causal = op.attributes.causal;
      work.backward = op.kind == OpKind::kAttentionGrad;
      break;
    case WorkKind::kHost:
      work.kind = cost::WorkKind::kHost;
      break;
    default:
      work.kind = cost::WorkKind::kMemory;
      break;
  }
  // The operands are whole buckets; the kernels touch the owned part.
  if (op.kind == OpKind::kOptimizerStep || op.kind == OpKind::kSquaredNorm) {
    const TensorView* state =
        op.kind == OpKind::kOptimizerStep ? Find(block, op, "state") : nullptr;
    const int64_t owned = state == nullptr ? 0 : state->bytes();
    work.read = Scaled(from.bytes_read - owned, owned_share) + Bytes(owned);
    work.written = Scaled(from.bytes_written - owned, owned_share) + Bytes(owned);
  }
  return work;
}

double Prices::OwnedShare(const RankProgram& program) const {
  return owned_share_[static_cast<size_t>(program.module)];
}

NodePrice Prices::PriceOp(const RankProgram& program, const Block& block, const Op& op) const {
  MW_CHECK(!IsCollective(op.kind) && !IsMessage(op.kind));
  const cost::Work work = CostWork(program, block, op, OwnedShare(program));
  NodePrice price;
  if (!on_cpu()) {
    price.time = model_->PriceOp(work);
    if (work.kind != cost::WorkKind::kHost) price.time += partnered_;
    price.device_milli = 1000;
    return price;
  }
  const cost::OpPrice whole = model_->ExplainOp(work);
  price.time = whole.time;
  price.core_milli = 1000;
  price.memory_milli = whole.memory_milli;
  if (work.kind == cost::WorkKind::kAttention) {
    // On one core its three parts add up: traffic, products and the exponentials of the scores.
    cost::Work scores;
    scores.precision = work.precision;
    scores.kernel = work.kernel + kScoresSuffix;
    scores.read = Bytes(ScoreBytes(op.attributes, WorkOf(block, op, program).dtype));
    price.time +=
        ToNanoseconds(std::min(whole.arithmetic, whole.memory) + model_->ExplainOp(scores).memory);
  }
  if (PlacesOf(program) != CorePlaces::kOwn) {
    // What a rank has in the caches of its core goes when another one has its turn.
    price.time =
        ToNanoseconds(ToSeconds(price.time) / model_->profile().cpu->shared_core_efficiency.value);
  }
  return price;
}

std::vector<std::vector<NodePrice>> Prices::PriceBlocks(const RankProgram& program) const {
  std::vector<std::vector<NodePrice>> prices(program.blocks.size());
  for (size_t b = 0; b < prices.size(); ++b) {
    const Block& block = program.blocks[b];
    for (const Op& op : block.ops) {
      const bool communicates = IsCollective(op.kind) || IsMessage(op.kind);
      prices[b].push_back(communicates ? NodePrice() : PriceOp(program, block, op));
    }
  }
  return prices;
}

NodePrice Prices::PriceThreads(const RankProgram& program, const Block& block, const Op& op,
                               const cost::PathFacts& path) const {
  const cost::CpuModel& cpu = *model_->profile().cpu;
  const OpWork from = WorkOf(block, op, program);
  const int64_t bytes = from.message_bytes;
  const int64_t n = path.ranks;
  cost::Work move;
  move.precision = PrecisionOf(from.dtype);
  const OpKind like = op.kind == OpKind::kShift ? OpKind::kAllGather : op.kind;
  move.kernel = KernelName(IsMessage(op.kind) ? OpKind::kSend : like, op.attributes);
  move.read = Bytes(IsMessage(op.kind) ? bytes : bytes * n);
  move.written = Bytes(op.kind == OpKind::kReduceScatter ? bytes : move.read.value());
  const cost::OpPrice moved = model_->ExplainOp(move);
  const CorePlaces places = PlacesOf(program);
  const Seconds members = moved.memory + static_cast<double>(n - 2) * cpu.collective_step.value;
  const bool apart =
      places == CorePlaces::kOwn || (places == CorePlaces::kPipeline && !IsMessage(op.kind));
  const Seconds whole = members + (apart ? path.local_latency : cpu.collective_latency.value);
  // Where ranks have no cores of their own, waking up one on another core takes time of both.
  const Seconds on_core = places == CorePlaces::kOwn ? moved.memory : whole;
  NodePrice price;
  price.time = ToNanoseconds(whole);
  price.core_milli = whole.value() > 0 ? std::max(1, Milli(on_core / whole)) : 0;
  price.memory_milli =
      whole.value() > 0 ? Milli(moved.memory / whole * moved.memory_milli / 1000.0) : 0;
  return price;
}

NodePrice Prices::PriceCommunication(const RankProgram& program, CommunicatorKind kind,
                                     const Block& block, const Op& op,
                                     const cost::PathFacts& path) const {
  MW_CHECK(IsCollective(op.kind) || IsMessage(op.kind));
  if (path.ranks == 1) return {};
  if (on_cpu() && path.hosts == 1) return PriceThreads(program, block, op, path);
  const bool reach = !on_cpu() && cost::PeersReach(*model_->profile().gpu);
  const Traffic traffic = TrafficOver(WorkOf(block, op, program), kind, op.kind, path, reach);
  const cost::CollectivePrice whole = model_->ExplainCollective(traffic.work, traffic.path);
  NodePrice price;
  price.time = traffic.times * whole.time;
  const double seconds = std::max(ToSeconds(whole.time).value(), 1e-9);
  price.local_milli = Milli(whole.local.value() / seconds);
  price.network_milli = Milli(whole.network.value() / seconds);
  if (on_cpu()) {
    price.core_milli = 1000;
    return price;
  }
  // A product beside it has 1 / (1 + this) of its rate.
  if (whole.beside > 0) {
    price.device_milli = static_cast<int32_t>(std::lround(1000 / whole.beside - 1000));
  }
  return price;
}

Result<cost::PathFacts> Prices::PathOf(std::span<const int32_t> ranks) const {
  std::vector<int> devices;
  devices.reserve(ranks.size());
  for (const int32_t rank : ranks) {
    if (rank < 0 || static_cast<size_t>(rank) >= device_of_rank_.size()) {
      return InvalidInput(
          fmt::format("group: rank {} is not in the plan's {}; lower the plan again", rank,
                      device_of_rank_.size()));
    }
    devices.push_back(DeviceOf(rank));
  }
  std::sort(devices.begin(), devices.end());
  std::vector<int64_t> key;
  key.reserve(4 * devices.size());
  int first_host = 0;
  int64_t hosts = -1;
  int64_t domains = -1;
  int64_t last_host = -1;
  int64_t last_domain = -1;
  for (const int device : devices) {
    const int host = cluster_->HostOf(device);
    int kind = 0;
    for (first_host = 0; kind + 1 < static_cast<int>(cluster_->spec().hosts.size()); ++kind) {
      const int count = cluster_->spec().hosts[static_cast<size_t>(kind)].count;
      if (host < first_host + count) break;
      first_host += count;
    }
    const int size = cluster_->spec().hosts[static_cast<size_t>(kind)].host.nvlink_domain_hosts;
    const int64_t domain = first_host + (host - first_host) / size;
    if (host != last_host) ++hosts;
    if (domain != last_domain) ++domains;
    last_host = host;
    last_domain = domain;
    key.insert(key.end(), {kind, domains, hosts, cluster_->LocalId(device)});
  }
  const std::lock_guard lock(paths_->mutex);
  if (const auto known = paths_->paths.find(key); known != paths_->paths.end()) {
    return known->second;
  }
  ++paths_->queries;
  MW_ASSIGN_OR_RETURN(const topologies::GroupPath group, cluster_->Group(devices));
  cost::PathFacts path;
  path.ranks = group.size;
  path.hosts = group.hosts;
  path.ranks_per_host = group.max_per_host;
  path.local_bandwidth = group.local_bandwidth;
  path.local_latency = group.local_latency;
  path.network_bandwidth = group.network_bandwidth;
  path.network_latency = group.network_latency;
  if (group.hosts > 1) path.fabric = cost::FabricOf(cluster_->spec().fabric.name);
  MW_RETURN_IF_ERROR(cost::Validate(path).WithContext("cluster '" + cluster_->name() + "'"));
  paths_->paths.emplace(std::move(key), path);
  return path;
}

int64_t Prices::path_queries() const {
  const std::lock_guard lock(paths_->mutex);
  return paths_->queries;
}

Result<Prices> MakePrices(const Plan& plan, const topologies::Cluster& cluster,
                          const cost::CostModel& model) {
  const int64_t world = plan.world_size();
  if (static_cast<int64_t>(plan.placement.size()) != world) {
    return InvalidInput(fmt::format("placement: {} entries for {} ranks; give one device a rank",
                                    plan.placement.size(), world));
  }
  Prices prices;
  std::vector<int64_t> sorted = plan.placement;
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 0; i < sorted.size(); ++i) {
    if (sorted[i] < 0 || sorted[i] >= cluster.device_count()) {
      return InvalidInput(
          fmt::format("placement: device {} is not in the {} of cluster '{}'; use a larger cluster "
                      "or place the plan again",
                      sorted[i], cluster.device_count(), cluster.name()));
    }
    if (i > 0 && sorted[i] == sorted[i - 1]) {
      return InvalidInput(fmt::format("placement: device {} is given to two ranks", sorted[i]));
    }
  }
  const auto kind = model.profile().kind;
  for (const int64_t device : plan.placement) {
    const topologies::DeviceInfo& info = cluster.Device(static_cast<int>(device));
    if (info.kind != kind) {
      return InvalidInput(fmt::format(
          "device profile '{}' is of a {}, device {} of cluster '{}' is a {}", model.profile().name,
          topologies::ToString(kind), device, cluster.name(), topologies::ToString(info.kind)));
    }
    prices.device_of_rank_.push_back(static_cast<int>(device));
  }
  const auto& known = model.options().precisions;
  const cost::Precision precision = PrecisionOf(plan.dtype);
  if (std::find(known.begin(), known.end(), precision) == known.end()) {
    return InvalidInput(fmt::format("dtype: the cost model of '{}' was not made for {}",
                                    model.profile().name, cost::ToString(precision)));
  }
  for (const ModulePlan& m : plan.modules) {
    const auto& cpu = model.profile().cpu;
    prices.places_.push_back(cpu ? CorePlacesOf(world, m.tp, m.dp, cpu->cores.value)
                                 : CorePlaces::kOwn);
    const bool sharded = m.sharding == Sharding::kZero1;
    prices.owned_share_.push_back(sharded ? 1.0 / static_cast<double>(m.dp) : 1.0);
  }
  if (const auto& gpu = model.profile().gpu; gpu && world > 1) {
    prices.partnered_ = ToNanoseconds(gpu->partnered_launch.value);
  }
  // Links draw power, too: steps of a tensor pair had 1.40 to 1.55 GHz (cost_models/h200_runs.md).
  const bool traffic = std::ranges::any_of(plan.modules, [](const auto& m) { return m.tp > 1; });
  prices.model_ = std::make_shared<const cost::CostModel>(
      model.WithStretch(std::max(model.options().stretch, traffic ? 1.0 : 0.0)));
  prices.cluster_ = std::make_shared<const topologies::Cluster>(cluster);
  prices.paths_ = std::make_shared<Prices::PathCache>();
  return prices;
}

}  // namespace meshwright::planner
