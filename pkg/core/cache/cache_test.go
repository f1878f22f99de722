package cache

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/core/decide"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/placement/placementtest"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func uuid(i int) gpu.UUID { return gpu.UUID(fmt.Sprintf("GPU-%d", i)) }

func inventory(capacities ...gpu.Units) gpu.Inventory {
	inv := gpu.Inventory{UnitMiB: 1024}
	for i, c := range capacities {
		inv.Devices = append(inv.Devices, gpu.Device{UUID: uuid(i), Index: i, Allocatable: c, MemoryMiB: int64(c) * 1024})
	}
	return inv
}

func ask(units ...gpu.Units) placement.Request {
	var containers []placement.Container
	for i, u := range units {
		containers = append(containers, placement.Container{Name: fmt.Sprint("c", i), Kind: placement.App, Units: u})
	}
	return placement.Request{Containers: placement.NewContainers(containers...)}
}

// ref returns a reference to a pod with the UID. The name is the part before "@", so "p" and "p@2" are pods
// of one name.
func ref(uid string) placement.PodRef {
	name, _, _ := strings.Cut(uid, "@")
	return placement.PodRef{Namespace: "ns", Name: name, UID: uid}
}

// bound returns an admitted pod with an assignment to devices.
func bound(uid string, r placement.Request, devices ...int) placement.Holding {
	var a placement.Assignment
	for _, d := range devices {
		a.Shares = append(a.Shares, placement.Share{Device: uuid(d)})
	}
	return placement.Holding{Pod: ref(uid), Request: r, Assignment: a.WithShares(r), Admitted: true}
}

func waiting(h placement.Holding) placement.Holding {
	h.Admitted = false
	return h
}

func assume(c *Cache, uid, node string, r placement.Request) (placement.Assignment, error) {
	return c.AssumePod(ref(uid), node, r, placement.Binpack, start)
}

// enter records a read that found a pod bound to node n.
func enter(c *Cache, h placement.Holding, now time.Time) {
	read := c.BeginRead()
	defer read.End()
	read.AddPod("n", h, now)
}

func mustAssume(t *testing.T, c *Cache, uid, node string, r placement.Request) placement.Assignment {
	t.Helper()
	a, err := assume(c, uid, node, r)
	if err != nil {
		t.Fatalf("AssumePod(%s): %v", uid, err)
	}
	return a
}

// requested returns the allocated units of each GPU, and of unattributed pods at the end.
func requested(c *Cache, node string) []gpu.Units {
	n, ok := c.Node(node)
	if !ok {
		return nil
	}
	var out []gpu.Units
	for _, d := range n.Devices {
		out = append(out, d.Requested)
	}
	var lost gpu.Units
	for _, h := range n.Unattributed {
		lost += h.Request.Units()
	}
	return append(out, lost)
}

