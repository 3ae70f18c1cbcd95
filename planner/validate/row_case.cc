#include "planner/validate/row_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <utility>

#include "topologies/cluster.h"
#include "topologies/cluster_io.h"

namespace meshwright::planner::validate {
namespace {

using stack::LayerMode;
using stack::LinearFormat;
using stack::Schedule;
using stack::ShardingLevel;
using stack::Split;

std::string Lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

bool Has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

// Beyond these, products of sizes leave 64 bits.
constexpr int64_t kMostRanks = int64_t{1} << 20;
constexpr int64_t kMostSamples = int64_t{1} << 30;
constexpr int64_t kMostHostGpus = 16;              // beyond: NVLink domains of many hosts
constexpr int64_t kMostTokens = int64_t{1} << 24;  // of a sequence

/// Shipped cluster and profile by what tables call the GPU; the first that occurs in the name.
struct GpuName {
  std::string_view part;
  const char* cluster;
  const char* profile;
};
constexpr GpuName kGpuNames[] = {
    {"gb300", "gb200-nvl72", "gb300"},
    {"gb200", "gb200-nvl72", "gb200"},
    {"b300", "hgx-b200", "b300"},
    {"b200", "hgx-b200", "b200"},
    {"h200", "dgx-h200", "h200-sxm"},
    {"h800", "dgx-h100", "h800"},
    {"h100-96gb-hbm2e", "dgx-h100", "h100-hbm2e"},
    {"h100", "dgx-h100", "h100-sxm"},
    {"a800", "dgx-a100-80", "a100-80"},
    {"a100-40", "dgx-a100-40", "a100-40"},
    {"a100-sxm4-40", "dgx-a100-40", "a100-40"},
    {"a100-pcie", "dgx-a100-80", "a100-pcie-80"},
    {"a100", "dgx-a100-80", "a100-80"},
    {"l40s", "l40s-8", "l40s"},
    {"v100", "dgx-1-v100", "v100-32"},
};

Status ReadFormat(const std::string& cell, bool old, Split* split,
                  std::vector<std::string>* assumptions) {
  const std::string text = Lower(cell);
  if (text.empty()) {
    split->format = old ? LinearFormat::kFp16 : LinearFormat::kBf16;
    assumptions->push_back(fmt::format("precision = {}", ToString(split->format)));
  } else if (Has(text, "nvfp4")) {
    split->format = LinearFormat::kNvFp4;
  } else if (Has(text, "mxfp8")) {
    split->format = LinearFormat::kMxFp8;
  } else if (Has(text, "fp8")) {
    split->format = LinearFormat::kFp8;
  } else if (Has(text, "bf16")) {
    split->format = LinearFormat::kBf16;
  } else if (Has(text, "fp16")) {
    split->format = LinearFormat::kFp16;
  } else if (Has(text, "fp32") || Has(text, "tf32")) {
    split->format = LinearFormat::kFp32;
  } else {
    return Unsupported("precision: found '" + cell +
                       "'; allowed: bf16, fp16, fp8, mxfp8, nvfp4, fp32");
  }
  return Status::Ok();
}

Status ReadMode(const std::string& cell, LayerMode* mode, std::vector<std::string>* assumptions) {
  const std::string text = Lower(cell);
  if (text.empty() || text == "none" || text == "no") {
    *mode = LayerMode::kKeep;
    if (text.empty()) assumptions->push_back("recompute = none");
  } else if (Has(text, "selective")) {
    *mode = LayerMode::kSelective;
  } else if (Has(text, "full") || text == "yes") {
    *mode = LayerMode::kFull;
  } else {
    return Unsupported("recompute: found '" + cell + "'; allowed: none, selective, full");
  }
  return Status::Ok();
}

void ReadSharding(const std::string& cell, Split* split, const stack::StackSpec& spec,
                  std::vector<std::string>* assumptions) {
  const std::string text = Lower(cell);
  if (Has(text, "shard_grad_op") || Has(text, "zero-2") || Has(text, "zero2")) {
    split->sharding = ShardingLevel::kZero2;
  } else if (Has(text, "fsdp") || Has(text, "full_shard") || Has(text, "zero-3") ||
             Has(text, "zero3")) {
    split->sharding = ShardingLevel::kZero3;
  } else if (Has(text, "zero-1") || Has(text, "zero1") || text == "yes" || Has(text, "dist")) {
    split->sharding = ShardingLevel::kZero1;
  } else if (text.empty()) {
    const bool offers = std::find(spec.sharding.begin(), spec.sharding.end(),
                                  ShardingLevel::kNone) == spec.sharding.end();
    split->sharding = offers ? spec.sharding.front() : ShardingLevel::kNone;
    assumptions->push_back(fmt::format("zero_dist_optimizer = {}", ToString(split->sharding)));
  } else {
    split->sharding = ShardingLevel::kNone;
  }
}

/// Gb/s a GPU that the text states, 0: none.
double NetworkGbit(const std::string& interconnect, int64_t gpus_per_node) {
  const std::string text = Lower(interconnect);
  int count = 0;
  int rate = 0;
  if (Has(text, "gbps node-node") && std::sscanf(text.c_str(), "%d", &rate) == 1 && rate > 0) {
    return static_cast<double>(rate) / static_cast<double>(gpus_per_node);
  }
  for (const char* name : {"omnipath", "hdr", "ndr"}) {
    const size_t at = text.find(name);
    if (at == std::string::npos) continue;
    const size_t times = text.rfind('x', at);
    if (times == std::string::npos || times == 0) continue;
    size_t digits = times;
    while (digits > 0 && std::isdigit(static_cast<unsigned char>(text[digits - 1])) != 0) --digits;
    if (digits == times) continue;
    if (std::sscanf(text.c_str() + digits, "%d", &count) != 1) continue;
    rate = name[0] == 'o' ? 100 : name[0] == 'h' ? 200 : 400;
    return static_cast<double>(count) * rate / static_cast<double>(gpus_per_node);
  }
  const size_t per_gpu = text.find("gb/s rdma per gpu");
  if (per_gpu != std::string::npos && per_gpu >= 4 &&
      std::sscanf(text.c_str() + per_gpu - 4, "%d", &rate) == 1) {
    return rate;
  }
  return 0;
}

}  // namespace

struct CaseMaker::Cache {
  std::map<std::string, stack::StackSpec> stacks;
  std::map<std::string, cost::DeviceProfile> profiles;
  std::map<std::pair<std::string, bool>, stack::Fabric> fabrics;

