package scheduler

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/gpumem/gpumem/pkg/kube/api"
)

var (
	seeds    = flag.Int("seeds", 0, "how many places the node with room is put at, for each size; 0: as many as are soon done")
	patience = flag.Duration("patience", 30*time.Second, "how long a pod that fits may wait after its back-off: 5s is promised, more allows for a busy machine")
)

// fleet is nodes whose sums have room for a pod of 8 and none of whose GPUs has: 6 of 10
// are taken on each.
func fleet(t testing.TB, size int) (objects []runtime.Object) {
	t.Helper()
	for i := range size {
		n := node(t, nodeName(i))
		objects = append(objects, n, filler(t, n, 0), filler(t, n, 1))
	}
	return objects
}

func nodeName(i int) string { return fmt.Sprintf("node-%04d", i) }

func fillerName(node string, index int) string { return fmt.Sprintf("%s-filler-%d", node, index) }

// filler is the pod that takes 6 units of a GPU.
func filler(t testing.TB, n *v1.Node, index int) *v1.Pod {
	t.Helper()
	return pod(t, fillerName(n.Name, index), 6, on(t, n, index))
}

// makeRoom takes the filler away from one GPU of a node, and waits until the extender
// knows.
func (c *cluster) makeRoom(t testing.TB, name string) {
	t.Helper()
	c.remove(t, fillerName(name, 1))
	c.eventually(t, 10*time.Second, "the extender has heard of the room", func() bool {
		n, ok := c.cache.Node(name)
		return ok && n.Devices[1].Free() == 10
	})
}

// takeRoom ends a pod on a node's second GPU and puts the filler back.
func (c *cluster) takeRoom(t testing.TB, name, pod string) {
	t.Helper()
	c.remove(t, pod)
	c.add(t, filler(t, node(t, name), 1))
	c.eventually(t, 10*time.Second, "the extender has heard of the filler", func() bool {
		n, ok := c.cache.Node(name)
		return ok && n.Devices[1].Free() == 4
	})
}

// refused returns how many pods kube-scheduler has found no node for.
func (c *cluster) refused(t testing.TB) (count int) {
	t.Helper()
	list, err := c.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName="})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		if api.Considered(&list.Items[i]) {
			count++
		}
	}
	return count
}

// TestFindsTheOneNodeThatFits has one node with a GPU that has room, somewhere, and all
// others fit by their sums alone.
func TestFindsTheOneNodeThatFits(t *testing.T) {
	for _, mode := range modes {
		testFindsTheOneNodeThatFits(t, mode)
	}
}

func testFindsTheOneNodeThatFits(t *testing.T, mode mode) {
	for _, tc := range []struct {
		name     string
		nodes    int
		seeds    int
		setups   []setup
		profiles []string // of the pods, in turn
		waiting  int      // pods that fit nowhere
	}{
		{name: "100 nodes", nodes: 100, seeds: 20},
		{name: "500 nodes", nodes: 500, seeds: 20},
		{name: "5000 nodes", nodes: 5000, seeds: 3},
		{name: "500 nodes, two profiles", nodes: 500, seeds: 6, setups: []setup{withSecond}, profiles: []string{schedulerName, second}},
		{name: "500 nodes, 200 pods that fit nowhere", nodes: 500, seeds: 3, waiting: 200},
		{name: "500 nodes, all asked about", nodes: 500, seeds: 6, setups: []setup{allNodes}},
		{name: "5000 nodes, all asked about", nodes: 5000, seeds: 3, setups: []setup{allNodes}},
	} {
		t.Run(mode.name+", "+tc.name, func(t *testing.T) {
			c := start(t, fleet(t, tc.nodes), append(tc.setups, mode.setup)...)
			for i := range tc.waiting {
				c.add(t, pod(t, fmt.Sprintf("waiting-%d", i), 8, annotated(names(t).Model(), "*H100*")))
			}
			if tc.waiting > 0 {
				c.eventually(t, time.Minute, "all are refused", func() bool { return c.refused(t) == tc.waiting })
			}
			if *seeds > 0 {
				tc.seeds = *seeds
			}
			for seed := range tc.seeds {
				t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
					random := rand.New(rand.NewPCG(uint64(seed), uint64(tc.nodes)))
					good := nodeName(random.IntN(tc.nodes))
					c.makeRoom(t, good)
					p := pod(t, fmt.Sprintf("pod-%d", seed), 8)
					if len(tc.profiles) > 0 {
						of(tc.profiles[seed%len(tc.profiles)])(p)
					}
					// The room is gone with the seed, whatever becomes of the pod.
					defer func() { c.takeRoom(t, good, p.Name) }()
					c.add(t, p)
					if diff := cmp.Diff(place{good, []int{1}}, c.bound(t, p.Name, 0)); diff != "" {
						t.Errorf("place (-want +got):\n%s", diff)
					}
				})
			}
		})
	}
}