func TestTransitions(t *testing.T) {
	two := inventory(10, 10)
	tests := map[string]struct {
		do          func(t *testing.T, c *Cache)
		want        []gpu.Units // allocated on node n: of GPU 0, of GPU 1 and of unattributed pods
		wantPod     string      // queried pod; wantOn and wantAssumed are the results
		wantOn      string
		wantAssumed bool
	}{
		"unknown → assumed": {
			do:   func(t *testing.T, c *Cache) { mustAssume(t, c, "p", "n", ask(3)) },
			want: []gpu.Units{3, 0, 0}, wantPod: "p", wantOn: "n", wantAssumed: true,
		},
		"assumed → bound, by the watch": {
			do: func(t *testing.T, c *Cache) {
				mustAssume(t, c, "p", "n", ask(3))
				c.AddPod("n", bound("p", ask(3), 0))
			},
			want: []gpu.Units{3, 0, 0}, wantPod: "p", wantOn: "n",
		},
		"assumed → bound, by a read": {
			do: func(t *testing.T, c *Cache) {
				mustAssume(t, c, "p", "n", ask(3))
				enter(c, bound("p", ask(3), 0), start)
			},
			want: []gpu.Units{3, 0, 0}, wantPod: "p", wantOn: "n",
		},
		"what a read has shown is read again while the watch does not tell": {
			do: func(t *testing.T, c *Cache) {
				mustAssume(t, c, "p", "n", ask(3))
				enter(c, bound("p", ask(3), 0), start.Add(time.Minute))
				c.RefusePod("p", start)
				c.ExpirePod("p", start.Add(time.Minute))
				if len(c.AssumedBefore(start.Add(time.Minute))) != 0 || len(c.AssumedBefore(start.Add(time.Hour))) != 1 {
					t.Error("want it to be read again a while after the read, and not before")
				}
			},
			want: []gpu.Units{3, 0, 0}, wantPod: "p", wantOn: "n",
		},
		"a later read finds that it is gone": {
			do: func(t *testing.T, c *Cache) {
				mustAssume(t, c, "p", "n", ask(3))
				enter(c, bound("p", ask(3), 0), start)
				c.ExpirePod("p", start.Add(time.Minute))
			},
			want: []gpu.Units{0, 0, 0}, wantPod: "p",
		},
		"what the watch has told is not read again": {
			do: func(t *testing.T, c *Cache) {
				mustAssume(t, c, "p", "n", ask(3))
				enter(c, bound("p", ask(3), 0), start)
				c.AddPod("n", bound("p", ask(3), 0))
				if got := c.AssumedBefore(start.Add(time.Hour)); len(got) != 0 {
					t.Errorf("AssumedBefore: %v", got)
				}
			},
			want: []gpu.Units{3, 0, 0}, wantPod: "p", wantOn: "n",
		},
		"assumed → bound elsewhere than assumed": {
			do: func(t *testing.T, c *Cache) {
				mustAssume(t, c, "p", "n", ask(3))
				c.AddPod("n", bound("p", ask(3), 1))
			},
			want: []gpu.Units{0, 3, 0}, wantPod: "p", wantOn: "n",
		},
		"assumed → bound on another node": {
			do: func(t *testing.T, c *Cache) {
				mustAssume(t, c, "p", "n", ask(3))
				c.AddPod("m", bound("p", ask(3), 0))
			},
			want: []gpu.Units{0, 0, 0}, wantPod: "p", wantOn: "m",
		},
		"assumed → unknown, refused": {
			do: func(t *testing.T, c *Cache) {
				mustAssume(t, c, "p", "n", ask(3))
				c.RefusePod("p", start)
			},
			want: []gpu.Units{0, 0, 0}, wantPod: "p",
		},
		"assumed → unknown, both bindings refused": {
			do: func(t *testing.T, c *Cache) {
				mustAssume(t, c, "p", "n", ask(3))
				mustAssume(t, c, "p", "n", ask(3))
				c.RefusePod("p", start)
				c.RefusePod("p", start)
			},
			want: []gpu.Units{0, 0, 0}, wantPod: "p",
		},
		"assumed stays assumed when only the second binding is refused": {
			do: func(t *testing.T, c *Cache) {
				mustAssume(t, c, "p", "n", ask(3))
				mustAssume(t, c, "p", "n", ask(3))
				c.RefusePod("p", start)
			},
			want: []gpu.Units{3, 0, 0}, wantPod: "p", wantOn: "n", wantAssumed: true,
		},
		"assumed → unknown, gone": {
			do: func(t *testing.T, c *Cache) {
				mustAssume(t, c, "p", "n", ask(3))
				mustAssume(t, c, "p", "n", ask(3))
				c.ForgetPod("p")
			},
			want: []gpu.Units{0, 0, 0}, wantPod: "p",
		},
		"assumed → unknown, for too long": {
			do: func(t *testing.T, c *Cache) {
				mustAssume(t, c, "p", "n", ask(3))
				c.ExpirePod("p", start.Add(time.Second))
			},
			want: []gpu.Units{0, 0, 0}, wantPod: "p",
		},
		"a second binding makes an assumption young again": {
			do: func(t *testing.T, c *Cache) {
				mustAssume(t, c, "p", "n", ask(3))
				if _, err := c.AssumePod(ref("p"), "n", ask(3), "", start.Add(time.Minute)); err != nil {
					t.Errorf("AssumePod: %v", err)
				}
				c.ExpirePod("p", start.Add(time.Minute))
			},
			want: []gpu.Units{3, 0, 0}, wantPod: "p", wantOn: "n", wantAssumed: true,
		},
		"a second binding that is refused leaves an assumption as old as it was": {
			do: func(t *testing.T, c *Cache) {
				mustAssume(t, c, "p", "n", ask(3))
				if _, err := c.AssumePod(ref("p"), "n", ask(3), "", start.Add(time.Minute)); err != nil {
					t.Errorf("AssumePod: %v", err)
				}
				c.RefusePod("p", start.Add(time.Minute))
				c.ExpirePod("p", start.Add(time.Minute))
			},
			want: []gpu.Units{0, 0, 0}, wantPod: "p",
		},
		"assumed → unknown, deleted": {
			do: func(t *testing.T, c *Cache) {
				mustAssume(t, c, "p", "n", ask(3))
				c.RemovePod("p")
			},
			want: []gpu.Units{0, 0, 0}, wantPod: "p",
		},
		"unknown → bound": {
			do:   func(_ *testing.T, c *Cache) { c.AddPod("n", bound("p", ask(3), 1)) },
			want: []gpu.Units{0, 3, 0}, wantPod: "p", wantOn: "n",
		},
		"unknown → bound, to no known GPU": {
			do:   func(_ *testing.T, c *Cache) { c.AddPod("n", bound("p", ask(3))) },
			want: []gpu.Units{0, 0, 3}, wantPod: "p", wantOn: "n",
		},
		"bound → bound, corrected": {
			do: func(_ *testing.T, c *Cache) {
				c.AddPod("n", bound("p", ask(3)))
				c.AddPod("n", bound("p", ask(3), 1))
			},
			want: []gpu.Units{0, 3, 0}, wantPod: "p", wantOn: "n",
		},
		"bound → bound, said twice": {
			do: func(_ *testing.T, c *Cache) {
				c.AddPod("n", bound("p", ask(3), 1))
				c.AddPod("n", bound("p", ask(3), 1))
			},
			want: []gpu.Units{0, 3, 0}, wantPod: "p", wantOn: "n",
		},
		"bound → unknown": {
			do: func(_ *testing.T, c *Cache) {
				c.AddPod("n", bound("p", ask(3), 1))
				c.RemovePod("p")
				c.RemovePod("p")
			},
			want: []gpu.Units{0, 0, 0}, wantPod: "p",
		},
		"bound stays bound when the binding is said to be refused": {
			do: func(t *testing.T, c *Cache) {
				mustAssume(t, c, "p", "n", ask(3))
				c.AddPod("n", bound("p", ask(3), 0))
				c.RefusePod("p", start)
				c.ExpirePod("p", start.Add(time.Hour))
				c.ForgetPod("p")
			},
			want: []gpu.Units{3, 0, 0}, wantPod: "p", wantOn: "n",
		},
		"a read that the watch overtook says nothing: the pod is gone": {
			do: func(t *testing.T, c *Cache) {
				mustAssume(t, c, "p", "n", ask(3))
				read := c.BeginRead()
				c.RemovePod("p")
				if read.AddPod("n", bound("p", ask(3), 0), start) {
					t.Error("Enter says that it is news")
				}
			},
			want: []gpu.Units{0, 0, 0}, wantPod: "p",
		},
		"unknown → assumed, by a read: another extender has bound it": {
			do: func(t *testing.T, c *Cache) {
				read := c.BeginRead()
				defer read.End()
				if !read.AddPod("n", bound("p", ask(3), 1), start) || read.AddPod("n", bound("p", ask(3), 1), start) {
					t.Error("want it to be news once")
				}
				if got := c.AssumedBefore(start.Add(time.Minute)); len(got) != 1 {
					t.Errorf("%v is read again in a while, want the pod", got)
				}
			},
			want: []gpu.Units{0, 3, 0}, wantPod: "p", wantOn: "n",
		},
		"a read counts more than what was decided without it": {
			do: func(t *testing.T, c *Cache) {
				mustAssume(t, c, "p", "n", ask(3))
				enter(c, bound("p", ask(3), 1), start)
			},
			want: []gpu.Units{0, 3, 0}, wantPod: "p", wantOn: "n",
		},
		"what was gone before a read began may have come back since": {
			do: func(_ *testing.T, c *Cache) {
				before := c.BeginRead()
				before.End()
				c.RemovePod("p")
				enter(c, bound("p", ask(3), 0), start)
			},
			want: []gpu.Units{3, 0, 0}, wantPod: "p", wantOn: "n",
		},
		"a read that the watch overtook says nothing: the pod was corrected": {
			do: func(t *testing.T, c *Cache) {
				mustAssume(t, c, "p", "n", ask(3))
				c.AddPod("n", bound("p", ask(3), 1))
				enter(c, bound("p", ask(3), 0), start)
			},
			want: []gpu.Units{0, 3, 0}, wantPod: "p", wantOn: "n",
		},
		"a pod made again under its name is another": {
			do: func(t *testing.T, c *Cache) {
				c.AddPod("n", bound("p@1", ask(3), 0))
				mustAssume(t, c, "p@2", "n", ask(4))
				c.RemovePod("p@1")
			},
			want: []gpu.Units{4, 0, 0}, wantPod: "p@2", wantOn: "n", wantAssumed: true,
		},
		"an answer given again": {
			do: func(t *testing.T, c *Cache) {
				first := mustAssume(t, c, "p", "n", ask(3))
				if diff := cmp.Diff(first, mustAssume(t, c, "p", "n", ask(3))); diff != "" {
					t.Errorf("assumed again (-want +got):\n%s", diff)
				}
				c.AddPod("n", bound("p", ask(3), 0))
				if diff := cmp.Diff(first, mustAssume(t, c, "p", "n", ask(3))); diff != "" {
					t.Errorf("assumed when bound (-want +got):\n%s", diff)
				}
			},
			want: []gpu.Units{3, 0, 0}, wantPod: "p", wantOn: "n",
		},
		"a bound pod without a known GPU is not assumed, nor forgotten": {
			do: func(t *testing.T, c *Cache) {
				c.AddPod("n", bound("p", ask(3)))
				_, err := assume(c, "p", "n", ask(3))
				if refusal := (*decide.Refusal)(nil); !errors.As(err, &refusal) || reasons.Refusal(refusal) != "the pod is bound to node n" {
					t.Errorf("AssumePod: %v, want that the pod is bound", err)
				}
				c.ForgetPod("p")
			},
			want: []gpu.Units{0, 0, 3}, wantPod: "p", wantOn: "n",
		},
		"a pod before its node": {
			do: func(t *testing.T, c *Cache) {
				c.AddPod("new", bound("p", ask(3), 1))
				if _, ok := c.Node("new"); ok {
					t.Error("a ghost can be read")
				}
				c.SetNode("new", inventory(10, 10))
			},
			want: []gpu.Units{0, 0, 0}, wantPod: "p", wantOn: "new",
		},
		"a node that comes back finds its pods": {
			do: func(t *testing.T, c *Cache) {
				c.AddPod("n", bound("p", ask(3), 1))
				mustAssume(t, c, "q", "n", ask(3))
				c.RemoveNode("n")
				c.RemovePod("q")
				c.SetNode("n", two)
			},
			want: []gpu.Units{0, 3, 0}, wantPod: "p", wantOn: "n",
		},
		"a GPU that is replaced leaves its pods without one": {
			do: func(_ *testing.T, c *Cache) {
				c.AddPod("n", bound("p", ask(3), 1))
				c.SetNode("n", inventory(10))
			},
			want: []gpu.Units{0, 3}, wantPod: "p", wantOn: "n",
		},
		"a GPU that shrinks keeps its pods": {
			do: func(_ *testing.T, c *Cache) {
				c.AddPod("n", bound("p", ask(8), 1))
				c.SetNode("n", inventory(10, 4))
			},
			want: []gpu.Units{0, 8, 0}, wantPod: "p", wantOn: "n",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := New()
			c.SetNode("n", two)
			c.SetNode("m", two)
			tc.do(t, c)
			if diff := cmp.Diff(tc.want, requested(c, "n")); diff != "" {
				t.Errorf("held on the node (-want +got):\n%s", diff)
			}
			on, assumed, ok := c.PodNode(tc.wantPod)
			if on != tc.wantOn || assumed != tc.wantAssumed || ok != (tc.wantOn != "") {
				t.Errorf("Where(%s) = %q, %t, %t, want %q, %t", tc.wantPod, on, assumed, ok, tc.wantOn, tc.wantAssumed)
			}
		})
	}
}

