package mocker

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
)

// jsonFault tells in JSON's own words what encoding/json refused: "max_tokens must be an integer, got string".
func jsonFault(err error) string {
	var kind *json.UnmarshalTypeError
	if !errors.As(err, &kind) {
		return strings.TrimPrefix(err.Error(), "json: ")
	}
	field, got := kind.Field, kind.Value
	if field == "" {
		field = "it"
	}
	if got == "bool" {
		got = "boolean"
	}
	return fmt.Sprintf("%s must be %s, got %s", field, expected(kind.Type), got)
}

// expected names a Go type as JSON calls it.
func expected(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "a boolean"
	case reflect.Int, reflect.Int64:
		return "an integer"
	case reflect.Uint32:
		return "an integer of 0..4294967295"
	case reflect.Float64:
		return "a number"
	case reflect.String:
		return "a string"
	default:
		return "an object"
	}
}
