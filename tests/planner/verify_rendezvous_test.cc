// Hand-built task lists under strict rendezvous: small cases, the upstream topologies and the
// two-encoder deadlock (parallelism.md 2.9, 4.3, 4.5).
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "planner/verify/rendezvous.h"

namespace meshwright::planner {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Kind = RendezvousOp::Kind;

RendezvousOp Send(int32_t to, int64_t bytes = 8, const std::string& label = "send") {
  return {Kind::kSend, to, 0, 0, bytes, label};
}
RendezvousOp Recv(int32_t from, int64_t bytes = 8, const std::string& label = "recv") {
  return {Kind::kRecv, from, 0, 0, bytes, label};
}

TEST(Rendezvous, BothSendFirstDeadlocksPostedTogetherCompletes) {
  RendezvousProgram p;
  p.ranks = {{{{Send(1)}}, {{Recv(1)}}}, {{{Send(0)}}, {{Recv(0)}}}};
  const Status status = CheckRendezvous(p);
  EXPECT_EQ(status.code(), StatusCode::kInfeasible);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("deadlock"), HasSubstr("rank 0 step 0"), HasSubstr("rank 1 step 1")));
  p.ranks = {{{{Send(1), Recv(1)}}}, {{{Send(0), Recv(0)}}}};
  EXPECT_TRUE(CheckRendezvous(p).ok());
  p.ranks = {{{{Send(1)}}, {{Recv(1)}}}, {{{Recv(0)}}, {{Send(0)}}}};
  EXPECT_TRUE(CheckRendezvous(p).ok());
}

TEST(Rendezvous, RingOfSendsDeadlocks) {
  for (int32_t n : {2, 3, 7}) {
    RendezvousProgram p;
    for (int32_t r = 0; r < n; ++r) {
      p.ranks.push_back({{{Send((r + 1) % n)}}, {{Recv((r + n - 1) % n)}}});
    }
    EXPECT_EQ(CheckRendezvous(p).code(), StatusCode::kInfeasible) << n;
    std::swap(p.ranks[0][0], p.ranks[0][1]);  // one rank receives first
    EXPECT_TRUE(CheckRendezvous(p).ok()) << n;
  }
}

TEST(Rendezvous, MissingPartnerSizesAndReferencesAreNamed) {
  RendezvousProgram p;
  p.ranks = {{{{Send(1)}}, {{Send(1, 8, "send 2")}}}, {{{Recv(0)}}}};
  EXPECT_THAT(CheckRendezvous(p).message(),
              AllOf(HasSubstr("rank 0 step 1 send 2"), HasSubstr("never comes")));
  p.ranks = {{{{Send(1, 8)}}}, {{{Recv(0, 16)}}}};
  EXPECT_THAT(CheckRendezvous(p).message(), AllOf(HasSubstr("8 bytes"), HasSubstr("16")));
  p.ranks = {{{{Send(2)}}}, {}};
  EXPECT_EQ(CheckRendezvous(p).code(), StatusCode::kInvalidInput);
  p.ranks = {{{{Send(0)}}}};
  EXPECT_EQ(CheckRendezvous(p).code(), StatusCode::kInvalidInput);
}

TEST(Rendezvous, CollectivesNeedAllMembersInOneOrder) {
  const auto collective = [](int32_t communicator) {
    return RendezvousOp{
        Kind::kCollective, 0, communicator, 0, 4, fmt::format("sum {}", communicator)};
  };
  RendezvousProgram p;
  p.communicators = {{0, 1, 2}, {0, 1}};
  p.ranks = {{{{collective(0)}}, {{collective(1)}}},
             {{{collective(1)}}, {{collective(0)}}},
             {{{collective(0)}}}};
  EXPECT_THAT(CheckRendezvous(p).message(), HasSubstr("deadlock"));
  std::swap(p.ranks[1][0], p.ranks[1][1]);
  EXPECT_TRUE(CheckRendezvous(p).ok());
  p.ranks[2].clear();
  EXPECT_THAT(CheckRendezvous(p).message(), HasSubstr("never comes"));
}

// --- pipelines of modules
// --------------------------------------------------------------------------

/// Traffic between two stages; pairs of (source rank, destination rank) and, where a leader takes
/// part for a lane of ranks, the communicators in which it passes on what it has received.
struct Link {
  std::vector<std::pair<int32_t, int32_t>> pairs;
  std::vector<int32_t> forward_broadcasts, backward_broadcasts;
};

/// One grouped op of a stage: what it exchanges over its outgoing and incoming links.
struct Exchange {
  bool send_activation = false, recv_gradient = false;  // outgoing
  bool recv_activation = false, send_gradient = false;  // incoming
  std::string label;
};

