// Package discovery is how the processes of a deployment find each other: what each one tells of itself (records), under which
// names (keys), and the Store that keeps them. The formats are those of NVIDIA Dynamo 1.4 to 1.6; fields that are not known are
// passed over, ids are 64 bits exactly.
//
// A Store belongs to one process (its ID is the instance id of all that the process serves) and what it creates lives as long as
// the process does: it is deleted by Close, and expires if the process dies. A View shows all that is under a prefix, always the newest state
// rather than each change: who looks late sees less often, and nothing waits in a queue.
//
// Stores: Memory, for one process; package discovery/file, for the processes of a machine; package discovery/etcd, for many machines.
package discovery
