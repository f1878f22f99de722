package extender

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"golang.org/x/sync/singleflight"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/ranking"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/kubetest"
	"github.com/gpumem/gpumem/pkg/report/history"
	"github.com/gpumem/gpumem/pkg/scheduler/binder"
	"github.com/gpumem/gpumem/pkg/scheduler/controller"
	"github.com/gpumem/gpumem/pkg/scheduler/decider"
)

// The tests of this file check promises that test/README.md lists. They run the real handlers of verbs and
// watch events, with an API server that sends each event at once.

// apiServer has nodes and pods, and reports each change to its watchers.
type apiServer struct {
	t     *testing.T
	names api.Names

	mu       sync.Mutex
	pods     map[string]*v1.Pod // by name
	nodes    map[string]*v1.Node
	watchers []*controller.Feeder
	made     int // number of created pods
	tries    int // number of bindings
	landed   int // number of written bindings
	lists    int // number of reads of a node's pods

	leader string // leader of the kube-schedulers
	told   bool   // the watches have shown all changes

	listFails bool
	listing   func() // runs during each list; nil: nothing runs

	// fault returns the result of the n-th binding: the error for its sender, and whether the binding is
	// written.
	fault func(n int) (err error, written bool)
}

func newAPIServer(t *testing.T) *apiServer {
	t.Helper()
	names := kubetest.Names(t)
	return &apiServer{t: t, names: names, pods: make(map[string]*v1.Pod), nodes: make(map[string]*v1.Node)}
}

// extender starts an extender, which lists and then watches.
func (s *apiServer) extender() *Extender {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := &Extender{Decider: decider.Decider{Binder: &binder.Binder{
		Self: "gpumem-extender", Reads: new(singleflight.Group),
		Log: zap.NewNop(), Names: s.names, Cache: cache.New(), Cluster: s,
		Policies: ranking.Policies{GPU: placement.Binpack}, Now: time.Now, Missing: func() string { return "" },
	}}}
	books := &controller.Feeder{Log: zap.NewNop(), Names: s.names, Cache: e.Cache}
	for _, node := range s.nodes {
		books.NodeHandler().OnAdd(node, true)
	}
	for _, pod := range s.pods {
		books.PodHandler().OnAdd(pod, true)
	}
	s.watchers = append(s.watchers, books)
	return e
}

// node creates or replaces a node; without GPUs, it deletes the node.
func (s *apiServer) node(name string, gpus ...gpu.Device) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.nodes[name]
	if len(gpus) == 0 {
		delete(s.nodes, name)
		for _, w := range s.watchers {
			w.NodeHandler().OnDelete(before)
		}
		return
	}
	value, err := api.EncodeInventory(inventory(gpus...))
	if err != nil {
		s.t.Fatal(err)
	}
	after := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{s.names.Inventory(): value}}}
	s.nodes[name] = after
	for _, w := range s.watchers {
		w.NodeHandler().OnUpdate(before, after)
	}
}

// create creates a waiting pod. It replaces a pod of the same name, and the watchers receive an update, as
// after a missed deletion.
func (s *apiServer) create(name string, units int) *v1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made++
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID(fmt.Sprint("uid-", s.made))},
		Spec: v1.PodSpec{Containers: []v1.Container{{
			Name:      "main",
			Resources: v1.ResourceRequirements{Limits: v1.ResourceList{s.names.GPUMem(): resource.MustParse(fmt.Sprint(units))}},
		}}},
	}
	s.set(name, pod)
	return pod
}

func (s *apiServer) delete(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set(name, nil)
}

// set stores a pod. The caller must hold mu.
func (s *apiServer) set(name string, pod *v1.Pod) {
	before := s.pods[name]
	if before == nil && pod == nil {
		return
	}
	if s.pods[name] = pod; pod == nil {
		delete(s.pods, name)
	}
	for _, w := range s.watchers {
		switch {
		case pod == nil:
			w.PodHandler().OnDelete(before)
		case before == nil:
			w.PodHandler().OnAdd(pod, false)
		default:
			w.PodHandler().OnUpdate(before, pod)
		}
	}
}

