// dynamo_go.hpp: dynamo_go.h for C++17: handles that close themselves, errors as exceptions, nothing else. Header only.
//
//     dynamo_go::Router router(16);
//     router.add_worker(dynamo_go::worker(7, "tcp://10.0.0.5:5557", "tcp://10.0.0.5:6557"));
//     dgo_choice choice = router.best_worker(tokens);   // tokens: std::vector<uint32_t>
//
// What the functions do, which threads may call them and how long they may block is told in dynamo_go.h; a member function is the
// C function of its name. A moved-from object has no handle: every call on it throws. Objects may be used by many threads at once,
// but for moving and destroying them.
//
// An engine joins a deployment so; examples/cpp/deployment.cpp is a whole program:
//
//     dynamo_go::Runtime runtime(R"({"path":"/shared/discovery"})");
//     runtime.model(endpoint, runtime.id(), card);
//     runtime.serve(endpoint);
//     while (const auto notices = runtime.notices().take()) { // DGO_NOTICE_REQUEST: runtime.answer(notice.id, item) ...
#ifndef DYNAMO_GO_HPP
#define DYNAMO_GO_HPP

#include <cstdint>
#include <cstring>
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
  // json gives the text that a function of a handle puts into a buffer.
  template <typename F, typename... A>
  std::string json(F function, A... arguments) const {
    Buffer buffer;
    call(function, value_, arguments..., &buffer.raw);
    return buffer.text();
  }

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

// stored, removed and cleared are events of a cache; what they are given must outlive the call that they are given to.
inline dgo_kv_event stored(const std::vector<std::uint32_t> &tokens, const std::vector<std::uint64_t> &block_hashes, std::uint32_t block_size,
                           std::optional<std::uint64_t> parent = std::nullopt) noexcept {
  dgo_kv_event e{};
  e.kind = DGO_EVENT_STORED;
  e.flags = parent ? DGO_EVENT_PARENT : 0;
  e.block_hashes = block_hashes.data(), e.n_blocks = block_hashes.size();
  e.tokens = tokens.data(), e.n_tokens = tokens.size();
  e.parent_hash = parent.value_or(0);
  e.block_size = block_size;
  return e;
}

inline dgo_kv_event removed(const std::vector<std::uint64_t> &block_hashes) noexcept {
  dgo_kv_event e{};
  e.kind = DGO_EVENT_REMOVED;
  e.block_hashes = block_hashes.data(), e.n_blocks = block_hashes.size();
  return e;
}

inline dgo_kv_event cleared() noexcept {
  dgo_kv_event e{};
  e.kind = DGO_EVENT_CLEARED;
  return e;
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

// A notice of a runtime: of what, and its payload, see DGO_NOTICE_* in dynamo_go.h.
struct Notice {
  std::uint64_t id;
  std::uint32_t kind, flags;
  std::string payload;
};

// The stream of a runtime's notices. It ends with the runtime.
class Notices : public Stream {
 public:
  using Stream::Stream;

  // take is next, of notices.
  std::optional<std::vector<Notice>> take(std::uint32_t timeout_ms = DGO_WAIT_MS_MAX, std::size_t most = 256) const {
    const auto items = next(timeout_ms, most);
    if (!items) return std::nullopt;
    std::vector<Notice> result;
    result.reserve(items->size());
    for (const std::string &item : *items) {
      dgo_notice head;
      std::memcpy(&head, item.data(), sizeof head);
      result.push_back(Notice{head.id, head.kind, head.flags, item.substr(sizeof head)});
    }
    return result;
  }
};

class Runtime;

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

  // generate is for routers of Runtime::router: the number of the call, of which the runtime's notices tell. fields is a MessagePack map.
  std::uint64_t generate(const std::vector<std::uint32_t> &tokens, const dgo_request &request, std::string_view fields = {},
                         std::string_view options = {}) const {
    std::uint64_t call = 0;
    detail::call(dgo_router_generate, value_, tokens.data(), tokens.size(), &request, fields.data(), fields.size(), options.data(),
                 options.size(), &call);
    return call;
  }

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
  friend class Runtime;
  struct Made {};
  Router(Made, dgo_router handle) noexcept : Handle(handle) {}
};

class Publisher : public detail::Handle<dgo_publisher_close> {
 public:
  explicit Publisher(std::string_view config) { detail::call(dgo_publisher_new, config.data(), config.size(), &value_); }

  void publish(std::uint32_t dp_rank, const std::vector<dgo_kv_event> &events) const {
    detail::call(dgo_publisher_publish, value_, dp_rank, events.data(), sizeof(dgo_kv_event), events.size());
  }

  std::string info() const { return json(dgo_publisher_info); } // JSON

 private:
  friend class Runtime;
  struct Made {};
  Publisher(Made, dgo_publisher handle) noexcept : Handle(handle) {}
};

// A process of a deployment. Endpoints are "namespace.component.name"; services, clients and calls are numbers; options, cards and
// configurations are JSON, requests and items MessagePack.
class Runtime : public detail::Handle<dgo_runtime_close> {
 public:
  explicit Runtime(std::string_view config = {}) {
    dgo_stream notices = 0;
    detail::call(dgo_runtime_new, config.data(), config.size(), &value_, &notices);
    notices_ = Notices(notices);
  }