  Result<stack::StackSpec> Stack(const std::string& name) {
    const auto found = stacks.find(name);
    if (found != stacks.end()) return found->second;
    MW_ASSIGN_OR_RETURN(stacks[name], stack::LoadStack(name));
    return stacks[name];
  }
  Result<cost::DeviceProfile> Profile(const std::string& name) {
    const auto found = profiles.find(name);
    if (found != profiles.end()) return found->second;
    MW_ASSIGN_OR_RETURN(profiles[name], cost::LoadDeviceProfile(name));
    return profiles[name];
  }
  Result<stack::Fabric> FabricFor(const std::string& cluster, int64_t gpus) {
    const bool many = gpus > 8;
    const auto found = fabrics.find({cluster, many});
    if (found != fabrics.end()) return found->second;
    MW_ASSIGN_OR_RETURN(const topologies::Cluster shipped, topologies::ResolveCluster(cluster, {}));
    // Two domains show what lies between them; how many more there are changes nothing.
    const int64_t wanted =
        many ? std::max<int64_t>(2 * shipped.device_count(), 16) : shipped.device_count();
    MW_ASSIGN_OR_RETURN(const topologies::Cluster sized, shipped.WithDevices(wanted));
    MW_ASSIGN_OR_RETURN(const stack::Fabric fabric, stack::FabricOf(sized));
    fabrics[{cluster, many}] = fabric;
    return fabric;
  }
};

CaseMaker::CaseMaker(std::vector<SourceFacts> facts, CaseOptions options)
    : facts_(std::move(facts)), options_(std::move(options)), cache_(std::make_unique<Cache>()) {}
CaseMaker::~CaseMaker() = default;

namespace {

/// Stack of a row that no source entry names.
std::string GuessStack(const MeasuredRow& row) {
  const std::string sharding = Lower(row.Text("zero_dist_optimizer"));
  if (Has(sharding, "fsdp2")) return "fsdp2";
  if (Has(sharding, "full_shard") || Has(sharding, "shard_grad_op")) return "fsdp";
  if (Has(sharding, "fsdp")) return "fsdp2";
  if (Has(sharding, "zero-3") || Has(sharding, "zero-2")) return "deepspeed";
  const std::string year = row.Text("year");
  return !year.empty() && year < "2023" ? "megatron-2022" : "megatron";
}

/// tp, cp, pp, virtual stages, ep and dp.
Status ReadAxes(const MeasuredRow& row, Split* split, std::vector<std::string>* assumptions) {
  int64_t gpus = 1;
  const std::pair<const char*, int64_t*> columns[] = {
      {"tp", &split->tp}, {"cp", &split->cp}, {"pp", &split->pp}, {"vpp", &split->virtual_stages},
      {"ep", &split->ep}, {"gpus", &gpus}};
  for (const auto& [column, value] : columns) {
    MW_ASSIGN_OR_RETURN(const std::optional<int64_t> cell, row.Count(column));
    *value = cell.value_or(1);
    if (*value > kMostRanks) {
      return Unsupported(
          fmt::format("{}: found {}; allowed: at most {}", column, *value, kMostRanks));
    }
  }
  const int64_t model_ranks = split->tp * split->cp * split->pp;
  if (gpus % model_ranks != 0) {
    return Unsupported(
        fmt::format("gpus = {} is not a multiple of tp x cp x pp = {}", gpus, model_ranks));
  }
  split->dp = gpus / model_ranks;
  MW_ASSIGN_OR_RETURN(const std::optional<int64_t> dp, row.Count("dp"));
  if (dp && *dp != split->dp) {
    const bool with_ep = *dp * split->ep == split->dp || *dp == split->dp * split->ep;
    if (!with_ep) {
      return Unsupported(
          fmt::format("dp = {} contradicts gpus / (tp x cp x pp) = {}", *dp, split->dp));
    }
    assumptions->push_back(
        fmt::format("dp = {} (the row's {} leaves expert ranks out)", split->dp, *dp));
  }
  if (split->tp * split->cp * split->dp % split->ep != 0) {
    return Unsupported(fmt::format("ep = {} does not divide tp x cp x dp = {}", split->ep,
                                   split->tp * split->cp * split->dp));
  }
  split->schedule =
      split->virtual_stages > 1 ? Schedule::kInterleaved : Schedule::kOneForwardOneBackward;
  return Status::Ok();
}

/// Micro-batches, behind ReadAxes.
Status ReadBatch(const MeasuredRow& row, const SourceFacts& facts, Split* split,
                 std::vector<std::string>* assumptions) {
  MW_ASSIGN_OR_RETURN(const std::optional<int64_t> batch, row.Count("global_batch"));
  MW_ASSIGN_OR_RETURN(std::optional<int64_t> micro, row.Count("micro_batch"));
  if (!batch) return Unsupported("the field 'global_batch' is blank");
  if (!micro && facts.one_micro_batch && *batch % split->dp == 0) {
    micro = *batch / split->dp;
    assumptions->push_back("one micro-batch a step");
  }
  if (!micro) return Unsupported("the field 'micro_batch' is blank");
  if (*batch > kMostSamples || *micro > kMostSamples) {
    return Unsupported(fmt::format("global_batch = {}, micro_batch = {}; allowed: at most {}",
                                   *batch, *micro, kMostSamples));
  }
  split->micro_batch = *micro;
  if (facts.local_batch && split->pp > 1) {
    split->micro_batch = std::max<int64_t>(*micro / split->pp, 1);
    assumptions->push_back(
        fmt::format("micro-batches of {}: the local batch cut in pp parts", split->micro_batch));
  }
  const int64_t per_step = split->micro_batch * split->dp;
  if (*batch % per_step != 0) {
    return Unsupported(fmt::format("global_batch = {} is not a multiple of micro_batch x dp = {}",
                                   *batch, per_step));
  }
  split->micro_batches = *batch / per_step;
  return Status::Ok();
}

/// Sequence and precision, recomputation, sharding, sequence parallelism.
Status ReadTraining(const MeasuredRow& row, RowCase* out) {
  MW_ASSIGN_OR_RETURN(const std::optional<int64_t> sequence, row.Count("seq"));
  if (!sequence) return Unsupported("the field 'seq' is blank");
  if (*sequence > kMostTokens) {
    return Unsupported(fmt::format("seq: found {}; allowed: at most {}", *sequence, kMostTokens));
  }
  out->inputs.sequence = *sequence;
  const int64_t heads = out->inputs.module.layer_kinds.front().attention.heads;
  if (heads % out->split.tp != 0) {
    return Unsupported(
        fmt::format("heads = {} is not a multiple of tp = {}", heads, out->split.tp));
  }
  const bool old = !out->inputs.stack.lowering.fused_attention;  // stacks of before 2023
  MW_RETURN_IF_ERROR(ReadFormat(row.Text("precision"), old, &out->split, &out->assumptions));
  MW_RETURN_IF_ERROR(ReadMode(row.Text("recompute"), &out->mode, &out->assumptions));
  std::string sharding = row.Text("zero_dist_optimizer");
  if (sharding == "vocab tp") {  // says nothing of sharding
    out->inputs.stack.lowering.vocabulary_parallel = true;
    sharding.clear();
  }
  ReadSharding(sharding, &out->split, out->inputs.stack, &out->assumptions);
  const std::string asked = Lower(row.Text("sequence_parallel"));
  out->split.sequence_parallel = out->split.tp > 1 && (asked == "yes" || (asked.empty() && !old));
  stack::StackLowering& lowering = out->inputs.stack.lowering;
  if (lowering.compiled_norms && row.Text("notes").starts_with("eager")) {
    lowering.compiled_norms = false;
    lowering.library_norms = true;
    out->assumptions.push_back("layers not compiled");
  }
  if (asked.empty() && out->split.tp > 1) {
    out->assumptions.push_back(out->split.sequence_parallel ? "sequence_parallel = yes"
                                                            : "sequence_parallel = no");
  }
  out->inputs.frozen = Has(Lower(row.Text("model")), "lora");
  if (out->inputs.frozen)
    out->assumptions.push_back("base weights frozen, adapters' work left out");
  return Status::Ok();
}

Result<GpuName> NameOf(const MeasuredRow& row) {
  const std::string gpu = Lower(row.Text("gpu"));
  for (const GpuName& name : kGpuNames) {
    if (Has(gpu, name.part)) return name;
  }
  return Unsupported("gpu: found '" + row.Text("gpu") +
                     "', which no shipped profile describes; give --profile");
}

/// GPUs of a node and the network, as the row or its source state them.
Status AdjustFabric(const MeasuredRow& row, const SourceFacts& facts, RowCase* out) {
  stack::Fabric& fabric = out->inputs.fabric;
  MW_ASSIGN_OR_RETURN(const std::optional<int64_t> per_node, row.Count("gpus_per_node"));
  if (per_node && *per_node < fabric.domain_gpus && fabric.domain_gpus <= kMostHostGpus) {
    fabric.domain_gpus = *per_node;
    fabric.host_gpus = *per_node;
  }
  // What was measured on the source's machine counts more than what its parts could do.
  double gbit = facts.network_gbit_per_gpu;
  if (gbit == 0) gbit = NetworkGbit(row.Text("interconnect"), fabric.host_gpus);
  if (gbit > 0) {
    fabric.network_share = BytesPerSecond(gbit * 1e9 / 8);
    out->assumptions.push_back(fmt::format("network {:.3g} Gb/s a GPU", gbit));
  }
  return Status::Ok();
}

}  // namespace

Result<RowCase> CaseMaker::Make(const MeasuredRow& original) {
  MeasuredRow row = original;
  RowCase out;
  SourceFacts facts;
  for (const SourceFacts& entry : facts_) {
    const bool then = entry.year.empty() || entry.year == row.Text("year");
    if (row.id.starts_with(entry.prefix) && then) facts = entry;
  }
  for (const auto& [column, text] : facts.cells) {
    if (row.Text(column).empty()) {
      row.cells[column] = text;
      out.assumptions.push_back(fmt::format("{} = {} ({})", column, text, facts.why));
    }
  }
  const std::string stack = !options_.stack.empty() ? options_.stack
                            : !facts.stack.empty()  ? facts.stack
                                                    : GuessStack(row);
  MW_ASSIGN_OR_RETURN(out.inputs.stack, cache_->Stack(stack));
  out.stack = out.inputs.stack.name;
  MW_ASSIGN_OR_RETURN(out.inputs.module, ModuleOfRow(row, &out.assumptions));
  MW_RETURN_IF_ERROR(ReadAxes(row, &out.split, &out.assumptions));
  MW_RETURN_IF_ERROR(ReadBatch(row, facts, &out.split, &out.assumptions));
  MW_ASSIGN_OR_RETURN(const GpuName gpu, NameOf(row));
  out.cluster = gpu.cluster;
  const std::string profile = !options_.profile.empty() ? options_.profile
                              : !facts.profile.empty()  ? facts.profile
                                                        : gpu.profile;
  MW_ASSIGN_OR_RETURN(out.inputs.profile, cache_->Profile(profile));
  MW_ASSIGN_OR_RETURN(out.inputs.fabric, cache_->FabricFor(gpu.cluster, out.split.ranks()));
  out.assumptions.push_back(fmt::format("cluster {}, profile {}", gpu.cluster, profile));
  MW_RETURN_IF_ERROR(AdjustFabric(row, facts, &out));
  MW_RETURN_IF_ERROR(ReadTraining(row, &out));
  return out;
}

}  // namespace meshwright::planner::validate
