package wire

import "fmt"

// fields reads a map whose keys are text: value reads the value of a key, and tells whether it knows the key. Keys that are
// not known are passed over; all of needed must be there, in any order.
func (c *cursor) fields(value func(key string) (known bool, err error), needed ...string) error {
	n, err := c.pairs()
	if err != nil {
		return err
	}
	missing := len(needed)
	seen := [8]bool{}
	for range n {
		view, err := c.bytes(classString)
		if err != nil {
			return fmt.Errorf("a key %w", err)
		}
		key := string(view)
		known, err := value(key)
		if err != nil {
			return fmt.Errorf("%s %w", key, err)
		}
		if !known {
			if err := c.skip(); err != nil {
				return err
			}
		}
		for i, name := range needed {
			if name == key && !seen[i] {
				seen[i] = true
				missing--
			}
		}
	}
	if missing > 0 {
		for i, name := range needed {
			if !seen[i] {
				return fmt.Errorf("has no %s", name)
			}
		}
	}
	return nil
}

func (c *cursor) boolean() (bool, error) {
	if c.class() != classBool {
		return false, errType
	}
	return c.dec.DecodeBool()
}

// text reads a string of at most so many bytes.
func (c *cursor) text(most int) (string, error) {
	view, err := c.bytes(classString)
	if err == nil && len(view) > most {
		err = fmt.Errorf("has %d bytes, at most %d", len(view), most)
	}
	return string(view), err
}