// No pod of lower priority gets memory that is reserved for a nominated pod.
func TestRoomIsKeptForANominatedPod(t *testing.T) {
	for name, tc := range map[string]struct {
		do       func(c *Cache)
		priority int32 // of a new pod
		want     bool  // the new pod fits
	}{
		"nobody is nominated":  {do: func(*Cache) {}, want: true},
		"nominated":            {do: func(c *Cache) { nominate(c, "n") }},
		"nominated elsewhere":  {do: func(c *Cache) { nominate(c, "m") }, want: true},
		"nominated once more":  {do: func(c *Cache) { nominate(c, "n", "m") }, want: true},
		"no longer nominated":  {do: func(c *Cache) { nominate(c, "n", "") }, want: true},
		"nominated, then gone": {do: func(c *Cache) { nominate(c, "n"); c.RemovePod("vip") }, want: true},
		"nominated, then bound elsewhere": {do: func(c *Cache) {
			nominate(c, "n")
			c.AddPod("m", bound("vip", important(ask(8)), 0))
		}, want: true},
		"bound before the nomination is heard of": {do: func(c *Cache) {
			c.AddPod("m", bound("vip", important(ask(8)), 0))
			nominate(c, "n")
		}, want: true},
		"nominated, then assumed elsewhere": {do: func(c *Cache) {
			nominate(c, "n")
			_, _ = assume(c, "vip", "m", important(ask(8)))
		}, want: true},
		"nominated, then refused elsewhere": {do: func(c *Cache) {
			nominate(c, "n")
			_, _ = assume(c, "vip", "m", important(ask(8)))
			c.RefusePod("vip", start)
		}},
		"nominated for a time": {do: func(c *Cache) { nominateUntil(c, start.Add(time.Second)); c.Expire(start) }},
		"nominated for a time that is over": {do: func(c *Cache) {
			nominateUntil(c, start.Add(time.Second))
			c.Expire(start.Add(time.Second))
		}, want: true},
		"nominated for a time, and then for longer": {do: func(c *Cache) {
			nominateUntil(c, start.Add(time.Second))
			nominateUntil(c, start.Add(time.Minute))
			c.Expire(start.Add(time.Second))
		}},
		"the node is heard of after the nomination": {do: func(c *Cache) {
			c.RemoveNode("n")
			nominate(c, "n")
			c.SetNode("n", inventory(10))
		}},
		"a pod of higher priority comes": {do: func(c *Cache) { nominate(c, "n") }, priority: 101, want: true},
		"a pod of its priority comes":    {do: func(c *Cache) { nominate(c, "n") }, priority: 100},
	} {
		t.Run(name, func(t *testing.T) {
			c := New()
			c.SetNode("n", inventory(10))
			c.SetNode("m", inventory(10))
			tc.do(c)
			r := ask(4)
			r.Priority = tc.priority
			_, err := assume(c, "p", "n", r)
			if refusal := (*decide.Refusal)(nil); (err == nil) != tc.want || err != nil && (!errors.As(err, &refusal) || refusal.Verdict == nil) {
				t.Errorf("AssumePod: %v, want success: %t", err, tc.want)
			}
		})
	}
}

func important(r placement.Request) placement.Request {
	r.Priority = 100
	return r
}

func nominate(c *Cache, nodes ...string) {
	for _, n := range nodes {
		c.NominatePod(n, ref("vip"), important(ask(8)), placement.Assignment{}, time.Time{})
	}
}

func nominateUntil(c *Cache, until time.Time) {
	c.NominatePod("n", ref("vip"), important(ask(8)), placement.Assignment{}, until)
}

// The nominated pod itself can use its reserved memory, and is then charged once.
func TestANominatedPodIsAssumed(t *testing.T) {
	c := New()
	c.SetNode("n", inventory(10))
	nominate(c, "n")
	mustAssume(t, c, "vip", "n", important(ask(8)))
	if n, _ := c.Node("n"); len(n.Nominated) != 0 || n.Devices[0].Requested != 8 {
		t.Errorf("%d nominated and %d units held, want none and 8", len(n.Nominated), n.Devices[0].Requested)
	}
	mustAssume(t, c, "p", "n", ask(2))
	c.RefusePod("vip", start)
	if _, err := assume(c, "q", "n", ask(1)); err == nil {
		t.Error("the room of a nominated pod whose binding was refused was given away")
	}
}

// Decisions beside a nominated pod are not stored: because of its reservation, they differ between pods with
// equal requests.
func TestAnswersBesideANominatedPodAreNotKept(t *testing.T) {
	c := New()
	c.SetNode("n", inventory(10))
	nominate(c, "n")
	for range 2 {
		for _, uid := range []string{"p", "vip"} {
			refusal := c.Refusal("n", NewQuestion(ref(uid), important(ask(8)), placement.Binpack))
			if fits := refusal == nil; fits != (uid == "vip") {
				t.Errorf("%s fits: %t (%v)", uid, fits, refusal)
			}
		}
	}
}