func (s *apiServer) Pod(_, name string) *v1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pods[name]
}

// Node returns nil: no test needs the object of a node.
func (s *apiServer) Node(string) *v1.Node { return nil }

// Waiting returns no pods: the tests send a request for each pod.
func (s *apiServer) Waiting() []*v1.Pod { return nil }

func (s *apiServer) ReadPod(_ context.Context, _, name string) (*v1.Pod, error) {
	return s.Pod("", name), nil
}

func (s *apiServer) ReadPodsOn(_ context.Context, node string) ([]*v1.Pod, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lists++
	if s.listing != nil {
		s.listing()
	}
	if s.listFails {
		return nil, errors.New("no answer")
	}
	return podsOn(s.pods, node), nil
}

// podsOn returns the pods of a node that have not ended.
func podsOn(pods map[string]*v1.Pod, node string) (on []*v1.Pod) {
	for _, pod := range pods {
		if pod.Spec.NodeName == node && !api.Terminal(pod) {
			on = append(on, pod.DeepCopy())
		}
	}
	return on
}

func (s *apiServer) Bind(_ context.Context, b *v1.Binding) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tries++
	var err error
	if s.fault != nil {
		var written bool
		if err, written = s.fault(s.tries); err != nil && !written {
			return err
		}
	}
	pod := s.pods[b.Name]
	if pod == nil || pod.UID != b.UID || pod.Spec.NodeName != "" {
		return errRefused
	}
	s.landed++
	bound := pod.DeepCopy()
	bound.Spec.NodeName, bound.Annotations = b.Target.Name, b.Annotations
	bound.Status.Conditions = append(bound.Status.Conditions, v1.PodCondition{Type: v1.PodScheduled, Status: v1.ConditionTrue})
	s.set(b.Name, bound)
	return err
}

func (s *apiServer) Refused(err error) bool { return errors.Is(err, errRefused) }

func (s *apiServer) Leader(context.Context) (string, error)                { return s.leader, nil }
func (s *apiServer) Revision(context.Context) (string, error)              { return "1", nil }
func (s *apiServer) Shown(string) bool                                     { return s.told }
func (s *apiServer) Wake(context.Context, placement.PodRef, *string) error { return nil }

// schedule acts as kube-scheduler: it filters the nodes and binds the pod. It returns the node, or the reason
// for a failure.
func (s *apiServer) schedule(e *Extender, pod *v1.Pod, nodes ...string) (node, problem string) {
	fits := e.Filter(context.Background(), &extenderv1.ExtenderArgs{Pod: pod, NodeNames: &nodes})
	if len(*fits.NodeNames) == 0 {
		var reasons []string
		for _, m := range []extenderv1.FailedNodesMap{fits.FailedNodes, fits.FailedAndUnresolvableNodes} {
			for node, reason := range m {
				reasons = append(reasons, node+": "+reason)
			}
		}
		slices.Sort(reasons)
		return "", strings.Join(reasons, "; ")
	}
	node = (*fits.NodeNames)[0]
	return node, bindTo(e, pod, node)
}

func bindTo(e *Extender, pod *v1.Pod, node string) string {
	return e.Bind(context.Background(), &extenderv1.ExtenderBindingArgs{
		PodNamespace: pod.Namespace, PodName: pod.Name, PodUID: pod.UID, Node: node,
	}).Error
}

func (s *apiServer) mustSchedule(e *Extender, pod *v1.Pod, nodes ...string) {
	s.t.Helper()
	if _, problem := s.schedule(e, pod, nodes...); problem != "" {
		s.t.Fatalf("pod %s: %s", pod.Name, problem)
	}
}

// assigned returns the GPUs of a pod's assignment.
func (s *apiServer) assigned(name string) []gpu.UUID {
	s.t.Helper()
	a, err := s.names.AssignmentOf(s.Pod("", name))
	if err != nil {
		s.t.Fatal(err)
	}
	return a.Devices()
}

