// The engine of both deadlock checks. Ops start in an order that their ranks give and complete
// together with their partners; such a system stops exactly when that order has a cycle.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace meshwright::planner::verify {

class RendezvousGraph {
 public:
  /// An op of one participant; ids count from 0.
  int32_t AddOp();
  /// `op` cannot start before `earlier`, an op of the same participant, has completed.
  void After(int32_t op, int32_t earlier);
  /// The ops complete together. An op that is in no meeting completes by itself; an op without its
  /// partner must be named by `Lonely`. Each op at most once.
  void Meet(const std::vector<int32_t>& ops);
  void Lonely(int32_t op);

  /// Why the execution stops: `op` waits for `earlier` of the same participant (directly or through
  /// others of its ops), which meets the `op` of the next link. The last link leads back to the
  /// first, or to `lonely`.
  struct Stop {
    struct Link {
      int32_t op = 0;
      int32_t earlier = 0;
    };
    std::vector<Link> links;
    int32_t lonely = -1;  ///< an op that waits for a partner that never comes
  };
  /// Nothing when all ops complete. Cost: linear in ops and orders.
  std::optional<Stop> Run() const;

 private:
  std::vector<int32_t> MeetingsOf() const;
  Stop Explain(const std::vector<int32_t>& meeting, const std::vector<bool>& done) const;

  struct Order {
    int32_t op, earlier;
  };
  int32_t ops_ = 0;
  std::vector<Order> orders_;
  std::vector<std::vector<int32_t>> meets_;
  std::vector<int32_t> lonely_;
};

}  // namespace meshwright::planner::verify