// A decision about an old state of a node may be stored after the node has changed. It must not be
// used for the new state.
func TestAnAnswerAboutWhatWasIsNoAnswer(t *testing.T) {
	c := New()
	c.SetNode("n", inventory(10))
	q := NewQuestion(ref("p"), ask(8), placement.Binpack)
	was := c.GetNode("n")
	c.AddPod("n", bound("other", ask(8), 0))
	if refusal := c.readMap()["n"].cachedRefusal(was, q); refusal != nil {
		t.Fatalf("refused: %v, want that it fitted", refusal)
	}
	if c.Refusal("n", q) == nil {
		t.Error("the pod fits a GPU that is full by now")
	}
}

// For a pod without GPU memory only the CPU matters, and a resize can change the CPU.
func TestCPUOfAPodThatIsResized(t *testing.T) {
	c := New()
	c.SetNode("n", inventory(10))
	for _, cpu := range []int64{500, 500, 2000, 100} {
		c.AddPod("n", placement.Holding{Pod: ref("p"), Request: placement.Request{CPU: cpu}, Admitted: true})
		if n, _ := c.Node("n"); n.RequestedCPU != cpu {
			t.Errorf("%d millicores are requested, want %d", n.RequestedCPU, cpu)
		}
	}
}

func TestGhosts(t *testing.T) {
	c := New()
	c.RemoveNode("never heard of")
	c.AddPod("n", bound("p", ask(3), 0))
	c.SetNode("n", inventory(10))
	c.RemoveNode("n")
	if _, ok := c.Node("n"); ok || len(c.Nodes()) != 0 {
		t.Error("a deleted node can be read")
	}
	_, err := assume(c, "q", "n", ask(1))
	if refusal := (*decide.Refusal)(nil); !errors.As(err, &refusal) || !refusal.Unresolvable {
		t.Errorf("AssumePod on a deleted node: %v, want that it can never fit", err)
	}
	c.RemovePod("p")
	if _, ok := c.readMap()["n"]; ok {
		t.Error("a ghost is kept when its last pod is gone")
	}
}

func TestAssumePodErrors(t *testing.T) {
	tests := map[string]struct {
		before placement.Holding // on node n
		req    placement.Request
		node   string
		want   string // reason
		text   string
	}{
		"no such node": {
			req: ask(1), node: "x", want: "NoDevices",
			text: "the node offers no GPU memory: its device plugin has found no GPU, or has not reported yet",
		},
		"it does not fit": {
			req: ask(21), node: "n", want: "TooLarge",
			text: "needs 21 GiB on one GPU; the largest that qualifies here has 20 GiB: ask for less, or for more GPUs",
		},
		"assumed elsewhere": {
			req: ask(1), node: "m", want: decide.Elsewhere,
			text: "the outcome of binding the pod to node n is not known yet",
		},
		"one that waits could be taken for it": {
			before: waiting(bound("q", ask(3, 1), 1)), req: ask(3), node: "n", want: decide.Confusable,
			text: "waits until the kubelet has admitted pod ns/q, because the kubelet could confuse the two",
		},
		"one that waits on no known GPU could be taken for it": {
			before: waiting(bound("q", ask(3, 1))), req: ask(3), node: "n", want: decide.Confusable,
			text: "waits until the kubelet has admitted pod ns/q, because the kubelet could confuse the two",
		},
		"one that waits on the same GPU does no harm": {
			before: waiting(bound("q", ask(3, 1), 0)), req: ask(3), node: "n",
		},
		"one that waits and is interchangeable does no harm": {
			before: waiting(bound("q", ask(3), 1)), req: ask(3), node: "n",
		},
		"one that waits for another amount is not confused with it": {
			before: waiting(bound("q", ask(4), 1)), req: ask(3), node: "n",
		},
		"one that is settled is not confused with it": {
			before: bound("q", ask(3, 1), 1), req: ask(3), node: "n",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := New()
			c.SetNode("n", inventory(20, 20))
			c.SetNode("m", inventory(20, 20))
			if tc.before.Pod.UID != "" {
				c.AddPod("n", tc.before)
				c.AddPod("n", bound("fills", ask(8), 0)) // so that binpack picks GPU 0
			}
			if tc.node == "m" {
				mustAssume(t, c, "p", "n", tc.req)
			}
			before := c.Nodes()
			_, err := assume(c, "p", tc.node, tc.req)
			refusal := (*decide.Refusal)(nil)
			if errors.As(err, &refusal) != (tc.want != "") || tc.want != "" && refusal.Reason != tc.want {
				t.Fatalf("AssumePod: %v, want reason %q", err, tc.want)
			}
			if err == nil {
				return
			}
			if diff := cmp.Diff(tc.text, reasons.Error(err)); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, c.Nodes()); diff != "" {
				t.Errorf("the refusal changed the cache (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("bound elsewhere", func(t *testing.T) {
		c := New()
		c.SetNode("m", inventory(10))
		c.AddPod("n", bound("p", ask(3), 0))
		if _, err := assume(c, "p", "m", ask(3)); err == nil || reasons.Error(err) != "the pod is bound to node n" {
			t.Errorf("AssumePod: %v, want that the pod is bound to node n", err)
		}
	})
}

func TestAWaitEndsWhenTheOtherIsSettled(t *testing.T) {
	c := New()
	c.SetNode("n", inventory(3, 3))
	mustAssume(t, c, "long", "n", ask(2, 1))
	_, err := assume(c, "short", "n", ask(2))
	if refusal := (*decide.Refusal)(nil); !errors.As(err, &refusal) || refusal.Reason != decide.Confusable || !strings.Contains(reasons.Refusal(refusal), "pod ns/long,") {
		t.Fatalf("AssumePod: %v, want that it waits for long", err)
	}
	c.AddPod("n", waiting(bound("long", ask(2, 1), 0)))
	if _, err = assume(c, "short", "n", ask(2)); err == nil {
		t.Fatal("a pod that is bound and not admitted is not waited for")
	}
	c.AddPod("n", bound("long", ask(2, 1), 0))
	mustAssume(t, c, "short", "n", ask(2))
}

// Two processes can reserve the same memory if one of them has lost the lead.
func TestABindingIsNotRepeatedWhenItHasBeenOvertaken(t *testing.T) {
	overtaken := func(t *testing.T, c *Cache) {
		t.Helper()
		_, err := assume(c, "p", "n", ask(6))
		if refusal := (*decide.Refusal)(nil); !errors.As(err, &refusal) || reasons.Refusal(refusal) != "the outcome of binding the pod to node n is not known yet" {
			t.Errorf("AssumePod: %v, want that the outcome of the first binding is not known", err)
		}
	}
	for name, happens := range map[string]func(c *Cache){
		"another pod is on its GPU": func(c *Cache) { c.AddPod("n", bound("other", ask(6), 0)) },
		"its GPU is gone":           func(c *Cache) { c.SetNode("n", inventory()) },
		"its GPU has shrunk":        func(c *Cache) { c.SetNode("n", inventory(4, 10)) },
		"its node is gone":          func(c *Cache) { c.RemoveNode("n") },
	} {
		t.Run(name, func(t *testing.T) {
			c := New()
			c.SetNode("n", inventory(10, 10))
			first := mustAssume(t, c, "p", "n", ask(6))
			if again := mustAssume(t, c, "p", "n", ask(6)); !again.Same(first) {
				t.Fatalf("AssumePod = %v, want %v again", again, first)
			}
			happens(c)
			overtaken(t, c)
			if _, assumed, ok := c.PodNode("p"); !ok || !assumed {
				t.Error("it is no longer assumed: its first binding may have landed")
			}
			c.ExpirePod("p", start.Add(time.Minute))
			if _, _, ok := c.PodNode("p"); ok {
				t.Error("what was refused made its assumption younger")
			}
		})
	}
}

func TestAssumedBefore(t *testing.T) {
	c := New()
	c.SetNode("n", inventory(100))
	for i, uid := range []string{"d", "b", "c", "a"} {
		if _, err := c.AssumePod(ref(uid), "n", ask(1), "", start.Add(time.Duration(i/2)*time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	c.AddPod("n", bound("b", ask(1), 0))
	var got []string
	for _, a := range c.AssumedBefore(start.Add(time.Second)) {
		got = append(got, a.Pod.UID)
	}
	if diff := cmp.Diff([]string{"d"}, got); diff != "" {
		t.Errorf("assumed before the first second (-want +got):\n%s", diff)
	}
	want := []Assumed{{ref("d"), "n", start}, {ref("a"), "n", start.Add(time.Second)}, {ref("c"), "n", start.Add(time.Second)}}
	if diff := cmp.Diff(want, c.AssumedBefore(start.Add(time.Hour))); diff != "" {
		t.Errorf("assumed before an hour (-want +got):\n%s", diff)
	}
}

func TestWhatIsReadDoesNotChange(t *testing.T) {
	c := New()
	inv := inventory(10, 10)
	c.SetNode("n", inv)
	before, _ := c.Node("n")
	copied := before
	copied.Devices = slices.Clone(before.Devices)
	mustAssume(t, c, "p", "n", ask(3))
	c.RemoveNode("n")
	if diff := cmp.Diff(copied, before); diff != "" {
		t.Errorf("a node that was read changed (-want +got):\n%s", diff)
	}
	c.SetNode("n", inv)
	inv.Devices[0].Allocatable = 0
	c.AddPod("n", bound("q", ask(3), 1))
	if n, _ := c.Node("n"); n.Devices[0].Allocatable != 10 {
		t.Error("the cache looks at the caller's inventory")
	}
}

// With 500 concurrent pods and memory for 400, no memory is allocated twice and none stays free.
func TestConcurrentAssumePod(t *testing.T) {
	c := New()
	for i := range 5 {
		c.SetNode(fmt.Sprint("n", i), inventory(10, 10, 10, 10, 10, 10, 10, 10))
	}
	stop := make(chan struct{})
	var readers, binders sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				for _, n := range c.Nodes() {
					for _, d := range n.Devices {
						if d.Requested > d.Allocatable {
							t.Errorf("GPU %d of %s holds %d of %d", d.Index, n.Name, d.Requested, d.Allocatable)
							return
						}
					}
				}
				c.AssumedBefore(start.Add(time.Hour))
			}
		})
	}
	var mu sync.Mutex
	placed := 0
	for i := range 500 {
		binders.Go(func() {
			uid := fmt.Sprint("p", i)
			for k := range 5 {
				a, err := assume(c, uid, fmt.Sprint("n", (i+k)%5), ask(1))
				if err != nil {
					continue
				}
				if i%10 == 0 { // every tenth binding is refused once and retried
					c.RefusePod(uid, start)
					if a, err = assume(c, uid, fmt.Sprint("n", (i+k)%5), ask(1)); err != nil {
						continue
					}
				}
				h := bound(uid, ask(1))
				h.Assignment = a
				c.AddPod(fmt.Sprint("n", (i+k)%5), h)
				mu.Lock()
				placed++
				mu.Unlock()
				return
			}
		})
	}
	binders.Wait()
	close(stop)
	readers.Wait()
	var held gpu.Units
	for _, n := range c.Nodes() {
		held += placementtest.Requested(n)
	}
	if placed < 390 || placed > 400 || held != gpu.Units(placed) {
		t.Errorf("%d pods were placed and %d units are held, of room for 400", placed, held)
	}
}

