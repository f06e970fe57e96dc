package jsonkind

import (
	"encoding/json"
	"errors"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOf(t *testing.T) {
	for _, x := range []struct {
		into any
		text string
		want string
	}{
		{new(bool), `"x"`, "a boolean"},
		{new(int), `"x"`, "an integer"},
		{new(int64), `1.5`, "an integer"},
		{new(int16), `32768`, "an integer of -32768..32767"},
		{new(uint8), `256`, "an integer of 0..255"},
		{new(uint32), `-1`, "an integer of 0..4294967295"},
		{new(uint64), `"x"`, "an integer of 0..18446744073709551615"},
		{new(float64), `"x"`, "a number"},
		{new(*float64), `"x"`, "a number"},
		{new(string), `1`, "a string"},
		{new([]int), `1`, "a list"},
		{new([2]int), `1`, "a list"},
		{new(map[string]int), `1`, "an object"},
		{new(struct{}), `1`, "an object"},
	} {
		var kind *json.UnmarshalTypeError
		require.True(t, errors.As(json.Unmarshal([]byte(x.text), x.into), &kind), x.want)
		require.Equal(t, x.want, Of(kind.Type))
		require.Equal(t, x.want, Of(reflect.TypeOf(x.into)))
	}
}
