// Package jsonkind names Go types as JSON calls them, for messages about what somebody else wrote.
package jsonkind

import (
	"fmt"
	"reflect"
)

// Of names what encoding/json reads into a value of a type, with its article: "a number", "an integer of 0..4294967295".
func Of(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return Of(t.Elem())
	case reflect.Bool:
		return "a boolean"
	case reflect.Int, reflect.Int64:
		return "an integer"
	case reflect.Int8, reflect.Int16, reflect.Int32:
		half := int64(1) << (t.Bits() - 1)
		return fmt.Sprintf("an integer of %d..%d", -half, half-1)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		return fmt.Sprintf("an integer of 0..%d", ^uint64(0)>>(64-t.Bits()))
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.String:
		return "a string"
	case reflect.Slice, reflect.Array:
		return "a list"
	default:
		return "an object"
	}
}