// For the race detector: readers take no lock.
func TestAllMayBeCalledAtOnce(*testing.T) {
	c, real := New(), New()
	real.SetNode("n", inventory(10))
	var all sync.WaitGroup
	for _, call := range []func(){
		func() { c.SetNode("n", inventory(10, 10)) },
		func() { c.RemoveNode("n") },
		func() { c.SetNode("m", inventory(10)) },
		func() {
			c.SetNode("short-lived", inventory(10))
			c.RemoveNode("short-lived")
		},
		func() { c.AddPod("n", bound("p", ask(1), 0)) },
		func() { c.NominatePod("m", ref("q"), ask(1), placement.Assignment{}, time.Time{}) },
		func() { c.RemovePod("p") },
		func() { _, _ = assume(c, "q", "m", ask(1)) },
		func() { c.RefusePod("q", start) },
		func() { c.ForgetPod("q") },
		func() { c.ExpirePod("q", start.Add(time.Hour)) },
		func() { c.AssumedBefore(start.Add(time.Hour)) },
		func() { c.HoldPod("q", true) },
		func() { enter(c, bound("r", ask(1), 0), start) },
		func() { c.RemovePod("r") },
		func() { c.Expect(ref("s"), "m", ask(1), placement.Binpack, start) },
		func() { c.Unexpect("s") },
		func() { c.PodNode("p") },
		func() { c.IsConfirmed("p") },
		func() { c.Changed() },
		func() { c.Changes() },
		func() { c.ChangedSince(0) },
		func() { c.Has(c.Set(slices.Values([]string{"m", "n"})), "n") },
		func() { _ = c.Refusal("m", NewQuestion(ref("p"), ask(1), placement.Binpack)) },
		func() { _ = c.Refusal("m", NewQuestion(ref("p"), ask(2), placement.Binpack)) },
		func() { c.Nodes() },
		func() { c.Learn(ask(1)) },
		func() { c.Reprice() },
		func() {
			for _, d := range c.Differences(real) {
				heal(c, d, real)
			}
		},
	} {
		for range 2 {
			all.Go(func() {
				for range 100 {
					call()
				}
			})
		}
	}
	all.Wait()
}

