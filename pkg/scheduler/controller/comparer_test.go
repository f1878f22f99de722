package controller

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// objects contains pods and nodes by name.
type objects struct {
	pods  map[string]*v1.Pod
	nodes map[string]*v1.Node
}

func newObjects(pods ...*v1.Pod) objects {
	o := objects{pods: make(map[string]*v1.Pod), nodes: map[string]*v1.Node{"node": node(inventory)}}
	for _, pod := range pods {
		o.pods[pod.Name] = pod
	}
	return o
}

// source has the objects that the watches have stored.
type source struct {
	stored     objects
	incomplete bool
	read       func() // runs after a read of the objects; nil: nothing runs
}

func (s *source) Stored() (pods []*v1.Pod, nodes []*v1.Node, complete bool) {
	for _, pod := range s.stored.pods {
		pods = append(pods, pod)
	}
	for _, node := range s.stored.nodes {
		nodes = append(nodes, node)
	}
	if s.read != nil {
		s.read()
	}
	return pods, nodes, !s.incomplete
}

// counted counts the pods and nodes that one comparison has corrected.
type counted struct{ pods, nodes int }

type drift struct{ told []counted }

func (d *drift) Compared(wrong map[string]int) {
	d.told = append(d.told, counted{wrong["pod"], wrong["node"]})
}

// comparison is a Comparer with a cache that the handlers have fed, and its environment.
type comparison struct {
	*Comparer
	*source
	*drift
	books *Feeder
	logs  *observer.ObservedLogs
}

// newComparison returns a comparison whose handlers have processed the node and the given pods.
func newComparison(t *testing.T, handled ...*v1.Pod) *comparison {
	t.Helper()
	core, logs := observer.New(zapcore.WarnLevel)
	c := &comparison{
		source: &source{stored: newObjects(handled...)}, drift: &drift{}, logs: logs,
		books: &Feeder{Log: zap.New(core), Names: names(t), Cache: cache.New()},
	}
	c.Comparer = &Comparer{Log: c.books.Log, Names: c.books.Names, Cache: c.books.Cache, Stored: c.source.Stored, Compared: c.drift.Compared}
	c.books.NodeHandler().OnAdd(node(inventory), true)
	for _, pod := range handled {
		c.books.PodHandler().OnAdd(pod, true)
	}
	return c
}

// happens changes the stored objects.
func (c *comparison) happens(change func(objects)) { change(c.stored) }

func (c *comparison) want(t *testing.T, held []gpu.Units, told ...counted) {
	t.Helper()
	if diff := cmp.Diff(held, requested(c.books.Cache)); diff != "" {
		t.Errorf("held (-want +got):\n%s", diff)
	}
	if !slices.Equal(told, c.told) {
		t.Errorf("told %v, want %v", c.told, told)
	}
}

// At one comparison, the handlers are behind the stored pods. During the next one, a pod is deleted. Both
// comparisons miss the pod in the cache, and the second must not add it again.
func TestADeletedPodIsNotBroughtBack(t *testing.T) {
	c := newComparison(t)
	web := pod("web", "1", "GPU-b")
	c.happens(func(o objects) { o.pods["web"] = web })
	c.Compare()
	c.books.PodHandler().OnAdd(web, false)
	c.source.read = func() { c.books.PodHandler().OnDelete(web) }
	c.Compare()
	c.want(t, []gpu.Units{0, 0}, counted{}, counted{})
}

func TestAnEventThatWasSwallowedIsMadeUpFor(t *testing.T) {
	for _, tc := range []struct {
		name    string
		handled []*v1.Pod
		happens func(objects) // a change that no handler receives
		before  []gpu.Units
		after   []gpu.Units
		wrong   counted
		log     map[string]any
	}{
		{
			name:    "a pod was bound",
			happens: func(o objects) { o.pods["web"] = pod("web", "1", "GPU-b") },
			before:  []gpu.Units{0, 0}, after: []gpu.Units{0, 3}, wrong: counted{pods: 1},
			log: map[string]any{
				"pod": "team/web", "uid": "1", "node": "node", "cached": "not there",
				"real": "on node with [GPU-b: 3], assumed false, admitted false",
			},
		},
		{
			name:    "a pod is gone",
			handled: []*v1.Pod{pod("web", "1", "GPU-a")},
			happens: func(o objects) { delete(o.pods, "web") },
			before:  []gpu.Units{3, 0}, after: []gpu.Units{0, 0}, wrong: counted{pods: 1},
			log: map[string]any{
				"pod": "team/web", "uid": "1", "node": "node", "real": "not there",
				"cached": "on node with [GPU-a: 3], assumed false, admitted false",
			},
		},
		{
			name:    "a pod was made again under its name",
			handled: []*v1.Pod{pod("web", "1", "GPU-a")},
			happens: func(o objects) { o.pods["web"] = pod("web", "2", "GPU-b") },
			before:  []gpu.Units{3, 0}, after: []gpu.Units{0, 3}, wrong: counted{pods: 2},
		},
		{
			name:    "an assignment was corrected",
			handled: []*v1.Pod{pod("web", "1", "GPU-a")},
			happens: func(o objects) { o.pods["web"] = pod("web", "1", "GPU-b") },
			before:  []gpu.Units{3, 0}, after: []gpu.Units{0, 3}, wrong: counted{pods: 1},
		},
		{
			name:    "a node's inventory shrank",
			handled: []*v1.Pod{pod("web", "1", "GPU-a")},
			happens: func(o objects) {
				o.nodes["node"] = node(`{"v":1,"unitMiB":1024,"gpus":[{"uuid":"GPU-a","index":0,"memoryMiB":16384,"units":16,"healthy":true}]}`)
			},
			before: []gpu.Units{3, 0}, after: []gpu.Units{3}, wrong: counted{nodes: 1},
			log: map[string]any{
				"node": "node", "cached": "offers [GPU-a: 16, takes pods true; GPU-b: 16, takes pods true]",
				"real": "offers [GPU-a: 16, takes pods true]",
			},
		},
		{
			name:    "a node is gone",
			happens: func(o objects) { delete(o.nodes, "node") },
			before:  []gpu.Units{0, 0}, after: nil, wrong: counted{nodes: 1},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newComparison(t, tc.handled...)
			c.happens(tc.happens)
			c.Compare()
			c.want(t, tc.before, counted{})
			c.Compare()
			c.want(t, tc.after, counted{}, tc.wrong)
			c.Compare()
			c.want(t, tc.after, counted{}, tc.wrong, counted{})
			if entries := c.logs.All(); tc.log != nil && len(entries) == 1 {
				if diff := cmp.Diff(tc.log, entries[0].ContextMap()); diff != "" {
					t.Errorf("logged (-want +got):\n%s", diff)
				}
			} else if len(entries) != tc.wrong.pods+tc.wrong.nodes {
				t.Errorf("logged %v, want a line for each object", entries)
			}
		})
	}
}

