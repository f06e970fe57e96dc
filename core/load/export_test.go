package load

// Edges counts the edges of the ledger's tree.
func Edges(l *Ledger) int { return len(l.tree.heads) }

// SetMaxRemote makes the bound on other routers' requests easy to reach.
func SetMaxRemote(l *Ledger, n int) { l.maxRemote = n }
