// dynamo_go.hpp: dynamo_go.h for C++17: handles that close themselves, errors as exceptions, nothing else. Header only.
//
//     dynamo_go::Router router(16);
//     router.add_worker(dynamo_go::worker(7, "tcp://10.0.0.5:5557", "tcp://10.0.0.5:6557"));
//     dgo_choice choice = router.best_worker(tokens);   // tokens: std::vector<uint32_t>
//
// What the functions do, which threads may call them and how long they may block is told in dynamo_go.h; a member function is the
// C function of its name. A moved-from object has no handle: every call on it throws. Objects may be used by many threads at once,
// but for moving and destroying them.
#ifndef DYNAMO_GO_HPP
#define DYNAMO_GO_HPP

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dynamo_go.h"

namespace dynamo_go {

// A call that failed: its status, and what it said.
class Error : public std::runtime_error {
 public:
  Error(dgo_status status, const std::string &message) : std::runtime_error(message), status_(status) {}
  dgo_status status() const noexcept { return status_; }

 private:
  dgo_status status_;
};

namespace detail {

template <typename T>
T sized() {
  T value{};
  value.struct_size = sizeof(T);
  return value;
}

[[noreturn]] inline void raise(dgo_status status, const dgo_error &error) {
  const char *name = dgo_status_name(status);
  throw Error(status, error.message[0] != '\0' ? error.message : name != nullptr ? name : "unknown status");
}

// call makes a call, whose last argument is the error, and throws unless it ends well.
template <typename F, typename... A>
void call(F function, A... arguments) {
  dgo_error error = sized<dgo_error>();
  const dgo_status status = function(arguments..., &error);
  if (status != DGO_OK) raise(status, error);
}

// A Buffer frees itself.
struct Buffer {
  dgo_buffer raw = sized<dgo_buffer>();
  Buffer() = default;
  Buffer(const Buffer &) = delete;
  Buffer &operator=(const Buffer &) = delete;
  ~Buffer() { dgo_buffer_free(&raw); }
  std::string text() const { return raw.data == nullptr ? std::string() : std::string(raw.data, raw.size); }
};

// A Handle closes itself.
template <dgo_status (*Close)(std::uint64_t, dgo_error *)>
class Handle {
 public:
  explicit Handle(std::uint64_t value = 0) noexcept : value_(value) {}
  Handle(Handle &&other) noexcept : value_(std::exchange(other.value_, 0)) {}
  Handle &operator=(Handle &&other) noexcept {
    if (this != &other) {
      Close(value_, nullptr);
      value_ = std::exchange(other.value_, 0);
    }
    return *this;
  }
  Handle(const Handle &) = delete;
  Handle &operator=(const Handle &) = delete;
  ~Handle() { Close(value_, nullptr); }

  std::uint64_t get() const noexcept { return value_; }
  // close says what the destructor cannot.
  void close() { call(Close, value_); }

 protected:
  std::uint64_t value_;
};

}  // namespace detail

// text borrows a string; it must outlive the call that it is given to.
inline dgo_string text(std::string_view s) noexcept { return dgo_string{s.data(), s.size()}; }

// request is a dgo_request without anything but, if given, an id that books.
inline dgo_request request(std::string_view id = {}) noexcept {
  dgo_request r = detail::sized<dgo_request>();
  r.request_id = text(id);
  return r;
}

// worker is a dgo_worker; empty endpoints are none. The strings must outlive the call that it is given to.
inline dgo_worker worker(std::uint64_t id, std::string_view kv_events = {}, std::string_view replay = {}) noexcept {
  dgo_worker w = detail::sized<dgo_worker>();
  w.worker_id = id;
  if (!kv_events.empty()) w.kv_events = text(kv_events);
  if (!replay.empty()) w.replay = text(replay);
  return w;
}

class Stream : public detail::Handle<dgo_stream_close> {
 public:
  using Handle::Handle;

  int fd() const {
    int fd = -1;
    detail::call(dgo_stream_fd, value_, &fd);
    return fd;
  }

