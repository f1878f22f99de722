package cache

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// fromScratch returns a cache with only the API server's objects.
func (w *twin) fromScratch() *Cache {
	c := New()
	for _, o := range w.objects {
		c.AddPod(o.node, o.Holding)
	}
	for _, o := range w.nominated {
		if o.Waits.IsZero() {
			c.NominatePod(o.node, o.Pod, o.Request, o.Assignment, o.until)
		}
	}
	for name, inv := range w.nodes {
		c.SetNode(name, inv)
	}
	return c
}

// heal calls Heal in a read during which the watch reports nothing.
func heal(c *Cache, d Difference, real *Cache) (was, is Entry, healed bool) {
	read := c.BeginRead()
	defer read.End()
	return read.Heal(d, real)
}

func TestDifferencesAndHeal(t *testing.T) {
	type change = func(*Cache)
	add := func(uid, node string, device int) change {
		return func(c *Cache) { c.AddPod(node, bound(uid, ask(3), device)) }
	}
	node := func(name string, capacities ...gpu.Units) change {
		return func(c *Cache) { c.SetNode(name, inventory(capacities...)) }
	}
	nominated := func(node string) change { return func(c *Cache) { nominate(c, node) } }
	assumed := func(c *Cache) { _, _ = assume(c, "p", "n", ask(3)) } // it fits
	tests := map[string]struct {
		cached, real []change // changes of each cache, which begins with node n with two GPUs
		want         string   // the differences
		was, is      string
		held         []gpu.Units
	}{
		"all is well": {
			cached: []change{add("p", "n", 0)}, real: []change{add("p", "n", 0)},
			held: []gpu.Units{3, 0, 0},
		},
		"what is assumed is no difference": {
			cached: []change{assumed}, held: []gpu.Units{3, 0, 0},
		},
		"an assumed pod that is bound": {
			cached: []change{assumed}, real: []change{add("p", "n", 1)},
			want: "ns/p on n",
			was:  "on n with [GPU-0: 3], assumed true, admitted false",
			is:   "on n with [GPU-1: 3], assumed false, admitted true",
			held: []gpu.Units{0, 3, 0},
		},
		"an assumed pod that is bound as it was assumed": {
			cached: []change{assumed},
			real:   []change{func(c *Cache) { c.AddPod("n", waiting(bound("p", ask(3), 0))) }},
			want:   "ns/p on n",
			was:    "on n with [GPU-0: 3], assumed true, admitted false",
			is:     "on n with [GPU-0: 3], assumed false, admitted false",
			held:   []gpu.Units{3, 0, 0},
		},
		"a pod that was missed": {
			real: []change{add("p", "n", 1)},
			want: "ns/p on n", was: "not there", is: "on n with [GPU-1: 3], assumed false, admitted true",
			held: []gpu.Units{0, 3, 0},
		},
		"a pod whose end was missed": {
			cached: []change{add("p", "n", 1)},
			want:   "ns/p on n", was: "on n with [GPU-1: 3], assumed false, admitted true", is: "not there",
			held: []gpu.Units{0, 0, 0},
		},
		"a correction that was missed": {
			cached: []change{add("p", "n", 0)}, real: []change{add("p", "n", 1)},
			want: "ns/p on n",
			was:  "on n with [GPU-0: 3], assumed false, admitted true",
			is:   "on n with [GPU-1: 3], assumed false, admitted true",
			held: []gpu.Units{0, 3, 0},
		},
		"a pod on another node": {
			cached: []change{add("p", "n", 0)}, real: []change{add("p", "m", 1)},
			want: "ns/p on n",
			was:  "on n with [GPU-0: 3], assumed false, admitted true",
			is:   "on m with [GPU-1: 3], assumed false, admitted true",
			held: []gpu.Units{0, 0, 0},
		},
		"a nomination that was missed": {
			real: []change{nominated("n")}, want: "ns/vip on n", was: "not there", is: "nominated to n", held: []gpu.Units{0, 0, 0},
		},
		"a nomination whose end was missed": {
			cached: []change{nominated("n")}, want: "ns/vip on n", was: "nominated to n", is: "not there", held: []gpu.Units{0, 0, 0},
		},
		"a nomination to another node": {
			cached: []change{nominated("n")}, real: []change{nominated("m")},
			want: "ns/vip on n", was: "nominated to n", is: "nominated to m", held: []gpu.Units{0, 0, 0},
		},
		"a node that was missed": {
			real: []change{node("m", 4)},
			want: "m", was: "not there", is: "offers [GPU-0: 4, takes pods true]",
			held: []gpu.Units{0, 0, 0},
		},
		"a node whose end was missed": {
			cached: []change{node("m", 4)},
			want:   "m", was: "offers [GPU-0: 4, takes pods true]", is: "not there",
			held: []gpu.Units{0, 0, 0},
		},
		"a node that shrank": {
			cached: []change{add("p", "n", 1)}, real: []change{add("p", "n", 1), node("n", 10)},
			want: "n", was: "offers [GPU-0: 10, takes pods true; GPU-1: 10, takes pods true]", is: "offers [GPU-0: 10, takes pods true]",
			held: []gpu.Units{0, 3},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c, real := New(), New()
			for cache, changes := range map[*Cache][]change{c: tc.cached, real: tc.real} {
				node("n", 10, 10)(cache)
				for _, change := range changes {
					change(cache)
				}
			}
			found := c.Differences(real)
			if tc.want == "" {
				if len(found) > 0 {
					t.Errorf("found %v, want nothing", found)
				}
			} else if len(found) != 1 {
				t.Fatalf("found %v, want %s alone", found, tc.want)
			}
			for _, d := range found {
				name := d.Node
				if !d.OfNode() {
					name = d.Pod.String() + " on " + d.Node
				}
				if name != tc.want {
					t.Errorf("%s differs, want %s", name, tc.want)
				}
				was, is, ok := heal(c, d, real)
				if was, is := was.String(), is.String(); was != tc.was || is != tc.is || !ok {
					t.Errorf("healed %t: was %q, is %q, want %q, %q", ok, was, is, tc.was, tc.is)
				}
				if _, _, again := heal(c, d, real); again {
					t.Error("healed again")
				}
			}
			if diff := cmp.Diff(tc.held, requested(c, "n")); diff != "" {
				t.Errorf("held at the end (-want +got):\n%s", diff)
			}
			if found := c.Differences(real); len(found) > 0 {
				t.Errorf("found %v after it was healed", found)
			}
		})
	}
}

