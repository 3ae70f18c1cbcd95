#include "planner/space/legal.h"

#include <fmt/format.h>

#include <algorithm>

namespace meshwright::planner::space {
namespace {

using stack::RankOrder;
using stack::Schedule;
using stack::ShardingLevel;
using stack::Split;

class Rules {
 public:
  Rules(const std::vector<DeviceGroup>& groups, const SpaceOptions& options, int64_t gpus,
        const Split& split)
      : groups_(groups),
        options_(options),
        module_(groups.front().costs->module()),
        sequence_(groups.front().costs->sequence()),
        gpus_(gpus),
        s_(split) {}

  std::vector<std::string> Broken() {
    if (std::min({s_.tp, s_.cp, s_.ep, s_.expert_tp, s_.pp, s_.virtual_stages, s_.dp,
                  s_.micro_batch, s_.micro_batches}) < 1) {
      Add("every size is 1 or more");
      return std::move(broken_);
    }
    Devices();
    Batch();
    for (const LayerSpec& l : module_.layer_kinds) Layer(l);
    Sequence();
    Experts();
    Pipeline();
    Support();
    Axis();
    return std::move(broken_);
  }

 private:
  void Add(std::string text) { broken_.push_back(std::move(text)); }
  template <typename... T>
  void Require(bool holds, fmt::format_string<T...> text, T&&... values) {
    if (!holds) Add(fmt::format(text, std::forward<T>(values)...));
  }

  void Devices() {
    if (groups_.size() == 1) {
      Require(s_.ranks() == gpus_, "tp {} x cp {} x pp {} x dp {} is not {} GPUs", s_.tp, s_.cp,
              s_.pp, s_.dp, gpus_);
      return;
    }
    int64_t total = 0;
    const int64_t ranks = s_.tp * s_.cp * s_.dp;
    for (const DeviceGroup& g : groups_) {
      total += g.gpus;
      Require(g.gpus % ranks == 0, "{} GPUs of '{}' are not whole stages of {}", g.gpus, g.name,
              ranks);
    }
    Require(s_.ranks() == total, "the split has {} ranks; the groups have {} GPUs", s_.ranks(),
            total);
  }

  void Batch() {
    Require(s_.dp * s_.micro_batch * s_.micro_batches == options_.global_batch,
            "dp {} x micro-batch {} x {} micro-batches is not the global batch of {} samples",
            s_.dp, s_.micro_batch, s_.micro_batches, options_.global_batch);
  }

  void Layer(const LayerSpec& l) {
    const int64_t heads = l.attention.heads, kv = l.attention.kv_heads;
    Require(heads % s_.tp == 0, "tp {} does not divide {} heads", s_.tp, heads);
    Require(kv == 0 || kv % s_.tp == 0 || s_.tp % kv == 0,
            "tp {} neither divides {} key-value heads nor is a multiple", s_.tp, kv);
    if (!l.mlp.moe) {
      Require(l.mlp.ffn % s_.tp == 0, "tp {} does not divide the MLP's width {}", s_.tp, l.mlp.ffn);
      return;
    }
    const MoeSpec& moe = *l.mlp.moe;
    Require(moe.shared_ffn % s_.tp == 0, "tp {} does not divide the shared experts' width {}",
            s_.tp, moe.shared_ffn);
    Require(moe.experts % s_.ep == 0, "ep {} does not divide {} experts", s_.ep, moe.experts);
    Require(moe.expert_ffn % s_.expert_tp == 0,
            "expert tp {} does not divide the experts' width {}", s_.expert_tp, moe.expert_ffn);
  }

  void Sequence() {
    Require(s_.cp == 1 || sequence_ % (2 * s_.cp) == 0,
            "2 x cp {} does not divide the sequence of {} tokens", s_.cp, sequence_);
    if (options_.sequence_parallel_tied) {
      Require(s_.sequence_parallel == (s_.tp > 1),
              "this stack has sequence parallelism exactly where tp > 1");
    }
    if (!s_.sequence_parallel) return;
    Require(s_.tp > 1, "sequence parallelism needs tp > 1");
    Require(sequence_ % s_.cp == 0 && sequence_ / s_.cp % s_.tp == 0,
            "sequence parallelism: tp {} does not divide {} tokens / cp {}", s_.tp, sequence_,
            s_.cp);
  }

