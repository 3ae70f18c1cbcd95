#include <algorithm>

#include "planner/search/stage_cost.h"

namespace meshwright::planner::search {
namespace {

/// The end of a step on one stage: from the begin of the last micro-batch's backward pass on.
class StepEnd {
 public:
  StepEnd(const std::vector<StageItem>& items, const BucketSums& sums, StepPrices& prices)
      : items_(items), sums_(sums), prices_(prices) {
    for (const int64_t elements : sums.buckets) buckets_.push_back(&prices.Of(elements));
    const size_t count = buckets_.size();
    ready_.assign(count, 0);
    reduced_.assign(count, 0);
    stepped_.assign(count, 0);
    gathered_.assign(count, -1);
  }

  int64_t Run(bool single) {
    Backward(single);
    Reduce();
    Update();
    return (prices_.rules().sharded ? NextForward() : now_) - backward_;
  }

 private:
  /// When each bucket is complete.
  void Backward(bool single) {
    std::vector<int64_t> left(buckets_.size(), 0);
    for (const int32_t b : sums_.bucket_of_item) {
      if (b >= 0) ++left[static_cast<size_t>(b)];
    }
    for (size_t i = items_.size(); i-- > 0;) {
      const ItemCost& cost = *items_[i].cost;
      backward_ += single ? cost.backward_first_ns : cost.backward_ns;
      kv_ += cost.kv_sum_ns;
      if (sums_.bucket_of_item[i] < 0) continue;
      const auto b = static_cast<size_t>(sums_.bucket_of_item[i]);
      if (--left[b] > 0) continue;
      ready_[b] = backward_;
      order_.push_back(b);
    }
  }

  /// Sums over the tensor group's ranks and over data-parallel ranks, on their two streams.
  void Reduce() {
    const int64_t kv_done = kv_ > 0 ? backward_ + kv_ : 0;
    for (const size_t b : order_) {
      if (static_cast<int32_t>(b) != sums_.tied_bucket)
        ReduceBucket(b, std::max(ready_[b], kv_done));
    }
    if (sums_.late_bucket >= 0) {
      const auto b = static_cast<size_t>(sums_.late_bucket);
      ReduceBucket(b, std::max(backward_, kv_done) + buckets_[b]->tensor_sum_ns);
    }
    if (sums_.tied_bucket >= 0) {
      const auto b = static_cast<size_t>(sums_.tied_bucket);
      data_ = std::max(data_, ready_[b]) + prices_.tied_sum_ns();
      ReduceBucket(b, std::max(data_, kv_done));
    }
  }

  void ReduceBucket(size_t b, int64_t from) {
    if (prices_.rules().dp == 1) {
      reduced_[b] = from;
      return;
    }
    data_ = std::max(data_, from) + buckets_[b]->reduce_ns;
    reduced_[b] = data_;
  }

  /// Norm and optimizer on the compute stream.
  void Update() {
    now_ = backward_;
    if (prices_.rules().dp == 1) {  // the norm begins when all sums are there
      for (const int64_t done : reduced_) now_ = std::max(now_, done);
    }
    for (size_t b = 0; b < buckets_.size(); ++b) {
      now_ = std::max(now_, reduced_[b]) +
             (b == 0 ? buckets_[b]->norm_first_ns : buckets_[b]->norm_ns);
    }
    now_ += prices_.statistics_ns();
    for (size_t b = 0; b < buckets_.size(); ++b) stepped_[b] = now_ += buckets_[b]->step_ns;
  }

  void Gather(int32_t which) {
    if (which < 0 || gathered_[static_cast<size_t>(which)] >= 0) return;
    const auto b = static_cast<size_t>(which);
    data_ = std::max(data_, stepped_[b]) + buckets_[b]->gather_ns;
    gathered_[b] = data_;
  }

  /// End of the next forward pass, which waits for its parameters, less the pass itself.
  int64_t NextForward() {
    Gather(sums_.late_bucket);
    for (const int32_t b : sums_.bucket_of_item) Gather(b);
    const auto wait = [&](int32_t b) {
      if (b >= 0) now_ = std::max(now_, gathered_[static_cast<size_t>(b)]);
    };
    int64_t forward = 0;
    for (size_t i = 0; i < items_.size(); ++i) {
      now_ += items_[i].before_ns;
      if (i == 0) wait(sums_.late_bucket);
      wait(sums_.bucket_of_item[i]);
      now_ += items_[i].cost->forward_ns;
      forward += items_[i].before_ns + items_[i].cost->forward_ns;
    }
    return now_ - forward;
  }

  const std::vector<StageItem>& items_;
  const BucketSums& sums_;
  StepPrices& prices_;
  std::vector<const StepPrices::Bucket*> buckets_;
  std::vector<int64_t> ready_, reduced_, stepped_, gathered_;
  std::vector<size_t> order_;  ///< in which backward completes buckets
  int64_t backward_ = 0;       ///< length of the last backward pass
  int64_t kv_ = 0;
  int64_t data_ = 0;  ///< when the data stream is free
  int64_t now_ = 0;   ///< of the compute stream
};

}  // namespace

int64_t EndOfStep(const std::vector<StageItem>& items, const BucketSums& sums, StepPrices& prices,
                  bool single) {
  return StepEnd(items, sums, prices).Run(single);
}

}  // namespace meshwright::planner::search
