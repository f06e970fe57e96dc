// Package block turns tokens into block hashes and sequence hashes.
//
// Three kinds of hash name a KV block, and they are never mixed up, so each is its own type:
//
//   - Hash names a block's own tokens (with LoRA name, cache salt and multimodal hashes): equal content, equal hash.
//   - SequenceHash names a block together with everything before it: it identifies a prefix.
//   - EngineHash is whatever an engine calls the block. It is opaque, and means something only inside one worker rank:
//     it is a parent link and a removal key, and is never compared across ranks.
//
// The formulas are those of NVIDIA Dynamo 1.6.1 (XXH3-64, seed 1337), so that hashes agree with its routers and workers.
package block

// Token is a token id, as engines and tokenizers number them.
type Token = uint32

// Hash is the hash of one block's content.
type Hash uint64

// SequenceHash is the rolling hash of a block and all blocks before it.
type SequenceHash uint64

// EngineHash is an engine's own name for a block, valid inside one worker rank.
type EngineHash uint64