struct StageList {
  std::vector<int32_t> ranks;
  std::vector<int> incoming, outgoing;
  std::vector<Exchange> ops;
};

struct Pipeline {
  int32_t world = 0;
  std::vector<Link> links;
  std::vector<StageList> stages;
  std::vector<std::vector<int32_t>> communicators;
};

/// "SF1&RB0" -> an exchange; compute ops give none.
bool Parse(const std::string& text, Exchange* out) {
  *out = {};
  out->label = text;
  for (size_t at = 0; at < text.size();) {
    const std::string two = text.substr(at, 2);
    out->send_activation |= two == "SF";
    out->recv_gradient |= two == "RB";
    out->recv_activation |= two == "RF";
    out->send_gradient |= two == "SB";
    const size_t next = text.find('&', at);
    at = next == std::string::npos ? text.size() : next + 1;
  }
  return out->send_activation || out->recv_gradient || out->recv_activation || out->send_gradient;
}

/// A shape message and a payload message, each one grouped call, then the broadcasts.
void Emit(const Pipeline& pipeline, const Link& link, int32_t rank, bool source, const Exchange& x,
          std::vector<RendezvousStep>& steps) {
  const bool sends = source ? x.send_activation : x.send_gradient;
  const bool receives = source ? x.recv_gradient : x.recv_activation;
  for (const char* part : {"shape", "payload"}) {
    RendezvousStep step;
    const int64_t bytes = part[0] == 's' ? 24 : 4096;
    for (const auto& [from, to] : link.pairs) {
      if ((source ? from : to) != rank) continue;
      const int32_t peer = source ? to : from;
      if (sends) step.ops.push_back(Send(peer, bytes, fmt::format("{} send {}", x.label, part)));
      if (receives) step.ops.push_back(Recv(peer, bytes, fmt::format("{} recv {}", x.label, part)));
    }
    if (!step.ops.empty()) steps.push_back(std::move(step));
  }
  if (!receives) return;
  for (int32_t c : source ? link.backward_broadcasts : link.forward_broadcasts) {
    const auto& members = pipeline.communicators[static_cast<size_t>(c)];
    if (std::find(members.begin(), members.end(), rank) == members.end()) continue;
    steps.push_back({{{Kind::kCollective, 0, c, 0, 4096, x.label + " broadcast"}}});
  }
}

RendezvousProgram Build(const Pipeline& pipeline) {
  RendezvousProgram program;
  program.ranks.resize(static_cast<size_t>(pipeline.world));
  program.communicators = pipeline.communicators;
  for (const StageList& stage : pipeline.stages) {
    for (int32_t rank : stage.ranks) {
      auto& steps = program.ranks[static_cast<size_t>(rank)];
      for (const Exchange& x : stage.ops) {
        for (int l : stage.incoming) {
          if (!x.recv_activation && !x.send_gradient) continue;
          Emit(pipeline, pipeline.links[static_cast<size_t>(l)], rank, false, x, steps);
        }
        for (int l : stage.outgoing) {
          if (!x.send_activation && !x.recv_gradient) continue;
          Emit(pipeline, pipeline.links[static_cast<size_t>(l)], rank, true, x, steps);
        }
      }
    }
  }
  return program;
}

/// Ops of the stage with index `st` of `T` for `m` micro-batches (1F1B, parallelism.md 4.3).
std::vector<std::string> OneForwardOneBackward(int T, int st, int m, bool first, bool last) {
  std::vector<std::string> ops;
  const auto add = [&](const std::string& a, bool skip_a, const std::string& b = "",
                       bool skip_b = true) {
    std::string text = skip_a ? "" : a;
    if (!skip_b) text += (text.empty() ? "" : "&") + b;
    if (!text.empty()) ops.push_back(text);
  };
  const auto op = [](const char* kind, int i) { return fmt::format("{}{}", kind, i); };
  const int w = std::min(T - st - 1, m);
  const int r = m - w;
  for (int i = 0; i < w; ++i) {
    add(op("RF", i), first);
    add(op("F", i), false);
    add(op("SF", i), last);
  }
  if (r > 0) add(op("RF", w), first);
  for (int i = 0; i < r; ++i) {
    add(op("F", w + i), false);
    add(op("SF", w + i), last, op("RB", i), last);
    add(op("B", i), false);
    add(op("SB", i), first, op("RF", w + i + 1), first || i == r - 1);
  }
  for (int i = r; i < m; ++i) {
    add(op("RB", i), last);
    add(op("B", i), false);
    add(op("SB", i), first);
  }
  return ops;
}

std::vector<Exchange> Exchanges(const std::vector<std::string>& ops) {
  std::vector<Exchange> result;
  for (const std::string& text : ops) {
    Exchange x;
    if (Parse(text, &x)) result.push_back(x);
  }
  return result;
}

