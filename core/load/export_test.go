package load

// Edges counts the edges of the ledger's tree.
func Edges(l *Ledger) int { return l.tree.heads.used }

// SetMaxRemote makes the bound on other routers' requests easy to reach.
func SetMaxRemote(l *Ledger, n int) { l.maxRemote = n }

// SetMaxEnds makes a ledger take several calls to end a few requests.
func SetMaxEnds(l *Ledger, n int) { l.maxEnds = n }

// Remembered counts the ids that are owed a late call.
func Remembered(l *Ledger) int { return len(l.late.queue) - l.late.head }

// Crowds counts the lists of several holders, and the holders that those of no edge have room for.
func Crowds(l *Ledger) (lists, idleRoom int) {
	for _, k := range l.tree.idle {
		idleRoom += cap(l.tree.crowds[k])
	}
	return len(l.tree.crowds) - 1, idleRoom
}
