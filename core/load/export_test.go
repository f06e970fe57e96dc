package load

// Edges counts the edges of the ledger's tree.
func Edges(l *Ledger) int { return l.tree.heads.used }

// SetMaxRemote makes the bound on other routers' requests easy to reach.
func SetMaxRemote(l *Ledger, n int) { l.maxRemote = n }
