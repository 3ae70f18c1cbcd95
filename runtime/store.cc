#include "runtime/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/deadline.h"

namespace meshwright::runtime {
namespace {

constexpr int kMaxWorld = 1 << 20;
constexpr size_t kMaxRunIdBytes = 128;

Status CheckTime(const char* name, double seconds, double least) {
  if (std::isfinite(seconds) && seconds >= least && seconds <= kMaxDeadlineS) return Status::Ok();
  return InvalidInput(fmt::format("store option {}: {} s; must be in {}..{} s", name, seconds,
                                  least, kMaxDeadlineS));
}

}  // namespace

Status CheckStoreOptions(const StoreOptions& options) {
  if (options.world < 1 || options.world > kMaxWorld || options.rank < 0 ||
      options.rank >= options.world) {
    return InvalidInput(
        fmt::format("store options: rank {} of {} ranks; the world must be in 1..{} "
                    "and the rank below it",
                    options.rank, options.world, kMaxWorld));
  }
  if (options.run_id.empty() || options.run_id.size() > kMaxRunIdBytes) {
    return InvalidInput(fmt::format("store options: a run id of {} bytes; must have 1..{}",
                                    options.run_id.size(), kMaxRunIdBytes));
  }
  MW_RETURN_IF_ERROR(CheckTime("open_deadline_s", options.open_deadline_s, 1e-3));
  MW_RETURN_IF_ERROR(CheckTime("call_deadline_s", options.call_deadline_s, 1e-3));
  return CheckTime("linger_s", options.linger_s, 0.0);
}

Result<std::string> Store::Get(const std::string& key, double deadline_s) {
  MW_ASSIGN_OR_RETURN(auto found, WaitAny({key}, deadline_s));
  if (found) return std::move(found->value);
  return RunFailed(fmt::format("{}: no rank has set '{}' within {} s", where(), key, deadline_s));
}

Result<std::optional<std::string>> Store::TryGet(const std::string& key) {
  MW_ASSIGN_OR_RETURN(auto found, WaitAny({key}, 0.0));
  if (!found) return std::optional<std::string>();
  return std::optional<std::string>(std::move(found->value));
}

Status Store::Barrier(const std::string& name, double deadline_s) {
  const std::string here = fmt::format("barrier/{}/here/", name);
  const std::string open = fmt::format("barrier/{}/open", name);
  MW_RETURN_IF_ERROR(Set(here + std::to_string(rank()), ""));
  MW_ASSIGN_OR_RETURN(const int64_t count, Add(fmt::format("barrier/{}/count", name), 1));
  if (count >= world()) return Set(open, "");
  MW_ASSIGN_OR_RETURN(const auto found, WaitAny({open, kAbortKey}, deadline_s));
  if (found) return found->index == 0 ? Status::Ok() : DecodeStatus(found->value);
  MW_ASSIGN_OR_RETURN(const auto present, List(here));
  std::vector<int> missing;
  for (int r = 0; r < world() && missing.size() < 8; ++r) {
    if (present.count(here + std::to_string(r)) == 0) missing.push_back(r);
  }
  return RunFailed(fmt::format("{}: barrier '{}' of {} ranks has waited {} s; not arrived: rank {}",
                               where(), name, world(), deadline_s, fmt::join(missing, ", ")));
}

std::string GoneKey(int rank) {
  return fmt::format("gone/{}", rank);
}

std::string EncodeStatus(const Status& status) {
  return fmt::format("{}:{}", static_cast<int>(status.code()), status.message());
}

Status DecodeStatus(const std::string& text) {
  const size_t colon = text.find(':');
  const std::string code = text.substr(0, std::min(colon, size_t{2}));
  for (const StatusCode known :
       {StatusCode::kOk, StatusCode::kInvalidInput, StatusCode::kNotFound, StatusCode::kInfeasible,
        StatusCode::kUnsupported, StatusCode::kRunFailed}) {
    if (colon != std::string::npos && code == std::to_string(static_cast<int>(known))) {
      return {known, text.substr(colon + 1)};
    }
  }
  return RunFailed(text);
}

Status PostAbort(Store& store, const Status& reason) {
  Status posted = reason.ok() ? RunFailed("aborted without a reason") : reason;
  std::string text = EncodeStatus(posted);
  if (text.size() > kMaxStoreValueBytes) text.resize(kMaxStoreValueBytes);
  const Result<std::string> stands = store.SetOnce(kAbortKey, text);
  return stands.ok() ? DecodeStatus(*stands) : posted;
}

Result<std::optional<Status>> ReadAbort(Store& store) {
  MW_ASSIGN_OR_RETURN(const auto text, store.TryGet(kAbortKey));
  if (!text) return std::optional<Status>();
  return std::optional<Status>(DecodeStatus(*text));
}

Status CheckStoreKey(std::string_view key) {
  const bool printable =
      std::all_of(key.begin(), key.end(), [](char c) { return c >= ' ' && c < '\x7f'; });
  if (!key.empty() && key.size() <= kMaxStoreKeyBytes && printable) return Status::Ok();
  return InvalidInput(fmt::format("store key of {} bytes: a key has 1..{} bytes, printable ASCII",
                                  key.size(), kMaxStoreKeyBytes));
}

Status CheckStoreValue(std::string_view key, std::string_view value) {
  MW_RETURN_IF_ERROR(CheckStoreKey(key));
  if (value.size() <= kMaxStoreValueBytes) return Status::Ok();
  return InvalidInput(fmt::format("store key '{}': a value of {} bytes; at most {} bytes", key,
                                  value.size(), kMaxStoreValueBytes));
}

}  // namespace meshwright::runtime
