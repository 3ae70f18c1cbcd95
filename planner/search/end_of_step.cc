#include <algorithm>
#include <utility>

#include "planner/search/stage_cost.h"

namespace meshwright::planner::search {
namespace {

/// The end of a step on one stage: from the begin of the last micro-batch's backward pass on. With
/// several chunks the other micro-batches of its group pass between those of the last one.
class Walk {
 public:
  Walk(const std::vector<StageItem>& items, const BucketSums& sums, StepPrices& prices,
       int64_t turns)
      : items_(items), sums_(sums), prices_(prices), turns_(turns) {
    for (const int64_t elements : sums.buckets) buckets_.push_back(&prices.Of(elements));
    const size_t count = buckets_.size();
    ready_.assign(count, 0);
    reduced_.assign(count, 0);
    stepped_.assign(count, 0);
    gathered_.assign(count, -1);
  }

  StepEnd Run(bool single) {
    Backward(single);
    Reduce();
    Update();
    StepEnd end;
    end.after_ns = (prices_.rules().sharded ? NextForward() : now_) - backward_;
    end.slowed_ns = slowed_;
    return end;
  }

 private:
  /// When each bucket is complete.
  void Backward(bool single) {
    std::vector<int64_t> left(buckets_.size(), 0);
    for (const int32_t b : sums_.bucket_of_item) {
      if (b >= 0) ++left[static_cast<size_t>(b)];
    }
    const auto time = [&](size_t i) {
      const ItemCost& cost = *items_[i].cost;
      return single ? cost.backward_first_ns : cost.backward_ns;
    };
    for (size_t i = items_.size(); i-- > 0;) {
      if (i + 1 == items_.size() || items_[i + 1].begins_chunk) {
        if (!passes_.empty()) backward_ += (turns_ - 1) * ChunkTime(i, time);
        passes_.emplace_back(backward_, backward_);
      }
      backward_ += time(i);
      passes_.back().second = backward_;
      kv_ += items_[i].cost->kv_sum_ns;
      if (sums_.bucket_of_item[i] < 0) continue;
      const auto b = static_cast<size_t>(sums_.bucket_of_item[i]);
      if (--left[b] > 0) continue;
      ready_[b] = backward_;
      order_.push_back(b);
    }
  }

  /// Of the chunk that ends with item `last`.
  template <typename F>
  int64_t ChunkTime(size_t last, const F& time) const {
    int64_t sum = time(last);
    for (size_t i = last; i > 0 && !items_[i].begins_chunk; --i) sum += time(i - 1);
    return sum;
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
    const int64_t begin = std::max(data_, from);
    reduced_[b] = data_ = begin + buckets_[b]->reduce_ns;
    if (buckets_[b]->slowed_ns == 0) return;
    for (const auto& [enter, leave] : passes_) {
      const int64_t beside = std::min(data_, leave) - std::max(begin, enter);
      if (beside > 0) slowed_ += buckets_[b]->slowed_ns * beside / buckets_[b]->reduce_ns;
    }
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
    int64_t chunk = 0;  // what has passed of it
    const auto pass = [&](int64_t time) {
      now_ += time;
      forward += time;
      chunk += time;
    };
    for (size_t i = 0; i < items_.size(); ++i) {
      pass(items_[i].before_ns);
      if (items_[i].begins_chunk && i > 0) {  // the sum that ended the one before is done
        pass((turns_ - 1) * chunk);
        chunk = 0;
      }
      if (i == 0) wait(sums_.late_bucket);
      wait(sums_.bucket_of_item[i]);
      pass(items_[i].cost->forward_ns);
    }
    return now_ - forward;
  }

  const std::vector<StageItem>& items_;
  const BucketSums& sums_;
  StepPrices& prices_;
  const int64_t turns_;
  std::vector<const StepPrices::Bucket*> buckets_;
  std::vector<int64_t> ready_, reduced_, stepped_, gathered_;
  std::vector<size_t> order_;                        ///< in which backward completes buckets
  std::vector<std::pair<int64_t, int64_t>> passes_;  ///< of the last micro-batch, begin and end
  int64_t backward_ = 0;                             ///< end of the last backward pass
  int64_t slowed_ = 0;
  int64_t kv_ = 0;
  int64_t data_ = 0;  ///< when the data stream is free
  int64_t now_ = 0;   ///< of the compute stream
};

}  // namespace

StepEnd EndOfStep(const std::vector<StageItem>& items, const BucketSums& sums, StepPrices& prices,
                  int64_t turns, bool single) {
  return Walk(items, sums, prices, turns).Run(single);
}

}  // namespace meshwright::planner::search
