package mocker

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/dynamo-go/dynamo-go/core/internal/jsonkind"
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
	return fmt.Sprintf("%s must be %s, got %s", field, jsonkind.Of(kind.Type), got)
}
