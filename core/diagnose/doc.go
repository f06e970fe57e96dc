// Package diagnose tells why prompts never find what a worker rank holds, from what its events were like (Intake) and from
// what became of some prompts that were sent to it (Watch).
//
// A prompt that hit nothing on the rank chosen for it is kept as a sample. When its request has ended, the engine must
// have stored it, so its first block must be known; if it is not, but is under another cache salt or LoRA adapter that the
// engine's events name, then that is the cause; if it is under none, the engine computed other tokens than the router was
// asked about. Prompts that never repeat are stored as well, so they accuse nobody.
//
// A cause is named only if a minimum of observations agrees and none speaks against it. Time and look-ups are parameters;
// memory is bounded: a few prompts' first blocks and identities per rank.
package diagnose

// Cause names why a rank's cache is never hit.
type Cause string

// The causes.
const (
	BlockSizeDiffers Cause = "block_size_differs" // all stores are of another block size than the router's
	EventsUnusable   Cause = "events_unusable"    // all stores are left out for another reason
	NoEvents         Cause = "no_events"          // requests end, and no event comes
	CacheSaltDiffers Cause = "cache_salt_differs" // the engine stores the prompts under another cache salt
	LoRADiffers      Cause = "lora_differs"       // the engine stores the prompts under another LoRA adapter
	TokensDiffer     Cause = "tokens_differ"      // the engine stores other tokens than the prompts'
)

// Causes lists the causes there are.
func Causes() []Cause {
	return []Cause{BlockSizeDiffers, EventsUnusable, NoEvents, CacheSaltDiffers, LoRADiffers, TokensDiffer}
}

// Finding is a cause that the observations of one rank show.
type Finding struct {
	Cause    Cause  `json:"cause"`
	Evidence string `json:"evidence"` // what was observed, with numbers
	Action   string `json:"action"`   // what to do about it
}

// Identity is what names a block besides its tokens, as far as events and requests tell. The zero Identity is the base
// model without a salt.
type Identity struct{ LoRAName, CacheSalt string }

// maxName bounds what is kept of a LoRA name or cache salt: an identity with a longer one is not looked at.
const maxName = 256

func (id Identity) fits() bool { return len(id.LoRAName) <= maxName && len(id.CacheSalt) <= maxName }
