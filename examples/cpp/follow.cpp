// follow.cpp: examples/c/follow.c in C++, with dynamo_go.hpp.
//
// Build and run, from the root of the project:
//
//     ./build.sh lib
//     c++ -std=c++17 -Wall -Wextra -Werror -Ibuild -o build/follow_cpp examples/cpp/follow.cpp -Lbuild -ldynamo_go -Wl,-rpath,$PWD/build
//     build/follow_cpp
#include <chrono>
#include <iostream>
#include <thread>

#include "dynamo_go.hpp"

// member: a string member of a JSON object. A program would use its JSON library.
static std::string member(const std::string &json, const std::string &name) {
  const std::string key = '"' + name + "\":\"";
  const auto start = json.find(key) + key.size();
  return json.substr(start, json.find('"', start) - start);
}

int main() try {
  const dynamo_go::Mocker engine(R"({"block_size":4,"inter_token_ms":0})");
  const std::string info = engine.info(), events = member(info, "kv_events"), replay = member(info, "replay");
  const dynamo_go::Router router(4);
  router.add_worker(dynamo_go::worker(7, events, replay));

  const std::vector<std::uint32_t> prompt{11, 12, 13, 14, 21, 22, 23, 24, 31, 32};
  const dynamo_go::Stream answer = engine.generate(prompt, R"({"max_tokens":5})");
  std::size_t tokens = 0;
  while (const auto items = answer.next()) tokens += items->size();

  dgo_choice choice{};
  for (int i = 0; i < 1000 && choice.overlap_blocks < 2; i++) { // the events come by themselves
    choice = router.best_worker(prompt);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  std::cout << tokens << " tokens; worker " << choice.worker_id << " holds " << choice.overlap_blocks << " blocks of the prompt\n";

  const auto request = dynamo_go::request("request-1");
  choice = router.best_worker(prompt, request);
  const auto active = router.potential_loads().at(0).active_requests;
  router.mark_prefill_complete("request-1");
  router.free("request-1");
  try {
    router.free("request-1");
  } catch (const dynamo_go::Error &error) {
    std::cout << active << " request; freed again: " << dgo_status_name(error.status()) << '\n';
  }
  return choice.overlap_blocks == 2 ? 0 : 1;
} catch (const dynamo_go::Error &error) {
  std::cerr << dgo_status_name(error.status()) << ": " << error.what() << '\n';
  return 1;
}
