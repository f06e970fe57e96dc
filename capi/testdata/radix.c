/* A radix tree: events in, matches out; and wrong use of every call. */
#include "check.h"

#define WORKER 0xF123456789ABCDEFu

static dgo_radix_tree tree;

#define APPLY(want, worker, text) STATUS(want, dgo_radix_tree_apply_event(tree, worker, text, strlen(text), NULL))

static void store_and_match(void) {
  STATUS(DGO_OK, dgo_radix_tree_new(&tree, NULL));
  APPLY(DGO_OK, WORKER,
        "{\"event_id\":1,\"dp_rank\":3,\"data\":{\"stored\":{\"parent_hash\":null,\"blocks\":["
        "{\"block_hash\":1,\"tokens_hash\":17375808098319191535},{\"block_hash\":2,\"tokens_hash\":22}]}}}");
  APPLY(DGO_OK, 5, "{\"data\":{\"stored\":{\"blocks\":[{\"block_hash\":1,\"tokens_hash\":17375808098319191535}]}}}");
  uint64_t hashes[3] = {17375808098319191535u, 22, 33};
  dgo_match rows[2] = {{0}};
  size_t count = 0;
  STATUS(DGO_OK, dgo_radix_tree_find_matches(tree, hashes, 3, rows, sizeof *rows, 2, &count, NULL));
  CHECK(count == 2);
  dgo_match *wide = rows[0].worker_id == WORKER ? &rows[0] : &rows[1];
  CHECK(wide->worker_id == WORKER && wide->dp_rank == 3 && wide->blocks == 2);
  CHECK(rows[0].blocks + rows[1].blocks == 3);
  STATUS(DGO_OK, dgo_radix_tree_find_matches(tree, hashes, 3, rows, sizeof *rows, 1, &count, NULL));
  CHECK(count == 2);
  STATUS(DGO_OK, dgo_radix_tree_find_matches(tree, NULL, 0, NULL, sizeof *rows, 0, &count, NULL));
  CHECK(count == 0);
  dgo_buffer events = {.struct_size = sizeof events};
  STATUS(DGO_OK, dgo_radix_tree_dump(tree, &events, NULL));
  CHECK(strstr(events.data, "\"worker_id\":17375808098319191535") != NULL);
  dgo_buffer_free(&events);
}

static void wrong_use(void) {
  uint64_t hash = 1;
  dgo_match row;
  size_t count;
  STATUS(DGO_INVALID_ARGUMENT, dgo_radix_tree_new(NULL, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_radix_tree_new((dgo_radix_tree *)1, NULL));
  const char *bad[] = {"", "{", "[]", "{\"data\":\"gone\"}", "{\"storage_tier\":\"disk\",\"data\":\"cleared\"}"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) APPLY(DGO_INVALID_ARGUMENT, 5, bad[i]);
  STATUS(DGO_INVALID_ARGUMENT, dgo_radix_tree_apply_event(tree, 5, NULL, 3, NULL));
  APPLY(DGO_EVENT_REFUSED, 5, "{\"data\":{\"stored\":{\"parent_hash\":99,\"blocks\":[{\"block_hash\":8,\"tokens_hash\":8}]}}}");
  APPLY(DGO_EVENT_REFUSED, 5, "{\"data\":{\"removed\":{\"block_hashes\":[99]}}}");
  STATUS(DGO_INVALID_ARGUMENT, dgo_radix_tree_find_matches(tree, NULL, 1, &row, sizeof row, 1, &count, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_radix_tree_find_matches(tree, &hash, SIZE_MAX, &row, sizeof row, 1, &count, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_radix_tree_find_matches(tree, &hash, 1, NULL, sizeof row, 1, &count, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_radix_tree_find_matches(tree, &hash, 1, &row, 8, 1, &count, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_radix_tree_find_matches(tree, &hash, 1, &row, sizeof row, 1, NULL, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_radix_tree_find_matches(tree, (uint64_t *)9, 1, &row, sizeof row, 1, &count, NULL));
  STATUS(DGO_INVALID_ARGUMENT, dgo_radix_tree_dump(tree, NULL, NULL));
  STATUS(DGO_OK, dgo_radix_tree_remove_worker(tree, 12345, NULL));
}

static void handles(void) {
  dgo_radix_tree bad[] = {0, 1, tree + 1, tree ^ (uint64_t)1 << 40, UINT64_MAX};
  size_t count;
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    STATUS(DGO_BAD_HANDLE, dgo_radix_tree_remove_worker(bad[i], 1, NULL));
    STATUS(DGO_BAD_HANDLE, dgo_radix_tree_find_matches(bad[i], NULL, 0, NULL, sizeof(dgo_match), 0, &count, NULL));
  }
  STATUS(DGO_OK, dgo_radix_tree_close(0, NULL));
  STATUS(DGO_BAD_HANDLE, dgo_radix_tree_close(1, NULL));
  STATUS(DGO_OK, dgo_radix_tree_close(tree, NULL));
  STATUS(DGO_OK, dgo_radix_tree_close(tree, NULL));
  STATUS(DGO_CLOSED, dgo_radix_tree_remove_worker(tree, 1, NULL));
}

int main(void) {
  store_and_match();
  wrong_use();
  handles();
  return 0;
}
