// Package snapshot is the file from which a router starts warm: which ranks it knew, what each of them held, and where the
// feed of each stood, so that what is read can be proven to be current.
//
// A file is 8 bytes of magic, the version as 4 bytes, and sections: kind (1 byte), length of the payload (4), payload,
// CRC-32C (4). Each checksum covers its section and continues the one before, from the magic on: a section that is missing,
// moved or doubled is as visible as a flipped bit. Numbers of fixed size are little-endian; "varint" is Go's unsigned one;
// strings are a varint and their bytes.
//
//	header  block size (varint), time in Unix microseconds (8), identity of the block hashes (string), ranks (varint)
//	rank    worker id (8), dp rank (4), flags (1: followed by a feed), blocks held when it was saved (varint), reason (string);
//	        with a feed: last batch (8), seed (8), fingerprints (varint, 8 each), reason (string), streams (string)
//	runs    any number of runs, back to back
//	end     number of runs (varint), of blocks in them (varint)
//
// There is one rank section per rank, in ascending order; ranks are then known by their position. A run is a stretch of
// consecutive blocks that the same ranks hold under the same names (index.Run):
//
//	flags (1)    1: it has a parent; 2: a set of ranks follows, otherwise the number of one; bits 4 and 5: the storage tier
//	set          its size, the first member, and the distance of each other from the one before (varints); or how many sets
//	             of this section came before it (varint)
//	references   (varint), 1 to MaxReferences
//	parent       with a parent: its engine hash (8)
//	blocks       how many (varint), and of each its content hash (8) and its engine hash (8)
//
// A block that many ranks hold is there once: 16 bytes, and its share of some 12 bytes for the run. Sets are known within
// a section only, so that a reader needs no memory beyond one section.
//
// A reader trusts nothing: no length takes memory before its bytes are there, every number has a bound, and whatever the
// bytes are, it gives one of the errors of errors.go and no panic. Blocks are handed on as soon as the checksum of their section
// was right, and a later section may not be: whoever may not take blocks of a file that is refused reads it twice.
package snapshot
