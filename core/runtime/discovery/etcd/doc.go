// Package etcd keeps the records of a deployment in etcd, in Dynamo's layout, so that Dynamo's own processes may be among them.
//
// A Store lives by sessions. A session is one connection: it makes sure of the lease, of the records that this process wants stored, and of
// everything that somebody watches; then it follows what changes, in one stream. Whatever breaks it (the server is gone, hangs, has no leader, refuses a
// token) ends it as a whole, and the next one starts from the beginning. So nothing is ever carried over that only the old
// server knew, and one that comes back without its data is served like any other.
//
// The lease's id is drawn by the Store, not by the server: it is the process's id, known before there is a connection, and stays when the lease is lost
// (the process was stopped, the network was cut, somebody revoked it). Then a lease of the same id is granted anew and all records are
// written again, as soon as their deletion is heard of. For others an instance went and came back; its id, which its records,
// events and addresses contain, is still the same.
//
// While there is no connection, views show what was last known. What is missing after it comes back is shown for Options.Grace yet: its owner may be on
// its way, if the server lost its data.
//
// Limits: records of discovery.MaxRecordBytes, MaxRecords and MaxBytes of them under a prefix that is watched; what is beyond is not
// shown, and counted.
package etcd
