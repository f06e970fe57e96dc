package discovery_test

import (
	"testing"

	"github.com/dynamo-go/dynamo-go/core/runtime/discovery"
	"github.com/dynamo-go/dynamo-go/core/runtime/discovery/storetest"
)

func TestMemory(t *testing.T) {
	m := discovery.NewMemory()
	storetest.Run(t, func() discovery.Store { return m })
}