// An update between two comparisons makes the second difference another one, and healing the first difference
// does not undo the update.
func TestWhatIsHeardMeanwhileCounts(t *testing.T) {
	c, real := New(), New()
	c.SetNode("n", inventory(10, 10))
	c.AddPod("n", bound("p", ask(3), 0))
	before := c.Differences(real)
	if len(before) != 2 {
		t.Fatalf("found %v, want the node and the pod", before)
	}
	if !slices.Equal(before, c.Differences(real)) {
		t.Error("what has stayed as it was is not seen to be the same")
	}
	c.SetNode("n", inventory(10, 10))
	c.AddPod("n", bound("p", ask(3), 0))
	for i, d := range c.Differences(real) {
		if before[i] == d {
			t.Errorf("%v was heard of again, and is taken for what it was", d)
		}
	}
	for _, d := range before {
		if _, _, healed := heal(c, d, real); healed {
			t.Errorf("%v was heard of since, and is healed", d)
		}
	}
	if diff := cmp.Diff([]gpu.Units{3, 0, 0}, requested(c, "n")); diff != "" {
		t.Errorf("held at the end (-want +got):\n%s", diff)
	}
}

// A pod, a nomination or a node can come and go during the read, so that it is absent before and after.
// The cache then has the later state, and Heal keeps it.
func TestNothingIsHealedThatCameAndWent(t *testing.T) {
	c, real := New(), New()
	for _, cache := range []*Cache{c, real} {
		cache.SetNode("n", inventory(10))
	}
	come := func(cache *Cache) {
		cache.SetNode("m", inventory(10))
		cache.AddPod("n", bound("p", ask(3), 0))
		nominate(cache, "n")
	}
	come(real)
	read := c.BeginRead()
	defer read.End()
	before := c.Differences(real)
	if len(before) != 3 {
		t.Fatalf("found %v, want a node, a pod and a nomination", before)
	}
	come(c)
	c.RemoveNode("m")
	c.RemovePod("p")
	nominate(c, "")
	for i, d := range c.Differences(real) {
		if d != before[i] {
			t.Errorf("found %v, want %v", d, before[i])
		}
		if _, _, healed := read.Heal(d, real); healed {
			t.Errorf("%v is healed by an older state", d)
		}
	}
}

// FuzzHeal checks that after healing all differences, any cache equals the real one plus its own assumptions.
func FuzzHeal(f *testing.F) {
	for seed := range uint64(60) {
		f.Add(seed, uint8(60))
	}
	f.Fuzz(func(t *testing.T, seed uint64, steps uint8) {
		random := rand.New(rand.NewPCG(seed, 11))
		c, was := New(), &twin{nodes: make(map[string]gpu.Inventory)}
		other, want := New(), &twin{nodes: make(map[string]gpu.Inventory)}
		for range steps {
			step(t, random, c, was)
			step(t, random, other, want)
		}
		if found := c.Differences(was.fromScratch()); len(found) > 0 {
			t.Errorf("found %v in a cache that is right", found)
		}
		real := want.fromScratch()
		for _, d := range c.Differences(real) {
			if _, _, healed := heal(c, d, real); !healed {
				t.Errorf("%v is found, and not healed", d)
			}
		}
		want.assumed = slices.DeleteFunc(was.assumed, func(o object) bool {
			return slices.ContainsFunc(want.objects, func(bound object) bool { return bound.Pod.UID == o.Pod.UID })
		})
		// Only the cache has expected and queued pods.
		own := func(o object) bool { return !o.Waits.IsZero() }
		want.expected = slices.DeleteFunc(was.expected, func(o object) bool { return want.has(want.objects, o.Pod.UID) })
		want.nominated = slices.DeleteFunc(want.nominated, own)
		for _, o := range was.nominated {
			if own(o) && !want.has(want.nominated, o.Pod.UID) && !want.has(want.objects, o.Pod.UID) {
				want.nominated = append(want.nominated, o)
			}
		}
		compare(t, c, want)
		if found := c.Differences(real); len(found) > 0 {
			t.Errorf("found %v after all was healed", found)
		}
	})
}

func TestDifferencesAreInOrder(t *testing.T) {
	c := New()
	c.SetNode("b", inventory(10))
	c.SetNode("a", inventory(10))
	c.AddPod("b", bound("q", ask(1), 0))
	c.AddPod("a", bound("p", ask(1), 0))
	var got []string
	for _, d := range c.Differences(New()) {
		got = append(got, d.Node+" "+d.Pod.Name)
	}
	if diff := cmp.Diff([]string{"a ", "b ", "a p", "b q"}, got); diff != "" {
		t.Errorf("found (-want +got):\n%s", diff)
	}
}
