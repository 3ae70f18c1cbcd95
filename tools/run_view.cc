#include "tools/run_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tools/table.h"

namespace meshwright::tools {
namespace {

using nlohmann::json;

/// JSON has no NaN: what was not read back is null.
json NumberJson(double value) {
  return std::isfinite(value) ? json(value) : json();
}

json NumbersJson(const std::vector<double>& values) {
  json list = json::array();
  for (const double value : values) list.push_back(NumberJson(value));
  return list;
}

std::string Deviation(double predicted, double measured) {
  return measured > 0 ? fmt::format("{:+.1f} %", 100 * (predicted - measured) / measured) : "";
}

json CommunicationJson(const std::vector<runtime::CommunicationTime>& times) {
  json list = json::array();
  for (const runtime::CommunicationTime& t : times) {
    list.push_back({{"class", planner::TrafficName(t.traffic)},
                    {"busy_s", t.busy_s},
                    {"hidden_s", t.hidden_s},
                    {"hidden_share", t.hidden_share()}});
  }
  return list;
}

std::string CommunicationText(const std::vector<runtime::CommunicationTime>& times,
                              const Style& style) {
  if (times.empty()) return "";
  Table table({"communication of a step, all ranks", "on the wire", "hidden", "share"});
  for (const runtime::CommunicationTime& t : times) {
    table.Row({planner::TrafficName(t.traffic), SecondsText(t.busy_s), SecondsText(t.hidden_s),
               PercentText(t.hidden_share())});
  }
  return table.ToText(style);
}

int64_t PredictedArena(const planner::Prediction& predicted) {
  int64_t most = 0;
  for (const planner::MemoryBreakdown& m : predicted.memory) most = std::max(most, m.arena());
  return most;
}

}  // namespace

std::string StepText(const runtime::StepReport& r, int64_t steps) {
  return fmt::format("step {} of {}  loss {:.4f}  grad norm {:.4g}  lr {:.3g}  {} tokens/s",
                     r.step + 1, steps, r.loss, r.grad_norm, r.learning_rate,
                     NumberText(r.tokens_per_s));
}

json StepJson(const runtime::StepReport& r) {
  json times = json::object();
  for (size_t kind = 0; kind < r.busy_s.size(); ++kind) {
    if (r.busy_s[kind] > 0)
      times[planner::ToString(static_cast<planner::TaskKind>(kind))] = r.busy_s[kind];
  }
  return {{"step", r.step + 1},
          {"loss", NumberJson(r.loss)},
          {"grad_norm", NumberJson(r.grad_norm)},
          {"lr", r.learning_rate},
          {"tokens_per_s", NumberJson(r.tokens_per_s)},
          {"step_time_s", NumberJson(r.step_time_s)},
          {"times_s", std::move(times)}};
}

double MedianStepTime(const JobSummary& job) {
  std::vector<double> times = job.step_times_s;
  if (times.size() > 1) times.erase(times.begin());
  if (times.empty()) return 0.0;
  std::sort(times.begin(), times.end());
  const size_t middle = times.size() / 2;
  return times.size() % 2 == 1 ? times[middle] : (times[middle - 1] + times[middle]) / 2;
}

json JobJson(const JobSummary& job, const planner::Prediction& predicted) {
  json d = {{"losses", NumbersJson(job.losses)},
            {"grad_norms", NumbersJson(job.grad_norms)},
            {"step_time_s", MedianStepTime(job)},
            {"planned_bytes", job.planned_bytes},
            {"arena_bytes", job.arena_bytes},
            {"trace_rows", job.trace_rows},
            {"errors", json::array()}};
  if (job.device_bytes > 0) {
    d["device_bytes"] = job.device_bytes;
    d["library_bytes"] = job.library_bytes;
    d["nccl_bytes"] = job.nccl_bytes;
  }
  for (const runtime::OpTime& op : job.op_times) {
    d["op_times"].push_back({{"name", op.name}, {"count", op.count}, {"seconds", op.seconds}});
  }
  if (job.limit.total_s() > 0) {
    d["own_limit"] = {{"products_s", job.limit.products_s},
                      {"attention_s", job.limit.attention_s},
                      {"memory_s", job.limit.memory_s},
                      {"share", job.limit.total_s() / MedianStepTime(job)}};
  }
  if (job.communication) d["communication"] = CommunicationJson(*job.communication);
  d["predicted_step_time_s"] = predicted.step_time_s > 0 ? json(predicted.step_time_s) : json();
  return d;
}

std::string JobText(const JobSummary& job, const planner::Plan& plan,
                    const planner::Prediction& predicted, const Style& style) {
  const double measured = MedianStepTime(job);
  std::string text;
  if (!job.losses.empty()) {
    text += fmt::format("{}{}{} steps of {}: loss {:.4f} -> {:.4f} nats a token\n", style.bold,
                        job.losses.size(), style.off, planner::ShortName(plan), job.losses.front(),
                        job.losses.back());
  }
  Table table({"", "predicted", "measured", "deviation"});
  const double tokens = static_cast<double>(plan.global_batch) * static_cast<double>(plan.sequence);
  if (predicted.step_time_s > 0) {
    table.Row({"step time (median)", SecondsText(predicted.step_time_s), SecondsText(measured),
               Deviation(predicted.step_time_s, measured)});
    table.Row({"tokens/s, all ranks", NumberText(tokens / predicted.step_time_s),
               NumberText(tokens / measured),
               Deviation(tokens / predicted.step_time_s, tokens / measured)});
  } else {
    table.Row({"step time (median)", "-", SecondsText(measured), ""});
    table.Row({"tokens/s, all ranks", "-", NumberText(tokens / measured), ""});
  }
  const int64_t arena = PredictedArena(predicted);
  table.Row({"memory, fullest rank", arena > 0 ? BytesText(arena) : BytesText(job.planned_bytes),
             BytesText(job.arena_bytes),
             Deviation(static_cast<double>(arena > 0 ? arena : job.planned_bytes),
                       static_cast<double>(job.arena_bytes))});
  if (job.device_bytes > 0) {
    int64_t total = 0;
    for (const planner::MemoryBreakdown& m : predicted.memory) total = std::max(total, m.total());
    table.Row({"GPU memory in use, fullest", total > 0 ? BytesText(total) : "-",
               BytesText(job.device_bytes),
               total > 0
                   ? Deviation(static_cast<double>(total), static_cast<double>(job.device_bytes))
                   : ""});
  }
  text += table.ToText(style);
  if (!job.op_times.empty()) {
    Table ops({"op, last step", "count", "sum", "each"});
    for (const runtime::OpTime& op : job.op_times) {
      ops.Row({op.name, Thousands(op.count), SecondsText(op.seconds),
               SecondsText(op.seconds / static_cast<double>(op.count))});
    }
    text += ops.ToText(style);
  }
  if (job.communication) text += CommunicationText(*job.communication, style);
  if (job.limit.total_s() > 0 && measured > 0) {
    text += fmt::format(
        "  share of its own limit: {} ({} if products, attention and traffic ran as alone, without "
        "communication)\n",
        PercentText(job.limit.total_s() / measured), SecondsText(job.limit.total_s()));
  }
  if (predicted.step_time_s <= 0)
    text += "  no prediction: the plan was made for other devices than it ran on\n";
  return text;
}

}  // namespace meshwright::tools
