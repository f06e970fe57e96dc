// deployment.cpp: an engine of your own as a worker of a Dynamo deployment, and a router in front of it.
//
// The worker says what it is like (a model card), serves an endpoint, answers requests item by item, and publishes what it caches. The
// router finds it in the directory that they share, and sends requests where their prompts are cached. Usually they are two processes, on two
// machines; either may be Dynamo's. Requests and items are MessagePack: a program would use its library for that.
//
// Build and run, from the root of the project:
//
//     ./build.sh lib
//     c++ -std=c++17 -Wall -Wextra -Werror -Ibuild -o build/deployment_cpp examples/cpp/deployment.cpp -Lbuild -ldynamo_go -Wl,-rpath,$PWD/build -pthread
//     build/deployment_cpp build/discovery
#include <chrono>
#include <iostream>
#include <thread>

#include "dynamo_go.hpp"

using dynamo_go::Notice;
using dynamo_go::Runtime;

static const std::string endpoint = "example.backend.generate";
static const std::vector<std::uint32_t> prompt{11, 12, 13, 14, 21, 22, 23, 24, 31, 32};

// join: a process of the deployment that is told of by files in a directory. It listens on this machine only.
static Runtime join(const std::string &directory) {
  return Runtime(R"({"path":")" + directory + R"(","environment":{"DYN_TCP_RPC_HOST":"127.0.0.1",)" +
                 R"("DYN_TCP_RESPONSE_STREAM_HOST":"127.0.0.1","DYN_EVENT_PLANE_HOST":"127.0.0.1"}})");
}

// item: {"token_ids":[token]}, the last one with "finish_reason":"stop".
static std::string item(char token, bool last) {
  std::string text = last ? "\x82" : "\x81";
  text += "\xa9token_ids\x91";
  text += token;
  if (last) text += "\xad" "finish_reason" "\xa4stop";
  return text;
}

// work serves until the runtime is closed.
static void work(const Runtime &runtime) {
  const dynamo_go::Publisher cache = runtime.publisher(endpoint, R"({"block_size":4})");
  runtime.model(endpoint, runtime.id(), R"({"display_name":"example","kv_cache_block_size":4,)"
                R"("runtime_config":{"total_kv_blocks":1000,"enable_local_indexer":true}})");
  runtime.serve(endpoint);
  bool cached = false;
  while (const auto notices = runtime.notices().take()) {
    for (const Notice &notice : *notices) {
      if (notice.kind != DGO_NOTICE_REQUEST) continue; // of a call that is cancelled: stop its work, and end it
      // The engine runs notice.payload's prompt, of which it keeps the first two blocks, under names of its own.
      if (!cached) cache.publish(0, {dynamo_go::stored({prompt.begin(), prompt.begin() + 8}, {1001, 1002}, 4)});
      cached = true;
      try {
        for (char token = 1; token <= 3; token++) runtime.answer(notice.id, item(token, token == 3));
      } catch (const dynamo_go::Error &error) {
        if (error.status() != DGO_CANCELLED) throw;
      }
      runtime.end(notice.id);
    }
  }
}

// generate sends the prompt where it is best, and gives the number of items. The status says how the call ended.
static dgo_status generate(const Runtime &runtime, const dynamo_go::Router &router, int &items) {
  items = 0;
  const auto call = router.generate(prompt, dynamo_go::request());
  while (const auto notices = runtime.notices().take()) {
    for (const Notice &notice : *notices) {
      if (notice.id != call) continue;
      if (notice.kind == DGO_NOTICE_ENDED) return static_cast<dgo_status>(notice.flags);
      if (notice.kind != DGO_NOTICE_ITEM || (notice.flags & DGO_ITEM_NOTE) != 0) continue;
      items++;
      runtime.more(call, 1);
    }
  }
  return DGO_CLOSED;
}

// route sends the prompt until the worker is there and its events are known.
static int route(const std::string &directory, std::uint64_t worker) {
  const Runtime runtime = join(directory);
  const dynamo_go::Router router = runtime.router(endpoint, 4);
  int items = 0;
  dgo_status status = DGO_NO_WORKERS;
  dgo_choice choice{};
  for (int i = 0; i < 1000 && (status != DGO_OK || choice.overlap_blocks < 2); i++) {
    if (status != DGO_OK) status = generate(runtime, router, items);
    if (status == DGO_OK) choice = router.best_worker(prompt);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  std::cout << items << " items; the worker" << (choice.worker_id == worker ? "" : ", which is another,") << " holds "
            << choice.overlap_blocks << " blocks of the prompt\n";
  return status == DGO_OK && choice.overlap_blocks == 2 ? 0 : 1;
}

static void tell(const dynamo_go::Error &error) { std::cerr << dgo_status_name(error.status()) << ": " << error.what() << '\n'; }

int main(int argc, char **argv) try {
  if (argc != 2) throw dynamo_go::Error(DGO_INVALID_ARGUMENT, "usage: deployment DIRECTORY");
  Runtime runtime = join(argv[1]);
  std::thread worker([&] {
    try {
      work(runtime);
    } catch (const dynamo_go::Error &error) {
      if (error.status() != DGO_CLOSED) tell(error); // not because it is being closed
    }
  });
  int result = 1;
  try {
    result = route(argv[1], runtime.id());
  } catch (const dynamo_go::Error &error) {
    tell(error);
  }
  runtime.close();
  worker.join();
  return result;
} catch (const dynamo_go::Error &error) {
  tell(error);
  return 1;
}