// occupied is nodes full of pods that are important, but for one. There, by the sum of
// the node, the pod "proposed" has to go for one of 8; by its GPUs "evicted-1" and
// "evicted-2" have to.
func occupied(t testing.TB, size, but int, options ...option) (objects []runtime.Object) {
	t.Helper()
	for i := range size {
		n := node(t, nodeName(i))
		objects = append(objects, n)
		if i != but {
			objects = append(objects,
				pod(t, n.Name+"-0", 10, on(t, n, 0), priority(2000)),
				pod(t, n.Name+"-1", 10, on(t, n, 1), priority(2000)))
			continue
		}
		first := append([]option{on(t, n, 0), priority(1)}, options...)
		second := append([]option{on(t, n, 1)}, options...)
		objects = append(objects,
			pod(t, "evicted-1", 4, first...), pod(t, "evicted-2", 4, first...),
			pod(t, "proposed", 6, second...), pod(t, "important", 4, append(second, priority(2000))...))
	}
	return objects
}

// left checks which pods of occupied there are once "high" is bound to the node.
func (c *cluster) left(t *testing.T, node string) {
	t.Helper()
	if diff := cmp.Diff(place{node, []int{0}}, c.bound(t, "high", 0)); diff != "" {
		t.Errorf("place (-want +got):\n%s", diff)
	}
	left := map[string]bool{}
	for _, name := range []string{"evicted-1", "evicted-2", "proposed", "important"} {
		left[name] = c.pod(t, name) != nil
	}
	want := map[string]bool{"evicted-1": false, "evicted-2": false, "proposed": true, "important": true}
	if diff := cmp.Diff(want, left); diff != "" {
		t.Errorf("who is left (-want +got):\n%s", diff)
	}
}

// TestEvictsThoseOfOneGPU has a pod of some priority that only an eviction makes room
// for, on one node of many.
func TestEvictsThoseOfOneGPU(t *testing.T) {
	const size = 500
	for seed := range max(3, *seeds) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(uint64(seed), size))
			good := random.IntN(size)
			c := start(t, occupied(t, size, good, gracefully))
			c.add(t, pod(t, "high", 8, priority(1000)))
			c.eventually(t, *patience, "two pods are being deleted", func() bool {
				return c.pod(t, "evicted-1").DeletionTimestamp != nil && c.pod(t, "evicted-2").DeletionTimestamp != nil
			})
			c.remove(t, "evicted-1")
			c.remove(t, "evicted-2")
			c.left(t, nodeName(good))
		})
	}
}

// TestWhatFitsNowhereIsPutBy has a pod that fits nowhere: kube-scheduler does not try it
// again and again while nothing happens. Of many nodes, each with other GPUs, few are described.
func TestWhatFitsNowhereIsPutBy(t *testing.T) {
	for _, tc := range []struct {
		name   string
		how    option
		setups []setup
		more   []mode // beyond the extender
	}{
		{name: "no such model", how: annotated(names(t).Model(), "*H100*"), more: modes[1:]},
		{name: "no such GPU", how: annotated(names(t).UUID(), "GPU-of-no-node"), more: modes[1:]},
		{name: "no such model on any node", how: annotated(names(t).Model(), "*H100*"), setups: []setup{allNodes}},
		{name: "no such GPU on any node", how: annotated(names(t).UUID(), "GPU-of-no-node"), setups: []setup{allNodes}},
	} {
		for _, mode := range append(modes[:1:1], tc.more...) {
			t.Run(mode.name+", "+tc.name, func(t *testing.T) {
				c := start(t, fleet(t, 500), append(tc.setups, mode.setup)...)
				c.add(t, pod(t, "waiting", 8, tc.how))
				if more := func() bool { return len(c.questions("waiting")) > 10 }; holds(t, 2*time.Second, more) {
					t.Errorf("kube-scheduler has asked about it %d times", len(c.questions("waiting")))
				}
				c.waits(t, "waiting")
				said := c.pod(t, "waiting").Status.Conditions[0].Message
				if len(said) > 4<<10 {
					t.Errorf("its condition has %d bytes:\n%.2000s", len(said), said)
				}
				if closest := "Closest: node-0000 wants a GPU that matches"; mode.name == "plugin" && !strings.Contains(said, closest) {
					t.Errorf("its condition is %q, want %q in it", said, closest)
				}
			})
		}
	}
}