// The same name is added and removed 1,000 times from eight goroutines, and no record remains.
func TestRecreatedUnderTheSameName(t *testing.T) {
	c := New()
	c.SetNode("n", inventory(10, 10))
	var workers sync.WaitGroup
	for w := range 8 {
		workers.Go(func() {
			for i := range 125 {
				uid := fmt.Sprintf("p@%d-%d", w, i)
				a, err := assume(c, uid, "n", ask(2))
				if err == nil && i%2 == 0 {
					h := bound(uid, ask(2))
					h.Assignment = a
					c.AddPod("n", h)
				}
				c.RemovePod(uid)
			}
		})
	}
	workers.Wait()
	if diff := cmp.Diff([]gpu.Units{0, 0, 0}, requested(c, "n")); diff != "" {
		t.Errorf("held at the end (-want +got):\n%s", diff)
	}
}

// twin is a simple model of the cache: a list of the API server's pods and a list of the assumed ones.
type twin struct {
	nodes     map[string]gpu.Inventory
	objects   []object
	assumed   []object
	nominated []object
	expected  []object
}

type object struct {
	node string
	placement.Holding
	bindings int  // of an assumed pod: bindings that may still succeed
	read     bool // of an assumed pod

	until time.Time // of a nominated or expected pod
}

func (w *twin) drop(from *[]object, uid string) {
	*from = slices.DeleteFunc(*from, func(o object) bool { return o.Pod.UID == uid })
}

// remove drops a pod from all lists.
func (w *twin) remove(uid string) {
	for _, from := range []*[]object{&w.objects, &w.assumed, &w.nominated, &w.expected} {
		w.drop(from, uid)
	}
}

// nominate nominates an unbound pod to a node; an empty name removes the nomination.
func (w *twin) nominate(node string, h placement.Holding, until time.Time) {
	w.drop(&w.nominated, h.Pod.UID)
	if node != "" && !w.has(w.objects, h.Pod.UID) {
		w.nominated = append(w.nominated, object{node: node, Holding: h, until: until})
	}
}

// isOwn reports whether a pod's nomination exists only in the cache.
func (w *twin) isOwn(uid string) bool {
	return slices.ContainsFunc(w.nominated, func(o object) bool { return o.Pod.UID == uid && !o.Waits.IsZero() })
}

// likely returns the node with the expected pods on their GPUs.
func (w *twin) likely(name string) (placement.Node, bool) {
	n, ok := w.view(name)
	return n.WithExpected(placement.PodRef{}), ok
}

// decide picks GPUs for a pod that is not on the node, if possible beside the expected pods.
func (w *twin) decide(name, uid string, req placement.Request) (placement.Assignment, bool) {
	for _, view := range []func(string) (placement.Node, bool){w.likely, w.view} {
		n, ok := view(name)
		if !ok {
			return placement.Assignment{}, false
		}
		if len(n.Nominated) > 0 {
			n, _ = w.view(name)
		}
		if a, refusal := decide.Decide(n, ref(uid), req, placement.Binpack); refusal == nil {
			return a, true
		}
	}
	return placement.Assignment{}, false
}

func (w *twin) has(of []object, uid string) bool {
	return slices.ContainsFunc(of, func(o object) bool { return o.Pod.UID == uid })
}

func (w *twin) view(name string) (placement.Node, bool) {
	inv, ok := w.nodes[name]
	if !ok {
		return placement.Node{}, false
	}
	var holdings []placement.Holding
	for _, o := range slices.Concat(w.objects, w.assumed) {
		if o.node == name {
			holdings = append(holdings, o.Holding)
		}
	}
	var nominated, expected []placement.Holding
	for _, o := range w.nominated {
		if o.node == name && !w.has(w.assumed, o.Pod.UID) {
			nominated = append(nominated, o.Holding)
		}
	}
	for _, o := range w.expected {
		here := func(p object) bool { return p.node == name && p.Pod.UID == o.Pod.UID }
		if o.node == name && !slices.ContainsFunc(w.nominated, here) {
			expected = append(expected, o.Holding)
		}
	}
	slices.SortFunc(expected, func(a, b placement.Holding) int { return a.Pod.Compare(b.Pod) })
	n := placement.NewNode(name, inv, holdings).WithNominated(nominated)
	n.Expected = expected
	return n, true
}

// FuzzCache checks after each step that the state equals the one computed from scratch from all objects and
// assumptions, and that an assumption never exceeds the free memory.
func FuzzCache(f *testing.F) {
	for seed := range uint64(60) {
		f.Add(seed, uint8(80))
	}
	f.Fuzz(func(t *testing.T, seed uint64, steps uint8) {
		random := rand.New(rand.NewPCG(seed, 7))
		c, w := New(), &twin{nodes: make(map[string]gpu.Inventory)}
		for range steps {
			step(t, random, c, w)
			compare(t, c, w)
			if t.Failed() {
				t.FailNow()
			}
		}
	})
}

