//go:build unix

package router_test

import (
	"fmt"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/router"
)

func TestPolicyFileIsAFile(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "policy.yaml")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	for _, path := range []string{pipe, filepath.Dir(pipe), "/dev/zero"} {
		_, err := router.ParseConfig(fmt.Appendf(nil, `{"router_policy_config": %q}`, path))
		require.ErrorIs(t, err, router.ErrInvalidArgument)
		require.ErrorContains(t, err, "not a regular file")
	}
}
