// The benchmarks against other projects; see docs/benchmarks.md. The name is below core/ so that core/internal/workload can be used.
module github.com/dynamo-go/dynamo-go/core/bench

go 1.26

require (
	github.com/dynamo-go/dynamo-go v0.0.0
	github.com/stretchr/testify v1.12.1
)

require (
	github.com/go-zeromq/goczmq/v4 v4.2.2 // indirect
	github.com/go-zeromq/zmq4 v0.17.0 // indirect
	github.com/klauspost/cpuid/v2 v2.2.10 // indirect
	github.com/tidwall/btree v1.8.2 // indirect
	github.com/vmihailenco/msgpack/v5 v5.4.1 // indirect
	github.com/vmihailenco/tagparser/v2 v2.0.0 // indirect
	github.com/zeebo/xxh3 v1.1.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sync v0.16.0 // indirect
	golang.org/x/sys v0.35.0 // indirect
	golang.org/x/text v0.28.0 // indirect
)

replace github.com/dynamo-go/dynamo-go => ../