  void Experts() {
    const bool experts = Divisibility(module_, sequence_).experts();
    Require(experts || (s_.ep == 1 && s_.expert_tp == 1),
            "ep {} and expert tp {}: the model has no experts", s_.ep, s_.expert_tp);
    Require(s_.tp * s_.cp * s_.dp % (s_.ep * s_.expert_tp) == 0,
            "ep {} x expert tp {} does not divide tp {} x cp {} x dp {}", s_.ep, s_.expert_tp,
            s_.tp, s_.cp, s_.dp);
    Require(s_.expert_tp == 1 || options_.expert_tp, "this stack has no expert tp");
    const bool replicas = s_.dp * s_.cp > 1 || (experts && s_.expert_dp() > 1);
    Require(replicas || s_.sharding == ShardingLevel::kNone,
            "{}: there are no replicas to shard over", ToString(s_.sharding));
  }

  void Pipeline() {
    const int64_t layers = module_.layer_count();
    const bool interleaved = s_.schedule == Schedule::kInterleaved;
    Require(s_.pp * s_.virtual_stages <= layers, "pp {} x {} virtual stages: only {} layers", s_.pp,
            s_.virtual_stages, layers);
    Require(interleaved == (s_.virtual_stages > 1),
            "{} virtual stages: more than one is the interleaved schedule", s_.virtual_stages);
    Require(s_.pp > 1 || s_.schedule == Schedule::kOneForwardOneBackward,
            "schedule {} needs pp > 1", ToString(s_.schedule));
    Require(!interleaved || s_.micro_batches % s_.pp == 0,
            "interleaving: pp {} does not divide {} micro-batches", s_.pp, s_.micro_batches);
    Require(!options_.even_layers || layers % (s_.pp * s_.virtual_stages) == 0,
            "equal stages: pp {} x {} virtual stages do not divide {} layers", s_.pp,
            s_.virtual_stages, layers);
    Require(s_.order == RankOrder::kDataInside || (s_.pp > 1 && s_.dp > 1),
            "rank order {}: it is the other order where pp or dp is 1", ToString(s_.order));
  }

  template <typename T>
  static bool Has(const std::vector<T>& all, T value) {
    return std::find(all.begin(), all.end(), value) != all.end();
  }
  void Support() {
    const auto within = [](int64_t value, int64_t most) { return most <= 0 || value <= most; };
    Require(within(s_.tp, options_.most_tp), "tp {}: at most {}", s_.tp, options_.most_tp);
    Require(within(s_.expert_tp, options_.most_tp), "expert tp {}: at most {}", s_.expert_tp,
            options_.most_tp);
    Require(within(s_.cp, options_.most_cp), "cp {}: at most {}", s_.cp, options_.most_cp);
    Require(within(s_.ep, options_.most_ep), "ep {}: at most {}", s_.ep, options_.most_ep);
    Require(s_.virtual_stages == 1 || within(s_.virtual_stages, options_.most_virtual_stages),
            "{} virtual stages: at most {}", s_.virtual_stages, options_.most_virtual_stages);
    Require(within(s_.micro_batch, options_.most_micro_batch), "micro-batch {}: at most {}",
            s_.micro_batch, options_.most_micro_batch);
    Require(Has(options_.schedules, s_.schedule), "this stack has no schedule {}",
            ToString(s_.schedule));
    Require(Has(options_.formats, s_.format), "this stack or device has no format {}",
            ToString(s_.format));
    const bool replicas = s_.dp * s_.cp > 1 || s_.expert_dp() > 1;
    Require(!replicas || Has(options_.sharding, s_.sharding) ||
                (s_.sharding == ShardingLevel::kNone && s_.dp * s_.cp == 1 &&
                 !Divisibility(module_, sequence_).experts()),
            "this stack has no sharding {}", ToString(s_.sharding));
    Require(s_.pp == 1 || s_.sharding <= options_.most_sharding_in_pipelines,
            "{} in a pipeline: at most {}", ToString(s_.sharding),
            ToString(options_.most_sharding_in_pipelines));
    Require(s_.pp == 1 || s_.dp == 1 || Has(options_.orders, s_.order),
            "this stack has no rank order {}", ToString(s_.order));
  }

