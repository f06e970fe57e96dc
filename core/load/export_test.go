package load

// Edges counts the edges of the ledger's tree.
func Edges(l *Ledger) int { return len(l.tree.heads) }
