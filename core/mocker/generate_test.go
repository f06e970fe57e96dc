package mocker

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dynamo-go/dynamo-go/core/block"
	"github.com/dynamo-go/dynamo-go/core/stream"
)

type generated struct {
	TokenIDs     []block.Token `json:"token_ids"`
	FinishReason string        `json:"finish_reason"`
}

// collect takes items until the stream ends, and tells how it did.
func collect(t *testing.T, s *stream.Stream, each func([]generated)) ([]generated, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var items []generated
	for {
		var b stream.Batch
		if err := s.Next(ctx, &b, 64); err != nil {
			return items, err
		}
		for _, raw := range b.Items() {
			var item generated
			require.NoError(t, json.Unmarshal(raw, &item), "%s", raw)
			items = append(items, item)
		}
		if each != nil {
			each(items)
		}
	}
}

func generator(t *testing.T, change func(*Config)) *Mocker {
	t.Helper()
	cfg := DefaultConfig()
	cfg.PrefillRate, cfg.InterTokenMS = 1e9, 0
	if change != nil {
		change(&cfg)
	}
	m, err := New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = m.Close() })
	return m
}

func TestGenerateGivesAnItemForEachToken(t *testing.T) {
	m := generator(t, nil)
	prompt := []block.Token{1, 2, 3, 4, 5}
	want := newSequence(prompt, 40, m.cfg.BlockSize, "", nil)
	for _, size := range []int{0, 1, 100} {
		s, err := m.Generate(prompt, GenerateOptions{MaxTokens: 40, ResponseBufferSize: size})
		require.NoError(t, err)
		items, err := collect(t, s, nil)
		require.ErrorIs(t, err, stream.ErrEnded)
		require.Len(t, items, 40)
		for i, item := range items {
			require.Equal(t, []block.Token{want.token(i)}, item.TokenIDs)
			require.Equal(t, i == 39, item.FinishReason == "length")
		}
		s.Close()
	}
	require.EqualValues(t, 3, m.Stats().Finished)
}

func TestGenerateStops(t *testing.T) {
	m := generator(t, func(c *Config) { c.InterTokenMS = 1 })
	s, err := m.Generate([]block.Token{1}, GenerateOptions{MaxTokens: 100_000, ResponseBufferSize: 4})
	require.NoError(t, err)
	defer s.Close()
	items, err := collect(t, s, func(items []generated) {
		if len(items) >= 3 {
			s.Stop()
		}
	})
	require.ErrorIs(t, err, stream.ErrEnded)
	require.Equal(t, "cancelled", items[len(items)-1].FinishReason)
	require.Less(t, len(items), 100_000)
	require.EqualValues(t, 1, m.Stats().Cancelled)
}

func TestGenerateIsCutOff(t *testing.T) {
	for name, c := range map[string]struct {
		cut  func(*Mocker, *stream.Stream)
		want error
	}{
		"killed":           {func(_ *Mocker, s *stream.Stream) { s.Kill() }, stream.ErrCancelled},
		"closed":           {func(_ *Mocker, s *stream.Stream) { s.Close() }, stream.ErrClosed},
		"engine is closed": {func(m *Mocker, _ *stream.Stream) { _ = m.Close() }, ErrStopped},
	} {
		t.Run(name, func(t *testing.T) {
			m := generator(t, nil)
			s, err := m.Generate([]block.Token{1}, GenerateOptions{MaxTokens: 100_000})
			require.NoError(t, err)
			defer s.Close()
			cut := false
			_, err = collect(t, s, func([]generated) {
				if !cut {
					c.cut(m, s)
				}
				cut = true
			})
			require.ErrorIs(t, err, c.want)
			require.Eventually(t, func() bool {
				st := m.Stats()
				return st.Running == 0 || errors.Is(c.want, ErrStopped)
			}, time.Minute, time.Millisecond)
		})
	}
}

func TestGenerateRefuses(t *testing.T) {
	m := generator(t, func(c *Config) { c.MaxModelLen, c.MaxRunning, c.MaxWaiting = 64, 1, 1; c.InterTokenMS = 60_000 })
	o := DefaultGenerateOptions()
	for text, bad := range map[string]struct {
		prompt []block.Token
		o      GenerateOptions
	}{
		"prompt is missing or empty": {nil, o},
		"max_tokens is 0":            {[]block.Token{1}, GenerateOptions{}},
		"the prompt has 60 tokens":   {make([]block.Token, 60), o},
		"response_buffer_size is -1": {[]block.Token{1}, GenerateOptions{MaxTokens: 1, ResponseBufferSize: -1}},
	} {
		_, err := m.Generate(bad.prompt, bad.o)
		require.ErrorIs(t, err, ErrRequest)
		require.ErrorContains(t, err, text)
	}
	for _, text := range []string{``, `[]`, `{"max_tokens":"x"}`, `{"max_token":1}`, `{} {}`} {
		_, err := ParseGenerateOptions([]byte(text))
		require.ErrorIs(t, err, ErrRequest, text)
	}
	parsed, err := ParseGenerateOptions([]byte(`{"max_tokens":3,"response_buffer_size":0}`))
	require.NoError(t, err)
	require.Equal(t, GenerateOptions{MaxTokens: 3}, parsed)
	for range 2 { // one runs, one waits
		s, err := m.Generate([]block.Token{1}, o)
		require.NoError(t, err)
		defer s.Close()
	}
	_, err = m.Generate([]block.Token{1}, o)
	require.ErrorIs(t, err, ErrBusy)
	require.NoError(t, m.Close())
	_, err = m.Generate([]block.Token{1}, o)
	require.ErrorIs(t, err, ErrStopped)
}
