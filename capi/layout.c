/* The layout of the public structs and the values of the public constants, on 64-bit machines: what compiled programs
 * rely on. A line that fails here is a break of the ABI. */
#include "dynamo_go.h"

#define SIZE(type, size) _Static_assert(sizeof(type) == (size), "size of " #type)
#define AT(type, member, offset) _Static_assert(offsetof(type, member) == (offset), "offset of " #type "." #member)
#define VALUE(name, value) _Static_assert((name) == (value), "value of " #name)

#if UINTPTR_MAX == UINT64_MAX
SIZE(dgo_status, 4);
SIZE(dgo_router, 8);

SIZE(dgo_error, 512);
AT(dgo_error, status, 4);
AT(dgo_error, message, 8);

SIZE(dgo_buffer, 24);
AT(dgo_buffer, data, 8);
AT(dgo_buffer, size, 16);

SIZE(dgo_string, 16);
AT(dgo_string, size, 8);

SIZE(dgo_notice, 16);
AT(dgo_notice, kind, 8);
AT(dgo_notice, flags, 12);

SIZE(dgo_worker, 160);
AT(dgo_worker, dp_start, 4);
AT(dgo_worker, dp_size, 8);
AT(dgo_worker, has_block_size, 12);
AT(dgo_worker, worker_id, 16);
AT(dgo_worker, block_size, 24);
AT(dgo_worker, kv_events, 32);
AT(dgo_worker, replay, 48);
AT(dgo_worker, topic, 64);
AT(dgo_worker, host, 80);
AT(dgo_worker, taints, 96);
AT(dgo_worker, n_taints, 104);
AT(dgo_worker, max_num_batched_tokens, 112);
AT(dgo_worker, total_kv_blocks, 120);
AT(dgo_worker, adapters, 128);
AT(dgo_worker, n_adapters, 136);
AT(dgo_worker, query, 144);

SIZE(dgo_request, 200);
AT(dgo_request, flags, 4);
AT(dgo_request, lora_name, 8);
AT(dgo_request, cache_namespace, 24);
AT(dgo_request, block_mm_infos, 40);
AT(dgo_request, request_id, 56);
AT(dgo_request, worker_id, 72);
AT(dgo_request, dp_rank, 80);
AT(dgo_request, strict_priority, 84);
AT(dgo_request, allowed_worker_ids, 88);
AT(dgo_request, n_allowed_worker_ids, 96);
AT(dgo_request, routing_constraints, 104);
AT(dgo_request, router_config_override, 120);
AT(dgo_request, policy_class, 136);
AT(dgo_request, session_id, 152);
AT(dgo_request, timeout_seconds, 168);
AT(dgo_request, priority_jump, 176);
AT(dgo_request, shared_ranges, 184);
AT(dgo_request, n_shared_ranges, 192);

SIZE(dgo_choice, 24);
AT(dgo_choice, dp_rank, 4);
AT(dgo_choice, worker_id, 8);
AT(dgo_choice, overlap_blocks, 16);

SIZE(dgo_potential_load, 32);
AT(dgo_potential_load, dp_rank, 8);
AT(dgo_potential_load, active_requests, 12);
AT(dgo_potential_load, potential_prefill_tokens, 16);
AT(dgo_potential_load, potential_decode_blocks, 24);

SIZE(dgo_match, 16);
AT(dgo_match, dp_rank, 8);
AT(dgo_match, blocks, 12);

SIZE(dgo_kv_event, 120);
AT(dgo_kv_event, flags, 4);
AT(dgo_kv_event, block_hashes, 8);
AT(dgo_kv_event, n_blocks, 16);
AT(dgo_kv_event, tokens, 24);
AT(dgo_kv_event, n_tokens, 32);
AT(dgo_kv_event, parent_hash, 40);
AT(dgo_kv_event, block_size, 48);
AT(dgo_kv_event, lora_name, 56);
AT(dgo_kv_event, cache_salt, 72);
AT(dgo_kv_event, block_mm_infos, 88);
AT(dgo_kv_event, medium, 104);
#endif

VALUE(DGO_OK, 0);
VALUE(DGO_INTERNAL, 1);
VALUE(DGO_BAD_HANDLE, 2);
VALUE(DGO_INVALID_ARGUMENT, 3);
VALUE(DGO_NOT_IMPLEMENTED, 4);
VALUE(DGO_REQUEST_NOT_FOUND, 5);
VALUE(DGO_DUPLICATE_REQUEST, 6);
VALUE(DGO_WORKER_NOT_FOUND, 7);
VALUE(DGO_DUPLICATE_WORKER, 8);
VALUE(DGO_NO_WORKERS, 9);
VALUE(DGO_OVERLOADED, 10);
VALUE(DGO_QUEUE_LIMIT_EXCEEDED, 11);
VALUE(DGO_TIMEOUT, 12);
VALUE(DGO_CLOSED, 13);
VALUE(DGO_FORKED, 14);
VALUE(DGO_EVENT_REFUSED, 15);
VALUE(DGO_CANNOT_CONNECT, 16);
VALUE(DGO_DISCONNECTED, 17);
VALUE(DGO_CANCELLED, 18);
VALUE(DGO_WORKER_ERROR, 19);
VALUE(DGO_FILE_ERROR, 20);
VALUE(DGO_SNAPSHOT_REFUSED, 21);
VALUE(DGO_SESSION_MOVED, 22);
VALUE(DGO_ENDED, 23);
VALUE(DGO_CANCEL_KILL, 1);
VALUE(DGO_NOTICE_REQUEST, 1);
VALUE(DGO_NOTICE_CANCELLED, 2);
VALUE(DGO_NOTICE_DRAINED, 3);
VALUE(DGO_NOTICE_BEGUN, 4);
VALUE(DGO_NOTICE_ITEM, 5);
VALUE(DGO_NOTICE_ENDED, 6);
VALUE(DGO_NOTICE_CHANGED, 7);
VALUE(DGO_NOTICE_CLOSED, 8);
VALUE(DGO_ITEM_FIRST, 1);
VALUE(DGO_ITEM_LAST, 2);
VALUE(DGO_ITEM_NOTE, 4);
VALUE(DGO_ITEM_KILL, 8);
VALUE(DGO_ANSWER_END, 1);
VALUE(DGO_ANSWER_FAIL, 2);
VALUE(DGO_APPLY_SET, 1);
VALUE(DGO_REQUEST_WORKER_ID, 1);
VALUE(DGO_REQUEST_DP_RANK, 2);
VALUE(DGO_REQUEST_UPDATE_INDEXER, 4);
VALUE(DGO_REQUEST_TIMEOUT, 8);
VALUE(DGO_EVENT_STORED, 1);
VALUE(DGO_EVENT_REMOVED, 2);
VALUE(DGO_EVENT_CLEARED, 3);
VALUE(DGO_EVENT_PARENT, 1);
VALUE(DGO_EVENT_EAGLE, 2);