  template <typename T>
  void Held(const char* name, const T& value, const std::optional<T>& held,
            const std::optional<T>& excluded) {
    if (held && *held != value) Add(fmt::format("{} is held at another value", name));
    if (excluded && *excluded == value) Add(fmt::format("this {} is excluded", name));
  }
  void Axis() {
    const Axes& h = options_.held;
    const Axes& x = options_.excluded;
    Held("tp", s_.tp, h.tp, x.tp);
    Held("cp", s_.cp, h.cp, x.cp);
    Held("ep", s_.ep, h.ep, x.ep);
    Held("expert tp", s_.expert_tp, h.expert_tp, x.expert_tp);
    Held("pp", s_.pp, h.pp, x.pp);
    Held("virtual stages", s_.virtual_stages, h.virtual_stages, x.virtual_stages);
    Held("dp", s_.dp, h.dp, x.dp);
    Held("micro-batch", s_.micro_batch, h.micro_batch, x.micro_batch);
    Held("sequence parallelism", s_.sequence_parallel, h.sequence_parallel, x.sequence_parallel);
    Held("sharding", s_.sharding, h.sharding, x.sharding);
    Held("schedule", s_.schedule, h.schedule, x.schedule);
    Held("format", s_.format, h.format, x.format);
    Held("rank order", s_.order, h.order, x.order);
  }

  const std::vector<DeviceGroup>& groups_;
  const SpaceOptions& options_;
  const ModuleSpec& module_;
  int64_t sequence_ = 0;
  int64_t gpus_ = 0;
  const Split& s_;
  std::vector<std::string> broken_;
};

}  // namespace

std::vector<std::string> WhyIllegal(const std::vector<DeviceGroup>& groups,
                                    const SpaceOptions& options, int64_t gpus, const Split& split) {
  return Rules(groups, options, gpus, split).Broken();
}

Status NothingLegal(const std::vector<DeviceGroup>& groups, const SpaceOptions& options) {
  // The split that the held members ask for, the rest as small as can be.
  const Axes& h = options.held;
  Split split;
  split.tp = h.tp.value_or(1);
  split.cp = h.cp.value_or(1);
  split.ep = h.ep.value_or(1);
  split.expert_tp = h.expert_tp.value_or(1);
  split.virtual_stages = h.virtual_stages.value_or(1);
  split.sequence_parallel =
      h.sequence_parallel.value_or(options.sequence_parallel_tied && split.tp > 1);
  split.schedule = h.schedule.value_or(split.virtual_stages > 1 ? Schedule::kInterleaved
                                                                : options.schedules.front());
  split.format = h.format.value_or(options.formats.front());
  std::vector<std::string> reasons;
  const std::vector<int64_t> counts = groups.size() == 1 ? options.gpus : std::vector<int64_t>{0};
  for (int64_t gpus : counts) {
    int64_t total = gpus;
    for (const DeviceGroup& g : groups) total += groups.size() > 1 ? g.gpus : 0;
    const int64_t ranks = split.tp * split.cp;
    split.pp = h.pp.value_or(h.dp ? std::max<int64_t>(1, total / (ranks * *h.dp)) : 1);
    split.dp = h.dp.value_or(std::max<int64_t>(1, total / (ranks * split.pp)));
    split.micro_batch = h.micro_batch.value_or(1);
    split.micro_batches =
        std::max<int64_t>(1, options.global_batch / (split.dp * split.micro_batch));
    split.order = h.order.value_or(RankOrder::kDataInside);
    split.sharding = h.sharding.value_or(split.dp * split.cp > 1 ? options.sharding.front()
                                                                 : ShardingLevel::kNone);
    for (std::string& reason : WhyIllegal(groups, options, gpus, split)) {
      if (std::find(reasons.begin(), reasons.end(), reason) == reasons.end()) {
        reasons.push_back(std::move(reason));
      }
    }
  }
  std::string text = "search: no split is legal; e.g. " + stack::ShortName(split) + ": ";
  for (size_t i = 0; i < reasons.size(); ++i) text += (i > 0 ? "; " : "") + reasons[i];
  text += "; free an axis, or change the number of GPUs or the global batch";
  return Infeasible(std::move(text));
}

}  // namespace meshwright::planner::space