func step(t *testing.T, random *rand.Rand, c *Cache, w *twin) {
	node := fmt.Sprint("n", random.IntN(3))
	uid := fmt.Sprintf("p%d@%d", random.IntN(6), random.IntN(2))
	req := ask(gpu.Units(1 + random.IntN(4)))
	if random.IntN(3) == 0 {
		req.Containers = placement.NewContainers(append(req.Containers.All(), placement.Container{Name: "second", Kind: placement.App, Units: 1})...)
	}
	if random.IntN(5) == 0 {
		req.Policy = placement.Exclusive
	}
	holding := bound(uid, req)
	if random.IntN(4) > 0 {
		holding = bound(uid, req, random.IntN(3))
	}
	holding.Admitted = random.IntN(2) == 0
	req.Priority = int32(random.IntN(3))
	now := start.Add(time.Duration(random.IntN(3)) * ExpectationTTL / 2)
	switch random.IntN(16) {
	case 15:
		if random.IntN(3) == 0 {
			node = ""
		}
		since := start.Add(time.Duration(random.IntN(3)) * ExpectationTTL / 2)
		c.QueuePod(node, ref(uid), req, since, since.Add(ExpectationTTL))
		if i := slices.IndexFunc(w.nominated, func(o object) bool { return o.Pod.UID == uid }); i >= 0 && (w.nominated[i].Waits.IsZero() || w.nominated[i].node == node && w.nominated[i].Waits.Equal(since)) {
			break
		}
		w.nominate(node, placement.Holding{Pod: ref(uid), Request: req, Waits: since}, since.Add(ExpectationTTL))
	case 12, 13:
		c.Expect(ref(uid), node, req, placement.Binpack, now)
		w.drop(&w.expected, uid)
		if _, ok := w.nodes[node]; !ok || w.has(w.objects, uid) || w.has(w.assumed, uid) {
			break
		}
		if a, ok := w.decide(node, uid, req); ok {
			h := placement.Holding{Pod: ref(uid), Request: req, Assignment: a}
			w.expected = append(w.expected, object{node: node, Holding: h, until: now.Add(ExpectationTTL)})
		}
	case 14:
		c.Expire(now)
		over := func(o object) bool { return !o.until.IsZero() && !o.until.After(now) }
		w.nominated = slices.DeleteFunc(w.nominated, over)
		w.expected = slices.DeleteFunc(w.expected, over)
		others := c.Unexpect(uid)
		w.drop(&w.expected, uid)
		if others != (len(w.expected) > 0) {
			t.Errorf("Unexpect reports other expected pods: %t; expected are %v", others, w.expected)
		}
	case 0:
		inv := inventory(gpu.Units(random.IntN(9)), gpu.Units(random.IntN(9)))
		c.SetNode(node, inv)
		w.nodes[node] = inv
	case 1:
		if random.IntN(2) == 0 {
			c.RemoveNode(node)
			delete(w.nodes, node)
		}
	case 2:
		c.AddPod(node, holding)
		w.remove(uid)
		w.objects = append(w.objects, object{node: node, Holding: holding})
	case 3:
		read := c.BeginRead()
		defer read.End()
		if random.IntN(3) == 0 { // the watch is ahead of the read
			c.RemovePod(uid)
			w.remove(uid)
			read.AddPod(node, holding, start.Add(time.Minute))
			break
		}
		read.AddPod(node, holding, start.Add(time.Minute))
		if !slices.ContainsFunc(w.objects, func(o object) bool { return o.Pod.UID == uid }) {
			w.drop(&w.assumed, uid)
			w.drop(&w.expected, uid)
			w.assumed = append(w.assumed, object{node: node, Holding: holding, read: true})
		}
	case 4:
		c.RemovePod(uid)
		w.remove(uid)
	case 5:
		c.ForgetPod(uid)
		w.drop(&w.assumed, uid)
	case 6:
		c.RefusePod(uid, start)
		if i := slices.IndexFunc(w.assumed, func(o object) bool { return o.Pod.UID == uid }); i >= 0 {
			o := &w.assumed[i]
			o.bindings = max(0, o.bindings-1)
			if o.bindings == 0 && !o.read {
				w.drop(&w.assumed, uid)
			}
		}
	case 7, 8:
		if random.IntN(3) == 0 {
			node = ""
		}
		at := bound(uid, req).Assignment
		if random.IntN(2) == 0 {
			at = bound(uid, req, random.IntN(3)).Assignment
		}
		until := time.Time{}
		if random.IntN(2) == 0 {
			until = now.Add(ExpectationTTL)
		}
		c.NominatePod(node, ref(uid), req, at, until)
		if node != "" || !w.isOwn(uid) {
			w.nominate(node, placement.Holding{Pod: ref(uid), Request: req, Assignment: at}, until)
		}
	default:
		before, offered := w.view(node)
		a, err := assume(c, uid, node, req)
		if offered && !w.has(w.objects, uid) && !w.has(w.assumed, uid) {
			w.drop(&w.expected, uid)
			if want, fits := w.decide(node, uid, req); fits != (err == nil) || fits && !cmp.Equal(want, a) {
				t.Errorf("AssumePod(%s) on %s: %v, %v; want %v, %t", uid, node, a, err, want, fits)
			}
		}
		if i := slices.IndexFunc(w.assumed, func(o object) bool { return o.Pod.UID == uid }); i >= 0 && err == nil {
			w.assumed[i].bindings++
			break
		}
		known := slices.ContainsFunc(w.objects, func(o object) bool { return o.Pod.UID == uid })
		if err != nil || known {
			break
		}
		w.assumed = append(w.assumed, object{node: node, Holding: placement.Holding{Pod: ref(uid), Request: req, Assignment: a}, bindings: 1})
		after, _ := w.view(node)
		for i, d := range after.Devices {
			if d.Requested > before.Devices[i].Requested && d.Requested > d.Allocatable {
				t.Errorf("GPU %d of %s was given to %s and holds %d of %d", d.Index, node, uid, d.Requested, d.Allocatable)
			}
		}
	}
}

// compareAnswers compares the cache's decisions with the model's. It asks more kinds of questions than the cache
// stores decisions, so that the decisions displace each other.
func compareAnswers(t *testing.T, c *Cache, w *twin) {
	t.Helper()
	for i := range len(decisions{}.latest) + 2 {
		req := ask(gpu.Units(1+i), gpu.Units(i%2))
		if i%3 == 0 {
			req.Policy = placement.Exclusive
		}
		q := NewQuestion(ref("stranger"), req, placement.Binpack)
		for _, name := range []string{"n0", "n1", "n2"} {
			n, ok := w.view(name)
			if !ok {
				n.Name = name
			}
			want, got := "", ""
			if _, refusal := decide.Decide(n, q.Pod, req, placement.Binpack); refusal != nil {
				want = reasons.Refusal(refusal)
			}
			if refusal := c.Refusal(name, q); refusal != nil {
				got = reasons.Refusal(refusal)
			}
			if got != want {
				t.Errorf("Refused(%s) for %d units: %q, want %q", name, 1+i, got, want)
			}
			if !ok {
				continue
			}
			expecting := q
			expecting.Expecting = true
			likely, _ := w.likely(name)
			_, refusal := decide.Decide(likely, q.Pod, req, placement.Binpack)
			if got := c.Refusal(name, expecting); (got == nil) != (refusal == nil) || got != nil && reasons.Refusal(got) != reasons.Refusal(refusal) {
				t.Errorf("Refused(%s) for %d units, expecting others: %v, want %v", name, 1+i, got, refusal)
			}
		}
	}
}

func compare(t *testing.T, c *Cache, w *twin) {
	t.Helper()
	want := []placement.Node{}
	for _, name := range []string{"n0", "n1", "n2"} {
		if n, ok := w.view(name); ok {
			want = append(want, n)
			if got, ok := c.Node(name); !ok || !reflect.DeepEqual(n, got) {
				t.Errorf("Node(%s) and its twin differ (-want +got):\n%s", name, cmp.Diff(n, got))
			}
		}
	}
	compareAnswers(t, c, w)
	if got := c.Nodes(); !reflect.DeepEqual(want, got) {
		t.Errorf("the cache and its twin differ (-want +got):\n%s", cmp.Diff(want, got))
	}
	var wantAssumed, got []string
	for _, o := range w.assumed {
		wantAssumed = append(wantAssumed, o.Pod.UID+" on "+o.node)
	}
	for _, a := range c.AssumedBefore(start.Add(time.Hour)) {
		got = append(got, a.Pod.UID+" on "+a.Node)
	}
	slices.Sort(wantAssumed)
	slices.Sort(got)
	if !slices.Equal(wantAssumed, got) {
		t.Errorf("assumed: %v, want %v", got, wantAssumed)
	}
	for _, o := range slices.Concat(w.objects, w.assumed) {
		if on, _, ok := c.PodNode(o.Pod.UID); !ok || on != o.node {
			t.Errorf("Where(%s) = %q, %t, want %q", o.Pod.UID, on, ok, o.node)
		}
	}
}