  // next gives up to `most` items, none if nothing came within timeout_ms; nullopt at the end. It throws how the stream failed.
  std::optional<std::vector<std::string>> next(std::uint32_t timeout_ms = DGO_WAIT_MS_MAX, std::size_t most = 256) const {
    dgo_error error = detail::sized<dgo_error>();
    detail::Buffer items;
    std::vector<std::size_t> ends(most);
    std::size_t count = 0;
    const dgo_status status = dgo_stream_next(value_, timeout_ms, &items.raw, ends.data(), most, &count, &error);
    if (status == DGO_ENDED) return std::nullopt;
    std::vector<std::string> result;
    if (status == DGO_TIMEOUT) return result;
    if (status != DGO_OK) detail::raise(status, error);
    result.reserve(count);
    for (std::size_t i = 0, start = 0; i < count; start = ends[i++]) result.emplace_back(items.raw.data + start, ends[i] - start);
    return result;
  }

  void cancel(std::uint32_t flags = 0) const { detail::call(dgo_stream_cancel, value_, flags); }
};

class Router : public detail::Handle<dgo_router_close> {
 public:
  explicit Router(std::int64_t block_size, std::string_view config = {}, std::optional<std::uint64_t> seed = std::nullopt) {
    detail::call(dgo_router_new, block_size, config.data(), config.size(), seed ? &*seed : nullptr, &value_);
  }

  void add_worker(const dgo_worker &worker) const { detail::call(dgo_router_add_worker, value_, &worker); }
  void remove_worker(std::uint64_t worker_id) const { detail::call(dgo_router_remove_worker, value_, worker_id); }

  void apply_event(std::uint64_t worker_id, std::string_view event, std::uint32_t flags = 0) const {
    detail::call(dgo_router_apply_event, value_, worker_id, event.data(), event.size(), flags);
  }

  dgo_choice best_worker(const std::vector<std::uint32_t> &tokens) const { return best_worker(tokens, detail::sized<dgo_request>()); }
  dgo_choice best_worker(const std::vector<std::uint32_t> &tokens, const dgo_request &request) const {
    dgo_choice choice = detail::sized<dgo_choice>();
    detail::call(dgo_router_best_worker, value_, tokens.data(), tokens.size(), &request, &choice);
    return choice;
  }

  void mark_prefill_complete(std::string_view id) const { detail::call(dgo_router_mark_prefill_complete, value_, id.data(), id.size()); }
  void free(std::string_view id) const { detail::call(dgo_router_free, value_, id.data(), id.size()); }

  std::vector<dgo_potential_load> potential_loads(const std::vector<std::uint32_t> &tokens = {}) const {
    std::vector<dgo_potential_load> rows(64);
    for (;;) {
      std::size_t count = 0;
      detail::call(dgo_router_get_potential_loads, value_, tokens.data(), tokens.size(), static_cast<const dgo_request *>(nullptr),
                   rows.data(), sizeof(dgo_potential_load), rows.size(), &count);
      const bool all = count <= rows.size();
      rows.resize(count);
      if (all) return rows;
    }
  }

  // JSON.
  std::string health() const { return json(dgo_router_health); }
  std::string stats() const { return json(dgo_router_stats); }
  std::string workers() const { return json(dgo_router_workers); }
  std::string metrics() const { return json(dgo_router_metrics); }

 private:
  template <typename F>
  std::string json(F function) const {
    detail::Buffer buffer;
    detail::call(function, value_, &buffer.raw);
    return buffer.text();
  }
};

class Mocker : public detail::Handle<dgo_mocker_close> {
 public:
  explicit Mocker(std::string_view config = {}) { detail::call(dgo_mocker_new, config.data(), config.size(), &value_); }

  std::string info() const {
    detail::Buffer buffer;
    detail::call(dgo_mocker_info, value_, &buffer.raw);
    return buffer.text();
  }

  Stream generate(const std::vector<std::uint32_t> &tokens, std::string_view options = {}) const {
    dgo_stream stream = 0;
    detail::call(dgo_mocker_generate, value_, tokens.data(), tokens.size(), options.data(), options.size(), &stream);
    return Stream(stream);
  }
};

}  // namespace dynamo_go

#endif  // DYNAMO_GO_HPP
