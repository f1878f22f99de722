package cache

import (
	"fmt"
	"testing"
)

// Prices are made when they are asked for to be, and again once more than one in
// four nodes has changed, or more than a quarter has come to the pods they are made of.
func TestReprice(t *testing.T) {
	c := New()
	for i := range 8 {
		c.SetNode(fmt.Sprint("n", i), inventory(10))
	}
	c.Learn(ask(4))
	if got := c.Prices(); got != nil {
		t.Errorf("prices %v that nobody has made", got)
	}
	c.Reprice()
	first := c.Prices()
	if first == nil {
		t.Fatal("no prices")
	}
	for i, wantNew := range []bool{false, false, true} {
		c.SetNode("n0", inventory(10))
		if got := c.Prices(); got != first {
			t.Errorf("after %d changes there are other prices than were made", i+1)
		}
		c.Reprice()
		if isNew := c.Prices() != first; isNew != wantNew {
			t.Errorf("after %d changes of 8 nodes, the prices are made anew: %t, want %t", i+1, isNew, wantNew)
		}
	}
}

func TestRepriceAsTheMixGrows(t *testing.T) {
	c := New()
	for i := range 100 {
		c.SetNode(fmt.Sprint("n", i), inventory(10))
	}
	made := 0
	for range 64 {
		c.Learn(ask(4))
		before := c.Prices()
		if c.Reprice(); c.Prices() != before {
			made++
		}
	}
	if made < 10 || made > 20 {
		t.Errorf("prices were made %d times of 64 pods, want each time that a quarter more has come", made)
	}
}
