package schedule_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/schedule/model"
)

func TestTermsAddUpToTheCost(t *testing.T) {
	r := rng(12)
	finite := 0
	for range 5000 {
		data := make([]byte, 100+r.IntN(600))
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		candidates, req, w := (&source{data}).situation()
		least := candidates[0].ActivePrefillTokens
		for _, c := range candidates {
			least = min(least, c.ActivePrefillTokens)
		}
		for i := range candidates {
			want, terms := model.Cost(candidates, i, &req, &w), candidates[i].Terms(&req, &w, least)
			if got := terms.Cost(); want < 1e300 && !math.IsNaN(got) {
				require.InEpsilon(t, 1+want, 1+got, 1e-9, "%+v %+v %+v", candidates[i], req, w)
				finite++
			}
		}
	}
	require.Greater(t, finite, 10_000)
}