  const Notices &notices() const noexcept { return notices_; }

  std::string info() const { return json(dgo_runtime_info); } // JSON
  // id is that of this process's instances.
  std::uint64_t id() const {
    static constexpr std::string_view key = "\"id\":";
    const std::string text = info();
    return std::stoull(text.substr(text.find(key) + key.size()));
  }

  // The worker's side.
  std::uint64_t serve(std::string_view endpoint, std::string_view options = {}) const {
    std::uint64_t service = 0;
    detail::call(dgo_runtime_serve, value_, endpoint.data(), endpoint.size(), options.data(), options.size(), &service);
    return service;
  }
  void list(std::uint64_t service, bool listed) const { detail::call(dgo_runtime_list, value_, service, static_cast<std::int32_t>(listed)); }
  // model: an empty card takes back what was said.
  void model(std::string_view endpoint, std::uint64_t instance, std::string_view card) const {
    detail::call(dgo_runtime_model, value_, endpoint.data(), endpoint.size(), instance, card.empty() ? nullptr : card.data(), card.size());
  }
  // answer sends an item, and tells whether the service should wait for DGO_NOTICE_DRAINED before the next one. It throws DGO_CANCELLED if
  // the caller is gone; the answer is still to be ended.
  bool answer(std::uint64_t call, std::string_view item) const { return answer(call, item, 0); }
  // end ends an answer that is complete; fail one that is not.
  void end(std::uint64_t call) const { answer(call, {}, DGO_ANSWER_END); }
  void fail(std::uint64_t call, std::string_view message) const { answer(call, message, DGO_ANSWER_FAIL); }
  Publisher publisher(std::string_view endpoint, std::string_view config) const {
    dgo_publisher publisher = 0;
    detail::call(dgo_runtime_publisher, value_, endpoint.data(), endpoint.size(), config.data(), config.size(), &publisher);
    return Publisher(Publisher::Made(), publisher);
  }
  void load(std::string_view endpoint, std::string_view load) const {
    detail::call(dgo_runtime_load, value_, endpoint.data(), endpoint.size(), load.data(), load.size());
  }

  // The caller's side.
  std::uint64_t client(std::string_view endpoint) const {
    std::uint64_t client = 0;
    detail::call(dgo_runtime_client, value_, endpoint.data(), endpoint.size(), &client);
    return client;
  }
  std::string instances(std::uint64_t client) const { return json(dgo_runtime_instances, client); } // JSON
  std::uint64_t call(std::uint64_t client, std::string_view body, std::string_view options = {}) const {
    std::uint64_t call = 0;
    detail::call(dgo_runtime_call, value_, client, body.data(), body.size(), options.data(), options.size(), &call);
    return call;
  }
  Router router(std::string_view endpoint, std::int64_t block_size, std::string_view config = {}) const {
    dgo_router router = 0;
    detail::call(dgo_runtime_router, value_, endpoint.data(), endpoint.size(), block_size, config.data(), config.size(), &router);
    return Router(Router::Made(), router);
  }
  // more: n items of a call were taken. cancel: no more of it is wanted. Both tell whether it goes on: it may have ended meanwhile.
  bool more(std::uint64_t call, std::size_t n) const { return unless_ended(dgo_runtime_more, call, n); }
  bool cancel(std::uint64_t call, std::uint32_t flags = 0) const { return unless_ended(dgo_runtime_cancel, call, flags); }

  // leave ends a service or a client.
  void leave(std::uint64_t service_or_client, std::uint32_t flags = 0) const {
    detail::call(dgo_runtime_end, value_, service_or_client, flags);
  }

 private:
  template <typename F, typename A>
  bool unless_ended(F function, std::uint64_t call, A argument) const {
    dgo_error error = detail::sized<dgo_error>();
    const dgo_status status = function(value_, call, argument, &error);
    if (status != DGO_OK && status != DGO_REQUEST_NOT_FOUND) detail::raise(status, error);
    return status == DGO_OK;
  }

  bool answer(std::uint64_t call, std::string_view item, std::uint32_t flags) const {
    std::int32_t ahead = 0;
    detail::call(dgo_runtime_answer, value_, call, item.data(), item.size(), flags, &ahead);
    return ahead != 0;
  }

  Notices notices_;
};

class Mocker : public detail::Handle<dgo_mocker_close> {
 public:
  explicit Mocker(std::string_view config = {}) { detail::call(dgo_mocker_new, config.data(), config.size(), &value_); }

  std::string info() const { return json(dgo_mocker_info); } // JSON

  Stream generate(const std::vector<std::uint32_t> &tokens, std::string_view options = {}) const {
    dgo_stream stream = 0;
    detail::call(dgo_mocker_generate, value_, tokens.data(), tokens.size(), options.data(), options.size(), &stream);
    return Stream(stream);
  }
};

}  // namespace dynamo_go

#endif  // DYNAMO_GO_HPP
