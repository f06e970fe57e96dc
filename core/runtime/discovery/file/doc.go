// Package file keeps the records of a deployment in a directory that its processes share: one file a record, in Dynamo's layout
// (DYN_FILE_KV), so that Dynamo's own processes may be among them.
//
// A file's modification time is its lease: its owner renews it every third of the TTL, and whoever reads does not see a file that was
// not renewed for a TTL, whether or not anybody deletes it. So what a dead process left behind, also one of an earlier deployment, is
// harmless. Files that have been dead for another TTL are deleted by whoever watches their bucket.
//
// Writers hold an exclusive flock on the bucket's directory; readers need none, because files appear and are replaced whole. inotify tells
// of changes; the directory is read again then, and when the next lease may end. A file deleted by others while its owner lives
// (it was stopped for longer than its lease) is written again at the next renewal.
//
// Limits: records of discovery.MaxRecordBytes, MaxRecords of them in a bucket, file names of 255 bytes, 10 s for the lock.
package file
