package idtable

import "fmt"

// Check verifies invariant T of all tables and the counted room, for tests.
func (t *Tables) Check() error {
	room := 0
	for i := range t.parts {
		if err := t.parts[i].Check(); err != nil {
			return err
		}
		room += len(t.parts[i].slots)
	}
	if room != t.room {
		return fmt.Errorf("tables have room for %d, counted %d", room, t.room)
	}
	return nil
}

// Check verifies invariant T, for tests.
func (t *Table) Check() error {
	n := 0
	for pos, e := range t.slots {
		if e == 0 {
			continue
		}
		n++
		for p := t.home(uint32(e >> 32)); p != pos; p = t.after(p) {
			if t.slots[p] == 0 {
				return fmt.Errorf("invariant T: entry %d cannot be reached from its home", pos)
			}
		}
	}
	if n != t.n {
		return fmt.Errorf("invariant T: %d entries, counted %d", n, t.n)
	}
	return nil
}
