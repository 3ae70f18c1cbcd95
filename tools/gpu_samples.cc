#include "tools/gpu_samples.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "planner/predict/prices.h"
#include "tools/communication_samples.h"

namespace meshwright::tools {
namespace {

using nlohmann::json;

constexpr char kFormat[] = "meshwright-gpu-samples";
constexpr int64_t kVersion = 1;

cost::GemmShape ShapeOf(int64_t m, int64_t n, int64_t k, const std::string& kind) {
  cost::GemmShape shape{m, n, k};
  shape.accumulate = kind == planner::ToString(planner::OpKind::kLinearWeightGrad);
  return shape;
}

}  // namespace

cost::GpuSamples ToGpuSamples(const runtime::GpuMeasurement& m) {
  cost::GpuSamples out;
  out.device = m.device;
  out.software = fmt::format("driver for CUDA {}.{}, cuBLASLt {}, cuDNN {}", m.driver / 1000,
                             m.driver % 1000 / 10, m.cublaslt, m.cudnn);
  out.multiprocessors = m.multiprocessors;
  out.copy_rate = BytesPerSecond(m.copy_bytes_per_s);
  out.launch = Seconds(m.launch_s);
  out.graph_launch = Seconds(m.graph_launch_s);
  out.mix_clock = m.mix_clock;
  out.issue_kernel = Seconds(m.issue_kernel_s);
  out.issue_product = Seconds(m.issue_product_s);
  out.issue_attention = Seconds(m.issue_attention_s);
  out.context_memory = Bytes(m.context_bytes);
  out.library_memory = Bytes(m.library_bytes);
  for (const runtime::GpuProductSample& s : m.products) {
    out.products.push_back({ShapeOf(s.m, s.n, s.k, planner::ToString(s.kind)),
                            planner::ToString(s.kind), Seconds(s.seconds)});
  }
  for (const runtime::GpuAttentionSample& s : m.attention) {
    out.attention.push_back({s.shape.head_dim, s.shape.sequence, s.shape.causal, s.backward,
                             Flops(s.flops), Seconds(s.seconds)});
  }
  for (const runtime::GpuKernelSample& s : m.kernels) {
    out.kernels.push_back(
        {planner::KernelName(s.kind, s.attributes), Bytes(s.bytes), Seconds(s.seconds)});
  }
  return out;
}

json GpuSamplesJson(const cost::GpuSamples& s) {
  json products = json::array();
  for (const cost::ProductTime& p : s.products) {
    products.push_back({{"kind", p.kind},
                        {"m", p.shape.m},
                        {"n", p.shape.n},
                        {"k", p.shape.k},
                        {"seconds", p.time.value()}});
  }
  json attention = json::array();
  for (const cost::AttentionTime& a : s.attention) {
    attention.push_back({{"head_dim", a.head_dim},
                         {"length", a.length},
                         {"causal", a.causal},
                         {"backward", a.backward},
                         {"flops", a.flops.value()},
                         {"seconds", a.time.value()}});
  }
  json kernels = json::array();
  for (const cost::KernelTime& k : s.kernels) {
    kernels.push_back(
        {{"kernel", k.kernel}, {"bytes", k.bytes.value()}, {"seconds", k.time.value()}});
  }
  json d = {{"format", kFormat},
            {"version", kVersion},
            {"device", s.device},
            {"software", s.software},
            {"multiprocessors", s.multiprocessors},
            {"copy_bytes_per_s", s.copy_rate.value()},
            {"launch_s", s.launch.value()},
            {"graph_launch_s", s.graph_launch.value()},
            {"mix_clock", s.mix_clock},
            {"issue_kernel_s", s.issue_kernel.value()},
            {"issue_product_s", s.issue_product.value()},
            {"issue_attention_s", s.issue_attention.value()},
            {"context_bytes", s.context_memory.value()},
            {"library_bytes", s.library_memory.value()},
            {"products", std::move(products)},
            {"attention", std::move(attention)},
            {"kernels", std::move(kernels)}};
  if (s.communication) d["communication"] = CommunicationJson(*s.communication);
  return d;
}

Result<cost::GpuSamples> ParseGpuSamples(const std::string& text, const std::string& source) {
  cost::GpuSamples s;
  try {
    const json d = json::parse(text);
    if (d.at("format") != kFormat || d.at("version") != kVersion) {
      return InvalidInput(fmt::format(
          "{}: found another format or version; allowed: {} {}, as 'meshwright calibrate --device "
          "cuda --samples FILE' writes it",
          source, kFormat, kVersion));
    }
    s.device = d.at("device").get<std::string>();
    s.software = d.at("software").get<std::string>();
    s.multiprocessors = d.at("multiprocessors").get<int64_t>();
    const auto seconds = [](const json& at, const char* key) {
      return Seconds(at.at(key).get<double>());
    };
    s.copy_rate = BytesPerSecond(d.at("copy_bytes_per_s").get<double>());
    s.launch = seconds(d, "launch_s");
    s.mix_clock = d.value("mix_clock", 0.0);
    s.graph_launch = d.contains("graph_launch_s") ? seconds(d, "graph_launch_s") : s.launch;
    s.issue_kernel = seconds(d, "issue_kernel_s");
    s.issue_product = seconds(d, "issue_product_s");
    s.issue_attention = seconds(d, "issue_attention_s");
    s.context_memory = Bytes(d.at("context_bytes").get<int64_t>());
    s.library_memory = Bytes(d.at("library_bytes").get<int64_t>());
    for (const json& p : d.at("products")) {
      s.products.push_back({ShapeOf(p.at("m").get<int64_t>(), p.at("n").get<int64_t>(),
                                    p.at("k").get<int64_t>(), p.at("kind").get<std::string>()),
                            p.at("kind").get<std::string>(), seconds(p, "seconds")});
    }
    for (const json& a : d.at("attention")) {
      s.attention.push_back({a.at("head_dim").get<int64_t>(), a.at("length").get<int64_t>(),
                             a.at("causal").get<bool>(), a.at("backward").get<bool>(),
                             Flops(a.at("flops").get<double>()), seconds(a, "seconds")});
    }
    for (const json& k : d.at("kernels")) {
      s.kernels.push_back({k.at("kernel").get<std::string>(), Bytes(k.at("bytes").get<int64_t>()),
                           seconds(k, "seconds")});
    }
    if (d.contains("communication")) {
      MW_ASSIGN_OR_RETURN(s.communication, ParseCommunication(d.at("communication"), source));
    }
  } catch (const json::exception& e) {
    return InvalidInput(
        fmt::format("{}: found no GPU samples ({}); allowed: what 'meshwright "
                    "calibrate --device cuda --samples FILE' writes",
                    source, e.what()));
  }
  return s;
}

}  // namespace meshwright::tools
