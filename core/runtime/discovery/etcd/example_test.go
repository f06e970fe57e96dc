package etcd_test

import (
	"fmt"
	"os"

	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery/etcd"
)

// A process joins the deployment that Dynamo's variables name (ETCD_ENDPOINTS and others). It is compiled, and needs a server to run.
func Example() {
	options, err := etcd.OptionsFromEnv(os.Getenv)
	if err != nil {
		panic(err)
	}
	store, err := etcd.Open(options) // waits for the server, for options.ConnectTimeout at most
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close() // or by runtime.New(store, ...), whose it is then
	view, err := store.Watch(discovery.Instances, "dynamo/backend/generate/")
	if err != nil {
		panic(err)
	}
	fmt.Println(len(view.Entries()), "workers")
}