func TestWhatIsNoDrift(t *testing.T) {
	ask := placement.Request{Containers: placement.NewContainers(placement.Container{Name: "main", Kind: placement.App, Units: 3})}
	web := pod("web", "1", "GPU-a")
	assume := func(t *testing.T, c *comparison) {
		t.Helper()
		ref := placement.PodRef{Namespace: "team", Name: "web", UID: "1"}
		if _, err := c.books.Cache.AssumePod(ref, "node", ask, placement.Binpack, metav1.Now().Time); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		name    string
		handled []*v1.Pod
		before  func(t *testing.T, c *comparison)
		between func(t *testing.T, c *comparison) // runs between the two comparisons
		held    []gpu.Units
	}{
		{
			name:    "the cache is right",
			handled: []*v1.Pod{web, pod("db", "2", "GPU-b")},
			held:    []gpu.Units{3, 3},
		},
		{
			name:   "an event is on its way, and comes",
			before: func(_ *testing.T, c *comparison) { c.happens(func(o objects) { o.pods["web"] = web }) },
			between: func(_ *testing.T, c *comparison) {
				c.books.PodHandler().OnAdd(web, false)
			},
			held: []gpu.Units{3, 0},
		},
		{
			name:    "one event after the other is on its way",
			handled: []*v1.Pod{web},
			before: func(_ *testing.T, c *comparison) {
				c.happens(func(o objects) { o.pods["web"] = pod("web", "1", "GPU-b") })
			},
			between: func(_ *testing.T, c *comparison) {
				c.books.PodHandler().OnUpdate(web, pod("web", "1", "GPU-b"))
				c.happens(func(o objects) { o.pods["web"] = pod("web", "1", "GPU-a") })
			},
			held: []gpu.Units{0, 3},
		},
		{
			name:   "a pod is assumed, and its binding under way",
			before: assume,
			held:   []gpu.Units{3, 0},
		},
		{
			name: "a read has shown a pod to be bound, and the watch lags",
			before: func(t *testing.T, c *comparison) {
				assume(t, c)
				holding, err := c.books.Names.Holding(web)
				if err != nil {
					t.Fatal(err)
				}
				c.books.Cache.BeginRead().AddPod("node", holding, metav1.Now().Time)
			},
			held: []gpu.Units{3, 0},
		},
		{
			name: "the first list is not there yet",
			before: func(_ *testing.T, c *comparison) {
				c.incomplete = true
				c.happens(func(o objects) { o.pods["web"] = web })
			},
			held: []gpu.Units{0, 0},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newComparison(t, tc.handled...)
			if tc.before != nil {
				tc.before(t, c)
			}
			c.Compare()
			if tc.between != nil {
				tc.between(t, c)
			}
			c.Compare()
			told := []counted{{}, {}}
			if c.incomplete {
				told = nil
			}
			c.want(t, tc.held, told...)
			if c.logs.Len() > 0 {
				t.Errorf("logged %v, want nothing", c.logs.All())
			}
		})
	}
}

// With real informers, the Comparer restores entries that were removed from the cache directly.
func TestComparerOfAController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(node(inventory), pod("web", "1", "GPU-a"), pod("db", "2", "GPU-b"))
		books := cache.New()
		ctl, err := New(zap.NewNop(), client, names(t), books)
		if err != nil {
			t.Fatal(err)
		}
		d := &drift{}
		comparer := &Comparer{Log: zap.NewNop(), Names: names(t), Cache: books, Stored: ctl.Stored, Compared: d.Compared}
		comparer.Compare()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); ctl.Run(ctx) }()
		synctest.Wait()
		comparer.Compare()
		books.RemovePod("1")
		books.RemoveNode("node")
		comparer.Compare()
		comparer.Compare()
		if diff := cmp.Diff([]gpu.Units{3, 3}, requested(books)); diff != "" {
			t.Errorf("requested (-want +got):\n%s", diff)
		}
		want := []counted{{}, {}, {pods: 1, nodes: 1}}
		if !slices.Equal(want, d.told) {
			t.Errorf("told %v, want %v", d.told, want)
		}
		cancel()
		<-done
	})
}