// requestedOn returns the allocated units of each GPU of a node in an extender's cache.
func requestedOn(e *Extender, node string) (out []gpu.Units) {
	n, _ := e.Cache.Node(node)
	for _, d := range n.Devices {
		out = append(out, d.Requested)
	}
	return out
}

// A pod has 12 units of a GPU that shrinks to 4 units. The free memory is 0, not the huge unsigned result of
// 4-12, and the GPU gets no other pod until it has free memory again.
func TestAGPUThatShrankTakesNothingMore(t *testing.T) {
	s := newAPIServer(t)
	s.node("n", gpu.Device{UUID: "GPU-a", Allocatable: 16}, gpu.Device{UUID: "GPU-b", Allocatable: 16})
	e := s.extender()
	s.mustSchedule(e, s.create("large", 12), "n")
	s.node("n", gpu.Device{UUID: "GPU-a", Allocatable: 4}, gpu.Device{UUID: "GPU-b", Allocatable: 16})
	for i := range 4 {
		name := fmt.Sprint("small-", i)
		s.mustSchedule(e, s.create(name, 4), "n")
		if diff := cmp.Diff([]gpu.UUID{"GPU-b"}, s.assigned(name)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if _, problem := s.schedule(e, s.create("next", 1), "n"); !strings.Contains(problem, "free: GPU0 0, GPU1 0") {
		t.Errorf("the next one: %q, want that nothing is free", problem)
	}
	s.delete("large")
	s.mustSchedule(e, s.pods["next"], "n")
}

// A node has a GPU of 2 GiB and a GPU of 6 GiB. It must not count as two GPUs of 4 GiB: a pod of 5 GiB goes
// to the second GPU, a pod of 3 GiB then fits neither, and a pod of 2 GiB gets the first.
func TestUnequalGPUsOfANodeAreNotEqual(t *testing.T) {
	s := newAPIServer(t)
	s.node("n", gpu.Device{UUID: "GPU-2", Allocatable: 2}, gpu.Device{UUID: "GPU-6", Allocatable: 6})
	e := s.extender()
	if n, _ := e.Cache.Node("n"); n.Allocatable() != 8 {
		t.Errorf("the node has %d units, want 8", n.Allocatable())
	}
	s.mustSchedule(e, s.create("five", 5), "n")
	if _, problem := s.schedule(e, s.create("three", 3), "n"); !strings.Contains(problem, "free: GPU0 2, GPU1 1 (3 in all, fragmented)") {
		t.Errorf("three: %q", problem)
	}
	s.mustSchedule(e, s.create("two", 2), "n")
	if diff := cmp.Diff([]gpu.UUID{"GPU-6", "GPU-2"}, append(s.assigned("five"), s.assigned("two")...)); diff != "" {
		t.Errorf("five and two (-want +got):\n%s", diff)
	}
}

// A node grows from one GPU to four, its GPUs shrink, it is deleted, and another node with the same name is
// added. Each time, only the current inventory counts.
func TestANodeIsWhatItIsNow(t *testing.T) {
	s := newAPIServer(t)
	card := func(uuid string, units gpu.Units) gpu.Device {
		return gpu.Device{UUID: gpu.UUID("GPU-" + uuid), Allocatable: units}
	}
	s.node("n", card("a", 16))
	e := s.extender()
	s.mustSchedule(e, s.create("first", 16), "n")
	if _, problem := s.schedule(e, s.create("second", 16), "n"); problem == "" {
		t.Error("one GPU was given twice")
	}
	s.node("n", card("a", 16), card("b", 16), card("c", 16), card("d", 16))
	s.mustSchedule(e, s.pods["second"], "n")

	s.node("n", card("a", 16), card("b", 16), card("c", 8), card("d", 8))
	if _, problem := s.schedule(e, s.create("third", 9), "n"); !strings.Contains(problem, "free: GPU0 0, GPU1 0, GPU2 8, GPU3 8") {
		t.Errorf("after it shrank: %q", problem)
	}

	s.node("n")
	if _, problem := s.schedule(e, s.pods["third"], "n"); !strings.Contains(problem, "offers no GPU memory") {
		t.Errorf("on a node that is deleted: %q", problem)
	}
	s.delete("first")
	s.delete("second")
	s.node("n", card("e", 9))
	s.mustSchedule(e, s.pods["third"], "n")
	if diff := cmp.Diff([]gpu.UUID{"GPU-e"}, s.assigned("third")); diff != "" {
		t.Errorf("on the node that came after (-want +got):\n%s", diff)
	}
}

// Eight goroutines bind pods, delete them by force and create them again with the same name, 1,000 times. The
// watch shows either an update to the new pod or a late deletion. At the end, the free memory is the same as
// at the beginning.
func TestAThousandPodsOfTheSameNamesLeakNothing(t *testing.T) {
	s := newAPIServer(t)
	s.node("n", gpu.Device{UUID: "GPU-a", Allocatable: 16}, gpu.Device{UUID: "GPU-b", Allocatable: 16})
	e := s.extender()
	var workers sync.WaitGroup
	for w := range 8 {
		name := fmt.Sprint("web-", w)
		workers.Go(func() {
			for i := range 125 {
				pod := s.create(name, 4)
				if _, problem := s.schedule(e, pod, "n"); problem != "" {
					t.Errorf("%s, the %d-th: %s", name, i, problem)
				}
				if i%2 == 0 {
					s.delete(name)
				}
			}
			s.delete(name)
		})
	}
	workers.Wait()
	if diff := cmp.Diff([]gpu.Units{0, 0}, requestedOn(e, "n")); diff != "" {
		t.Errorf("held in the end (-want +got):\n%s", diff)
	}
	s.mustSchedule(e, s.create("all-a", 16), "n")
	s.mustSchedule(e, s.create("all-b", 16), "n")
}

// 100 pods pass the filter and are never bound, as when another plugin of kube-scheduler refuses them. They
// reserve no memory, and neither does a pod whose binding was refused. A binding of unknown outcome reserves
// memory only until its review.
func TestNothingIsReservedForGood(t *testing.T) {
	s := newAPIServer(t)
	s.node("n", gpu.Device{UUID: "GPU-a", Allocatable: 16})
	e := s.extender()
	now := time.Now()
	e.Now = func() time.Time { return now }
	for i := range 100 {
		pod := s.create(fmt.Sprint("filtered-", i), 16)
		if fits := e.Filter(t.Context(), &extenderv1.ExtenderArgs{Pod: pod, NodeNames: &[]string{"n"}}); len(*fits.NodeNames) != 1 {
			t.Fatalf("%s does not fit: %v", pod.Name, fits.FailedNodes)
		}
	}
	held := func(want gpu.Units) {
		t.Helper()
		if got := requestedOn(e, "n"); got[0] != want {
			t.Errorf("%d units are held, want %d", got[0], want)
		}
	}
	held(0)
	s.fault = func(int) (error, bool) { return errRefused, false }
	if problem := bindTo(e, s.pods["filtered-0"], "n"); problem == "" {
		t.Error("refused, and told as a success")
	}
	held(0)
	s.fault = func(int) (error, bool) { return errLost, false }
	if problem := bindTo(e, s.pods["filtered-1"], "n"); !strings.Contains(problem, "the outcome is not known") {
		t.Errorf("lost, and told as %q", problem)
	}
	held(16)
	now = now.Add(time.Minute)
	e.ReviewAssumed(t.Context(), 30*time.Second)
	held(0)
}

// 500 concurrent pods, ten times as many as fit in the end, are scheduled on eight GPUs. One binding in ten
// is refused, or its request or its response is lost. No GPU is ever over-committed, and at the end the cache
// matches the pods' assignments.
func TestFiveHundredPodsAtOnceWithFaults(t *testing.T) {
	s := newAPIServer(t)
	gpus := make([]gpu.Device, 8)
	for i := range gpus {
		gpus[i] = gpu.Device{UUID: gpu.UUID(fmt.Sprint("GPU-", i)), Allocatable: 24}
	}
	s.node("n", gpus...)
	e := s.extender()
	s.fault = func(n int) (error, bool) {
		switch n % 30 {
		case 7:
			return errRefused, false
		case 17:
			return errLost, false
		case 27:
			return errLost, true
		}
		return nil, false
	}
	check := func() {
		for i, units := range requestedOn(e, "n") {
			if units > 24 {
				t.Errorf("GPU %d gives %d units of 24", i, units)
			}
		}
	}
	var all sync.WaitGroup
	for i := range 500 {
		pod := s.create(fmt.Sprint("pod-", i), 3+i%3)
		all.Go(func() {
			for range 3 {
				if _, problem := s.schedule(e, pod, "n"); problem == "" {
					break
				}
			}
			check()
		})
	}
	all.Wait()
	e.ReviewAssumed(t.Context(), -time.Minute) // a negative limit reviews all pods
	check()
	written := make([]gpu.Units, 8)
	bound := 0
	for _, pod := range s.pods {
		a, err := s.names.AssignmentOf(pod)
		if err != nil {
			t.Fatal(err)
		}
		for _, share := range a.Shares {
			i := slices.IndexFunc(gpus, func(d gpu.Device) bool { return d.UUID == share.Device })
			written[i] += share.Units
			bound++
		}
	}
	if diff := cmp.Diff(written, requestedOn(e, "n")); diff != "" || bound < 30 {
		t.Errorf("%d pods are bound; held (-written +books):\n%s", bound, diff)
	}
	for name := range s.pods {
		s.delete(name)
	}
	if diff := cmp.Diff(make([]gpu.Units, 8), requestedOn(e, "n")); diff != "" {
		t.Errorf("held when all are gone (-want +got):\n%s", diff)
	}
}

// The response to a binding is lost, and kube-scheduler repeats the bind. The second bind succeeds, and the
// pod's memory is charged once.
func TestABindRepeatedAfterALostReply(t *testing.T) {
	s := newAPIServer(t)
	s.node("n", gpu.Device{UUID: "GPU-a", Allocatable: 16}, gpu.Device{UUID: "GPU-b", Allocatable: 16})
	e := s.extender()
	pod := s.create("pod", 6)
	s.fault = func(int) (error, bool) { return errLost, true }
	for i := range 3 {
		if problem := bindTo(e, pod, "n"); problem != "" {
			t.Errorf("the %d-th time: %s", i, problem)
		}
	}
	if diff := cmp.Diff([]gpu.Units{6, 0}, requestedOn(e, "n")); diff != "" || s.landed != 1 {
		t.Errorf("%d bindings were written; held (-want +got):\n%s", s.landed, diff)
	}
}

// An extender is killed during two bindings, and one of them is written later. The next extender reads the
// results of the killed one from the API server. It responds to the repeated binds with success, and
// schedules the other pods beside these two.
func TestANewExtenderGoesOnWhereOneWasKilledMidBind(t *testing.T) {
	s := newAPIServer(t)
	s.node("n", gpu.Device{UUID: "GPU-a", Allocatable: 16}, gpu.Device{UUID: "GPU-b", Allocatable: 16})
	first := s.extender()
	var pods []*v1.Pod
	for i := range 4 {
		pods = append(pods, s.create(fmt.Sprint("pod-", i), 7))
	}
	s.mustSchedule(first, pods[0], "n")
	s.mustSchedule(first, pods[1], "n")
	s.watchers = nil // the extender is killed
	_ = bindTo(first, pods[2], "n")
	s.fault = func(int) (error, bool) { return errLost, false }
	_ = bindTo(first, pods[3], "n")
	s.fault = nil
	before := slices.Concat(s.assigned("pod-0"), s.assigned("pod-1"), s.assigned("pod-2"))

	second := s.extender()
	for _, pod := range pods {
		if problem := bindTo(second, pod, "n"); problem != "" {
			t.Errorf("%s: %s", pod.Name, problem)
		}
	}
	if diff := cmp.Diff(before, slices.Concat(s.assigned("pod-0"), s.assigned("pod-1"), s.assigned("pod-2"))); diff != "" {
		t.Errorf("GPUs of the first three (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff([]gpu.Units{14, 14}, requestedOn(second, "n")); diff != "" || s.landed != 4 {
		t.Errorf("%d bindings were written; held (-want +got):\n%s", s.landed, diff)
	}
}

// deaf stops the events for the last started extender. The returned function lists all objects and resumes
// the events.
func (s *apiServer) deaf() (hear func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := len(s.watchers) - 1
	books := s.watchers[last]
	s.watchers = s.watchers[:last]
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, pod := range s.pods {
			books.PodHandler().OnAdd(pod, false)
		}
		s.watchers = append(s.watchers, books)
	}
}

func TestAnExtenderWhoseWatchIsBehindGivesNothingAwayThatAnotherHasGiven(t *testing.T) {
	s := newAPIServer(t)
	s.node("n", gpu.Device{UUID: "GPU-A", Allocatable: 14})
	bound, large, small := s.create("bound", 6), s.create("large", 10), s.create("small", 6)
	led, leads := s.extender(), s.extender()
	hear := s.deaf() // as after a failure of the API server: client-go retries within a minute
	s.mustSchedule(led, bound, "n")

	var told history.Decision
	leads.Decided = func(_ placement.PodRef, d history.Decision) { told = d }
	if got, want := bindTo(leads, large, "n"), "needs 10 GiB on one GPU; free: GPU0 8 (8 GiB in all)"; got != want {
		t.Errorf("pod large: %q, want %q", got, want)
	}
	if free := told.Nodes[0].GPUs[0].Free; free != 8 {
		t.Errorf("the GPU had %d GiB free when that was decided, as it is told; want 8", free)
	}
	s.mustSchedule(leads, small, "n")
	if diff := cmp.Diff([]gpu.Units{12}, requestedOn(leads, "n")); diff != "" {
		t.Errorf("held before the watch has caught up (-want +got):\n%s", diff)
	}

	s.delete("bound") // the watch never shows this
	leads.ReviewAssumed(t.Context(), 0)
	if diff := cmp.Diff([]gpu.Units{6}, requestedOn(leads, "n")); diff != "" {
		t.Errorf("held when the other's pod is gone (-want +got):\n%s", diff)
	}
	hear()
	if diff := cmp.Diff([]gpu.Units{6}, requestedOn(leads, "n")); diff != "" {
		t.Errorf("held once the watch has caught up (-want +got):\n%s", diff)
	}
}

// The lead passes to another extender and back. The first extender's old reservation of a pod must not hide
// the other extender's binding of that pod.
func TestWhatAnotherHasBoundElsewhereOnTheNodeCounts(t *testing.T) {
	s := newAPIServer(t)
	s.node("n", gpu.Device{UUID: "GPU-A", Allocatable: 10}, gpu.Device{UUID: "GPU-B", Allocatable: 14})
	x, filler, y := s.create("x", 8), s.create("filler", 6), s.create("y", 12)
	led, leads := s.extender(), s.extender()
	hear := s.deaf()
	now := time.Now()
	leads.Now = func() time.Time { return now }
	s.fault = func(int) (error, bool) { return errLost, false }
	if got := bindTo(leads, x, "n"); !strings.Contains(got, "the outcome is not known") {
		t.Fatalf("the binding whose answer is lost: %q", got)
	}
	s.fault = nil
	s.mustSchedule(led, filler, "n") // takes GPU-A, so that x gets GPU-B
	s.mustSchedule(led, x, "n")

	now = now.Add(binder.IdleThreshold + 1)
	if got, want := bindTo(leads, y, "n"), "needs 12 GiB on one GPU; free: GPU0 4, GPU1 6 (10 GiB in all)"; got != want {
		t.Errorf("pod y: %q, want %q", got, want)
	}
	hear()
	if diff := cmp.Diff([]gpu.Units{6, 8}, requestedOn(leads, "n")); diff != "" {
		t.Errorf("held (-want +got):\n%s", diff)
	}
}

// A pod may be bound before the watch shows it, and without known GPUs. A Bind to the same node succeeds
// nevertheless.
func TestABindOfAPodThatAReadShowsToBeThere(t *testing.T) {
	s := newAPIServer(t)
	s.node("n", gpu.Device{UUID: "GPU-A", Allocatable: 14})
	s.node("m", gpu.Device{UUID: "GPU-B", Allocatable: 14})
	pod := s.create("pod", 6)
	e := s.extender()
	s.deaf()
	waiting := *pod
	e.Cluster = stale{s, &waiting}
	pod.Spec.NodeName = "n"
	if problem := bindTo(e, pod, "n"); problem != "" {
		t.Errorf("to the node that it is on: %s", problem)
	}
	if got, want := bindTo(e, pod, "m"), "the pod is bound to node n"; got != want {
		t.Errorf("to another node: %q, want %q", got, want)
	}
}

// stale is an API server whose watch has shown an outdated state of a pod.
type stale struct {
	*apiServer
	told *v1.Pod
}

func (s stale) Pod(string, string) *v1.Pod { return s.told }

// A read of the node's pods ignores pods that need no GPU memory.
func TestPodsWithoutGPUMemoryAreNoNews(t *testing.T) {
	s := newAPIServer(t)
	s.node("n", gpu.Device{UUID: "GPU-A", Allocatable: 14})
	pod := s.create("pod", 6)
	e := s.extender()
	s.deaf()
	for name, change := range map[string]func(*v1.Pod){
		"besteffort": func(p *v1.Pod) { p.Spec.Containers[0].Resources = v1.ResourceRequirements{} },
		"cpu": func(p *v1.Pod) {
			p.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}
		},
		"zero": func(p *v1.Pod) {
			p.Spec.Containers[0].Resources.Limits = v1.ResourceList{s.names.GPUMem(): resource.MustParse("0")}
		},
		"ended": func(p *v1.Pod) { p.Status.Phase = v1.PodSucceeded },
	} {
		other := s.create(name, 3)
		other.Spec.NodeName = "n"
		change(other)
	}
	s.mustSchedule(e, pod, "n")
	if diff := cmp.Diff([]gpu.Units{6}, requestedOn(e, "n")); diff != "" {
		t.Errorf("held (-want +got):\n%s", diff)
	}
}

// After a time without requests, another extender may have bound pods. So the next Bind to each node reads
// the pods of the node once.
func TestHowOftenANodeIsReadBesideTheWatch(t *testing.T) {
	s := newAPIServer(t)
	s.node("n", gpu.Device{UUID: "GPU-A", Allocatable: 14})
	s.node("m", gpu.Device{UUID: "GPU-B", Allocatable: 14})
	e := s.extender()
	now := time.Now()
	e.Now = func() time.Time { return now }
	for i, step := range []struct {
		passes time.Duration
		node   string
		lists  int
	}{
		{0, "n", 1},
		{binder.IdleThreshold, "n", 1},
		{binder.IdleThreshold, "m", 2},
		{binder.IdleThreshold, "n", 2},
		{binder.IdleThreshold, "m", 2},
		{binder.IdleThreshold + 1, "n", 3},
		{0, "m", 4},
		{binder.IdleThreshold, "m", 4},
	} {
		now = now.Add(step.passes)
		s.mustSchedule(e, s.create(fmt.Sprint("pod-", i), 1), step.node)
		if s.lists != step.lists {
			t.Errorf("step %d: %s was bound to, and pods were listed %d times, want %d", i, step.node, s.lists, step.lists)
		}
	}

	now = now.Add(2 * binder.IdleThreshold)
	s.listFails = true
	pod := s.create("late", 1)
	if got, want := bindTo(e, pod, "n"), "read the pods of node n: no answer"; got != want {
		t.Errorf("Bind says %q, want %q", got, want)
	}
	if _, _, known := e.Cache.PodNode(string(pod.UID)); known {
		t.Error("a pod is assumed though what is on its node could not be read")
	}
	s.listFails = false
	s.mustSchedule(e, pod, "n")
}

// A binding is not sent if its caller has disconnected before. A binding that was sent continues, because its
// outcome would be unknown otherwise.
func TestACallerThatHangsUp(t *testing.T) {
	for name, tc := range map[string]struct {
		during  func(s *apiServer, hangUp func())
		want    string
		landed  int
		holding []gpu.Units
	}{
		"before":           {func(_ *apiServer, hangUp func()) { hangUp() }, "kube-scheduler has hung up", 0, []gpu.Units{0}},
		"during the reads": {func(s *apiServer, hangUp func()) { s.listing = hangUp }, "kube-scheduler has hung up", 0, []gpu.Units{0}},
		"during the write": {func(s *apiServer, hangUp func()) {
			s.fault = func(int) (error, bool) { hangUp(); return nil, true }
		}, "", 1, []gpu.Units{6}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newAPIServer(t)
			s.node("n", gpu.Device{UUID: "GPU-A", Allocatable: 14})
			e := s.extender()
			ctx, hangUp := context.WithCancel(t.Context())
			defer hangUp()
			tc.during(s, hangUp)
			pod := s.create("x", 6)
			got := e.Bind(ctx, &extenderv1.ExtenderBindingArgs{PodNamespace: pod.Namespace, PodName: pod.Name, PodUID: pod.UID, Node: "n"})
			if got.Error != tc.want || s.landed != tc.landed {
				t.Errorf("Bind says %q, and %d bindings landed; want %q and %d", got.Error, s.landed, tc.want, tc.landed)
			}
			if diff := cmp.Diff(tc.holding, requestedOn(e, "n")); diff != "" {
				t.Errorf("held (-want +got):\n%s", diff)
			}
		})
	}
}

