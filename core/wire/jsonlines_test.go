package wire_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/wire"
)

func TestJSONLines(t *testing.T) {
	b := decode(t, pack(t, []any{1700000000.25, []any{
		m{"type": "BlockStored", "block_hashes": []any{uint64(math.MaxUint64), -2}, "parent_block_hash": 0, "token_ids": []int{1, 2},
			"block_size": 1, "medium": "GPU", "lora_name": "a\"\n\xff", "cache_salt": "s", "group_idx": 0},
		m{"type": "BlockStored", "block_hashes": []any{}, "token_ids": []any{[]int{1, 2}, []int{2, 3}}, "block_size": 16},
		[]any{"BlockRemoved", []any{7}, "CPU"},
		[]any{"AllBlocksCleared"},
		[]any{"BlockRemoved", "x"},
		[]any{"BlockMoved"},
		5,
	}, 3}))
	seq := uint64(math.MaxUint64)
	require.Equal(t, `{"seq":18446744073709551615,"ts":1700000000.25,"dp_rank":3,"type":"stored","block_hashes":[18446744073709551615,18446744073709551614],"parent_hash":0,"token_ids":[1,2],"block_size":1,"medium":"GPU","lora_name":"a\"\n\ufffd","cache_salt":"s","group_idx":0}
{"seq":18446744073709551615,"ts":1700000000.25,"dp_rank":3,"type":"stored","block_hashes":[],"parent_hash":null,"token_ids":[[1,2],[2,3]],"block_size":16,"medium":null,"lora_name":null,"cache_salt":null,"group_idx":null}
{"seq":18446744073709551615,"ts":1700000000.25,"dp_rank":3,"type":"removed","block_hashes":[7],"parent_hash":null,"token_ids":null,"block_size":null,"medium":"CPU","lora_name":null,"cache_salt":null,"group_idx":null}
{"seq":18446744073709551615,"ts":1700000000.25,"dp_rank":3,"type":"cleared","block_hashes":null,"parent_hash":null,"token_ids":null,"block_size":null,"medium":null,"lora_name":null,"cache_salt":null,"group_idx":null}
{"error":"undecodable event: block_hashes has a type it never has","type":"removed"}
{"error":"unknown event type","type":"BlockMoved"}
{"error":"undecodable event: neither an array nor a map","type":null}
`, string(b.AppendJSONLines(nil, &seq)))

	require.Empty(t, decode(t, batchOf(t)).AppendJSONLines(nil, nil))
	odd := decode(t, pack(t, []any{math.Inf(1), []any{[]any{"AllBlocksCleared"}}}))
	require.Equal(t, `{"seq":null,"ts":null,"dp_rank":null,"type":"cleared","block_hashes":null,"parent_hash":null,"token_ids":null,`+
		`"block_size":null,"medium":null,"lora_name":null,"cache_salt":null,"group_idx":null}`+"\n", string(odd.AppendJSONLines(nil, nil)))
	require.Equal(t, "{\"error\":\"x\",\"type\":null}\n", string(wire.AppendJSONError(nil, "x", "")))
}
