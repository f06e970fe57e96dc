package diagnose

import (
	"fmt"
	"time"
)

// The least that names a cause.
const (
	minStores  = 4 // that were left out, with none that was not
	minSamples = 8 // that were not stored as they were asked for, with none that was
	minSilent  = places
)

// Counters of events (packages wire and feed) that have a meaning here.
const (
	wrongBlockSize      = "wrong_block_size"
	unnamedLoRA         = "unnamed_lora"
	ambiguousNamespace  = "ambiguous_cache_namespace"
	namespacesExhausted = "cache_namespaces_exhausted"
	eagleWindows        = "eagle_windows"
)

// Findings tells what the observations of a rank show, nothing for a healthy one. counters are those of its events; now is
// on the clock of Miss.
func Findings(i *Intake, w *Watch, counters map[string]uint64, blockSize int, now int64) []Finding {
	if f, ok := i.find(blockSize); ok {
		return []Finding{f}
	}
	return w.find(counters, now)
}

// find tells whether all stores are left out.
func (i *Intake) find(blockSize int) (Finding, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	total, reason := uint64(0), ""
	for name, n := range i.unusable {
		total += n
		if most := i.unusable[reason]; n > most || n == most && name < reason {
			reason = name
		}
	}
	switch {
	case total < minStores:
		return Finding{}, false
	case reason == wrongBlockSize:
		return Finding{BlockSizeDiffers,
			fmt.Sprintf("all %d stored events were left out, %d of them because their block size is not %d: the last one's is %d", total, i.unusable[reason], blockSize, i.otherSize),
			fmt.Sprintf("start the router with the engine's block size, or the engine with --block-size %d (SGLang: --page-size)", blockSize)}, true
	}
	return Finding{EventsUnusable,
		fmt.Sprintf("all %d stored events were left out, %d of them as %s", total, i.unusable[reason], reason),
		fmt.Sprintf("see what the counter %s means in docs/troubleshooting.md", reason)}, true
}

// find tells what the samples show: each cause once, of the class of requests that shows it most.
func (w *Watch) find(counters map[string]uint64, now int64) (found []Finding) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.silent >= minSilent {
		found = append(found, Finding{NoEvents,
			fmt.Sprintf("%d requests that hit nothing were sent here, the first of them %d s ago, and no event came since", w.silent, (now-w.silentAt)/int64(time.Second)),
			"start the engine with KV events and prefix caching on, and give kv_events the endpoint it publishes at; 'python -m dynamo_go events ENDPOINT' shows what comes"})
	}
	most := map[Cause]uint64{}
	var order []Cause
	byCause := map[Cause]Finding{}
	for c := range classes {
		o := &w.judged[c]
		if o.total() < minSamples {
			continue
		}
		f := o.find(c, counters)
		if _, known := most[f.Cause]; !known {
			order = append(order, f.Cause)
		}
		if o.total() > most[f.Cause] {
			most[f.Cause], byCause[f.Cause] = o.total(), f
		}
	}
	for _, cause := range order {
		found = append(found, byCause[cause])
	}
	return found
}

var classNames = [classes]string{0: "", withLoRA: " with lora_name", withSalt: " with cache_namespace", withLoRA | withSalt: " with lora_name and cache_namespace"}

func (o *outcomes) find(c class, counters map[string]uint64) Finding {
	said := fmt.Sprintf("the last %d sampled prompts%s hit nothing, and none of them was stored as it was asked for, while the engine stored up to %d blocks", o.total(), classNames[c], o.stored)
	nameless, eagle := counters[unnamedLoRA], counters[eagleWindows]
	lost := counters[ambiguousNamespace] + counters[namespacesExhausted]
	switch {
	case o.otherSalt >= o.otherLoRA && 2*o.otherSalt >= o.total():
		return Finding{CacheSaltDiffers, fmt.Sprintf("%s; %d of them were stored under another cache salt", said, o.otherSalt),
			"give the router each request's cache salt as cache_namespace, exactly as the engine gets it, and none where it gets none"}
	case 2*(o.otherSalt+o.otherLoRA) >= o.total():
		name := "the base model"
		if o.lora != "" {
			name = fmt.Sprintf("the adapter %q", o.lora)
		}
		return Finding{LoRADiffers, fmt.Sprintf("%s; %d of them were stored under another LoRA adapter, the last one under %s", said, o.otherLoRA, name),
			"give the router each request's lora_name, exactly as the engine's events name it, and none for the base model"}
	case c&withLoRA != 0 && nameless > 0:
		return Finding{LoRADiffers, fmt.Sprintf("%s; %d stored events name their adapter by number only (%s)", said, nameless, unnamedLoRA),
			"use an engine that names adapters in its events (vLLM 0.14 and later)"}
	case c&withSalt != 0 && lost > 0:
		return Finding{CacheSaltDiffers, fmt.Sprintf("%s; %d stored events do not tell their cache salt", said, lost),
			"use an engine whose events carry the cache salt of each block, or fewer salts"}
	case eagle > 0:
		return Finding{EventsUnusable, fmt.Sprintf("%s; %d stored events are of %s", said, eagle, eagleWindows),
			fmt.Sprintf("see what the counter %s means in docs/troubleshooting.md", eagleWindows)}
	}
	return Finding{TokensDiffer, said + "; nor under any cache salt or LoRA adapter that its events name",
		"give the router the token ids that the engine computes: same tokenizer, chat template and special tokens; vLLM's and SGLang's /tokenize give them"}
}