// A replica that loses its Lease during the reads makes no more decisions.
func TestALeadThatIsLostDuringTheReads(t *testing.T) {
	s := newAPIServer(t)
	s.node("n", gpu.Device{UUID: "GPU-A", Allocatable: 14})
	e := s.extender()
	missing := ""
	e.Missing = func() string { return missing }
	s.listing = func() { missing = "replica other leads" }
	pod := s.create("x", 6)
	if got, want := bindTo(e, pod, "n"), "gpumem-extender is not ready: replica other leads"; got != want || s.tries != 0 {
		t.Errorf("Bind says %q, and %d bindings were sent; want %q and none", got, s.tries, want)
	}
}

// With 5,000 nodes of eight GPUs, filter returns all feasible nodes, and only their names. The size of the
// response shows this. The log has the durations.
func TestFiveThousandNodes(t *testing.T) {
	const nodes = 5000
	s := newAPIServer(t)
	names := make([]string, nodes)
	for i := range names {
		names[i] = fmt.Sprintf("node-%04d", i)
		gpus := make([]gpu.Device, 8)
		for k := range gpus {
			gpus[k] = gpu.Device{UUID: gpu.UUID(fmt.Sprintf("GPU-%04d-%d", i, k)), Allocatable: 80}
		}
		s.node(names[i], gpus...)
	}
	e := s.extender()
	const calls = 10
	var took []time.Duration
	size := 0
	begin := time.Now()
	for i := range calls {
		pod := s.create(fmt.Sprint("pod-", i), 10)
		before := time.Now()
		fits := e.Filter(t.Context(), &extenderv1.ExtenderArgs{Pod: pod, NodeNames: &names})
		took = append(took, time.Since(before))
		reply, err := json.Marshal(fits)
		if err != nil {
			t.Fatal(err)
		}
		size = len(reply)
		if len(*fits.NodeNames) != nodes {
			t.Fatalf("%d nodes fit, want all", len(*fits.NodeNames))
		}
		if problem := bindTo(e, pod, names[i]); problem != "" {
			t.Fatal(problem)
		}
	}
	if most := nodes * len(`"node-0000",`) * 2; size > most {
		t.Errorf("the reply has %d bytes, want %d at most: names alone", size, most)
	}
	slices.Sort(took)
	t.Logf("filter of %d nodes: p50 %s, slowest %s; reply %d bytes; %.0f pods filtered and bound per second, one after the other",
		nodes, took[calls/2], took[calls-1], size, calls/time.Since(begin).Seconds())
}
