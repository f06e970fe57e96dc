package wire_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/wire"
)

func TestPack(t *testing.T) {
	var p wire.Pack
	p = p.Array(7).Nil().Uint(1<<64 - 1).Float(-1.5).String("a").Texts(map[string]string{"k": "v"}).Value(nil).Value(wire.Pack{}.Uint(3))
	require.NoError(t, wire.Valid(p))
	text, err := wire.ToJSON(nil, p)
	require.NoError(t, err)
	require.JSONEq(t, `[null,18446744073709551615,-1.5,"a",{"k":"v"},null,3]`, string(text))
}