/// Image encoder pp 2 (ranks 0, 1), audio encoder pp 1 (rank 2), language model pp 2 (ranks 3, 4).
RendezvousProgram TwoEncoders(int m, int audio_index) {
  constexpr int kStages = 4;
  Pipeline p;
  p.world = 5;
  p.links = {{{{0, 1}}, {}, {}}, {{{1, 3}}, {}, {}}, {{{2, 3}}, {}, {}}, {{{3, 4}}, {}, {}}};
  const auto ops = [&](int st, bool first, bool last) {
    return Exchanges(OneForwardOneBackward(kStages, st, m, first, last));
  };
  p.stages = {{{0}, {}, {0}, ops(0, true, false)},
              {{1}, {0}, {1}, ops(1, false, false)},
              {{2}, {}, {2}, ops(audio_index, true, false)},
              {{3}, {1, 2}, {3}, ops(2, false, false)},
              {{4}, {3}, {}, ops(3, false, true)}};
  return Build(p);
}

TEST(TwoEncoders, IndexFromTheSourcesDeadlocks) {
  for (int m = 4; m <= 12; ++m) {
    const Status status = CheckRendezvous(TwoEncoders(m, 0));
    EXPECT_EQ(status.code(), StatusCode::kInfeasible) << m;
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("deadlock"), HasSubstr("rank 2"), HasSubstr("rank 3"),
                      HasSubstr("SF2 send"), HasSubstr("SB0&RF2")))
        << m;
  }
}

TEST(TwoEncoders, IndexByDistanceToTheSinkCompletes) {
  for (int m = 1; m <= 16; ++m) {
    const Status status = CheckRendezvous(TwoEncoders(m, 1));
    EXPECT_TRUE(status.ok()) << m << ": " << status.message();
  }
}

TEST(Topologies, AllRunToTheEnd) {
  const std::filesystem::path file =
      std::filesystem::path(MESHWRIGHT_SHARED_DIR) / "golden" / "golden_topologies.json";
  if (!std::filesystem::exists(file)) GTEST_SKIP() << file << " is not here";
  std::ifstream in(file);
  const nlohmann::json topologies = nlohmann::json::parse(in);
  ASSERT_EQ(topologies.size(), 8U);
  for (const auto& topology : topologies) {
    Pipeline p;
    p.world = topology["world"];
    const auto count = static_cast<int>(topology["stages"].size());
    const auto stage_json = [&](int s) { return topology["stages"][std::to_string(s)]; };
    for (int s = 0; s < count; ++s) {
      StageList stage;
      stage.ranks = stage_json(s)["ranks"].get<std::vector<int32_t>>();
      const auto ops = stage_json(s)["ops"].get<std::vector<std::string>>();
      EXPECT_EQ(ops, OneForwardOneBackward(count, s, 4, s == 0, s == count - 1))
          << topology["name"] << " stage " << s;
      stage.ops = Exchanges(ops);
      if (s > 0) stage.incoming = {s - 1};
      if (s + 1 < count) stage.outgoing = {s};
      p.stages.push_back(std::move(stage));
    }
    const auto add_groups = [&](const nlohmann::json& groups) {
      std::vector<int32_t> added;
      for (const auto& group : groups) {
        added.push_back(static_cast<int32_t>(p.communicators.size()));
        p.communicators.push_back(group.get<std::vector<int32_t>>());
      }
      return added;
    };
    for (int s = 0; s + 1 < count; ++s) {
      Link link;
      if (stage_json(s)["module"] == stage_json(s + 1)["module"]) {
        const auto& from = p.stages[static_cast<size_t>(s)].ranks;
        const auto& to = p.stages[static_cast<size_t>(s) + 1].ranks;
        for (size_t i = 0; i < from.size(); ++i) link.pairs.emplace_back(from[i], to[i]);
      } else {
        for (const auto& entry : topology["plan"]) {
          for (int32_t from : entry["src"]) {
            for (int32_t to : entry["dst"]) link.pairs.emplace_back(from, to);
          }
        }
        link.forward_broadcasts = add_groups(topology["dst_bcast"]);
        link.backward_broadcasts = add_groups(topology["src_bcast"]);
      }
      p.links.push_back(std::move(link));
    }
    const Status status = CheckRendezvous(Build(p));
    EXPECT_TRUE(status.ok()) << topology["name"] << ": " << status.message();
    // The same with one exchange of the last stage taken away stops.
    p.stages.back().ops.pop_back();
    EXPECT_FALSE(CheckRendezvous(Build(p)).ok()) << topology["name"];
  }
}

}  // namespace
}  // namespace meshwright::planner