func TestChanges(t *testing.T) {
	c := New()
	cpu := func(uid string, millicores int64) {
		c.AddPod("a", placement.Holding{Pod: ref(uid), Request: placement.Request{CPU: millicores}, Admitted: true})
	}
	for _, step := range []struct {
		name    string
		do      func()
		changed []string // nodes
		nodes   int      // number of nodes afterwards
	}{
		{"a node comes", func() { c.SetNode("a", inventory(10)) }, []string{"a"}, 1},
		{"another comes", func() { c.SetNode("b", inventory(10)) }, []string{"b"}, 2},
		{"it is told of again", func() { c.SetNode("b", inventory(10)) }, []string{"b"}, 2},
		{"a pod comes", func() { c.AddPod("a", bound("p", ask(3), 0)) }, []string{"a"}, 2},
		{"one without GPU memory comes", func() { cpu("q", 500) }, []string{"a"}, 2},
		{"it is told of again", func() { cpu("q", 500) }, nil, 2},
		{"it is resized", func() { cpu("q", 600) }, []string{"a"}, 2},
		{"nothing is known of a pod that goes", func() { c.RemovePod("other") }, nil, 2},
		{"one that has GPU memory is told of without", func() { cpu("p", 0) }, []string{"a"}, 2},
		{"a node goes that has pods", func() { c.RemoveNode("a") }, nil, 1},
		{"it goes again", func() { c.RemoveNode("a") }, nil, 1},
		{"it comes back", func() { c.SetNode("a", inventory(10)) }, []string{"a"}, 2},
		{"an empty one goes", func() { c.RemoveNode("b") }, nil, 1},
		{"nothing is expected on a node that is gone", func() { c.Expect(ref("e"), "b", ask(1), placement.Binpack, start) }, nil, 1},
		{"nor a pod that is somewhere", func() { c.Expect(ref("p"), "a", ask(1), placement.Binpack, start) }, nil, 1},
	} {
		before, _ := c.Changes()
		step.do()
		changed, now := c.ChangedSince(before)
		// GetNode returns nil for a removed node.
		changed = slices.DeleteFunc(slices.Sorted(slices.Values(changed)), func(name string) bool { return c.GetNode(name) == nil })
		if after, nodes := c.Changes(); after != now || nodes != step.nodes || !slices.Equal(changed, step.changed) {
			t.Errorf("%s: %d nodes, %v of them changed, want %d and %v", step.name, nodes, changed, step.nodes, step.changed)
		}
		if c.Unexpect("") {
			t.Errorf("%s: a pod is expected", step.name)
		}
	}
}

// A decision is stored for the next equal request until the node changes.
func TestAnAnswerIsKept(t *testing.T) {
	c := New()
	c.SetNode("n", inventory(10))
	ask := func(uid string) any { return c.Refusal("n", NewQuestion(ref(uid), ask(11), placement.Binpack)) }
	first := ask("a")
	if ask("b") != first {
		t.Error("the second pod that asks for the same gets another answer")
	}
	for i := range 7 {
		_ = c.Refusal("n", NewQuestion(ref("c"), placement.Request{CPU: int64(i + 1)}, placement.Binpack))
	}
	if ask("d") != first {
		t.Error("seven other questions drive the answer out")
	}
	c.SetNode("n", inventory(10))
	if ask("e") == first {
		t.Error("a changed node has the answer of before")
	}
}

// A decision that counts expected pods is stored too, separately from decisions that ignore them. The decision
// for a pod that is itself expected on the node is not stored.
func TestAnswersBesideAnExpectedPodAreKept(t *testing.T) {
	c := New()
	c.SetNode("n", inventory(10))
	c.Expect(ref("soon"), "n", ask(6), placement.Binpack, start)
	ask := func(uid string, expecting bool) *decide.Refusal {
		q := NewQuestion(ref(uid), ask(6), placement.Binpack)
		q.Expecting = expecting
		return c.Refusal("n", q)
	}
	first := ask("a", true)
	if first == nil || ask("b", true) != first {
		t.Errorf("refused with %v, and the second pod that asks for the same gets another answer", first)
	}
	for _, own := range []bool{ask("soon", true) == nil, ask("c", false) == nil, ask("b", true) == first, ask("soon", true) == nil} {
		if !own {
			t.Error("a pod gets the answer to another question")
		}
	}
	c.Unexpect("soon")
	if got := ask("d", true); got != nil {
		t.Errorf("refused with %v for a pod that is not expected any more", got)
	}
}

// A set contains the named nodes, and all nodes added later.
func TestNodeSets(t *testing.T) {
	c := New()
	for i := range 64 { // fills a word of bits
		c.SetNode(fmt.Sprint("n", i), inventory(10))
	}
	set := c.Set(slices.Values([]string{"n0", "n63", "unknown"}))
	c.SetNode("unknown", inventory(10))
	c.RemoveNode("n1")
	c.SetNode("n1", inventory(10)) // added again, as a new node
	c.AddPod("n2", bound("left", ask(1), 0))
	c.RemoveNode("n2")
	c.SetNode("n2", inventory(10)) // added again, with a pod left from before
	c.AddPod("never", bound("nowhere", ask(1), 0))
	for name, want := range map[string]bool{"n0": true, "n1": true, "n2": true, "n3": false, "n62": false, "n63": true, "unknown": true, "gone": false, "never": false} {
		if got := c.Has(set, name); got != want {
			t.Errorf("%s is in the set: %t, want %t", name, got, want)
		}
	}
}

// Tenants can create pods with the name of a node that never existed. The cache keeps no record of such nodes.
func TestSetsDoNotGrowWithNamesInPods(t *testing.T) {
	c := New()
	c.SetNode("node", inventory(10))
	for i := range 10_000 {
		uid := fmt.Sprint(i)
		c.AddPod("nowhere-"+uid, bound(uid, ask(1), 0))
		c.RemovePod(uid)
	}
	if set := c.Set(slices.Values([]string{"node"})); len(set.bits) != 1 {
		t.Errorf("a set of one node takes %d words", len(set.bits))
	}
}

// Readers take no lock and see no partial state. The race detector checks this.
func TestReadersWhileNodesComeAndGo(t *testing.T) {
	c := New()
	c.SetNode("n", inventory(10))
	var readers sync.WaitGroup
	done := make(chan struct{})
	for i := range 4 {
		readers.Go(func() {
			for k := 0; ; k++ {
				select {
				case <-done:
					return
				default:
				}
				if len(c.Nodes()) == 0 {
					t.Error("there is no node")
				}
				if refusal := c.Refusal("n", NewQuestion(ref("p"), ask(gpu.Units(1+(i+k)%16)), placement.Binpack)); (refusal == nil) != ((i+k)%16 < 10) {
					t.Errorf("%d units: refused with %v", 1+(i+k)%16, refusal)
				}
			}
		})
	}
	for range 500 {
		c.SetNode("short-lived", inventory(10))
		runtime.Gosched() // let the readers run
		c.RemoveNode("short-lived")
	}
	close(done)
	readers.Wait()
}

// TestAViewCountsExpectedPods verifies that the view for ranking lacks the memory of expected pods, except the
// asking pod's.
func TestAViewCountsExpectedPods(t *testing.T) {
	own, other := bound("own", ask(2), 0), bound("other", ask(3), 0)
	n := placement.NewNode("n", inventory(10), nil)
	n.Expected = []placement.Holding{own, other}
	for _, tc := range []struct {
		pod  placement.PodRef
		want gpu.Units
	}{{own.Pod, 7}, {other.Pod, 8}, {placement.PodRef{UID: "stranger"}, 5}} {
		if got := NewQuestion(tc.pod, ask(1), placement.Binpack).View(&n).Devices[0].Free(); got != tc.want {
			t.Errorf("for pod %s %d units are free, want %d", tc.pod.UID, got, tc.want)
		}
	}
}
