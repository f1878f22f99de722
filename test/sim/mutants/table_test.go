package main

import "testing"

// The table must not rot: each text is in its file exactly once.
func TestTable(t *testing.T) {
	t.Chdir("..")
	for _, m := range table {
		if _, _, err := m.mutate(); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
	}
}
