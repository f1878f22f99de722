package allocation

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func uuid(i int) gpu.UUID { return gpu.UUID(fmt.Sprintf("GPU-%08d", i)) }

func inventory(capacities ...gpu.Units) gpu.Inventory {
	inv := gpu.Inventory{UnitMiB: 1024}
	for i, c := range capacities {
		inv.Devices = append(inv.Devices, gpu.Device{UUID: uuid(i), Index: i, Allocatable: c, MemoryMiB: int64(c) * 1024})
	}
	return inv
}

// ids returns slots of a device by their numbers.
func ids(device int, numbers ...int) []gpu.SlotID {
	out := []gpu.SlotID{}
	for _, n := range numbers {
		out = append(out, gpu.SlotID(fmt.Sprintf("%08d-%d", device, n)))
	}
	return out
}

// coreIDs returns core slots of a device by their numbers.
func coreIDs(device int, numbers ...int) []gpu.SlotID {
	var out []gpu.SlotID
	for _, n := range numbers {
		out = append(out, gpu.SlotID(fmt.Sprintf("%08d-c%d", device, n)))
	}
	return out
}

func app(name string, units gpu.Units) placement.Container {
	return placement.Container{Name: name, Kind: placement.App, Units: units}
}

func sidecar(name string, units gpu.Units) placement.Container {
	return placement.Container{Name: name, Kind: placement.Sidecar, Units: units}
}

func initial(name string, units gpu.Units) placement.Container {
	return placement.Container{Name: name, Kind: placement.Init, Units: units}
}

func ask(containers ...placement.Container) placement.Request {
	return placement.Request{Containers: placement.NewContainers(containers...)}
}

// pod returns a waiting pod that is assigned to the devices.
func pod(name string, r placement.Request, devices ...int) Pod {
	var a placement.Assignment
	for _, d := range devices {
		a.Shares = append(a.Shares, placement.Share{Device: uuid(d)})
	}
	return Pod{
		Holding: placement.Holding{Pod: placement.PodRef{Namespace: "ns", Name: name, UID: name}, Request: r, Assignment: a.WithShares(r)},
		Created: start,
	}
}

// cluster is a node with a kubelet and the plugin, and the pods in the API server.
type cluster struct {
	t       testing.TB
	inv     gpu.Inventory
	slots   *gpu.Slots
	pods    []Pod
	place   bool
	given   []Attributed // grants that the plugin has recorded
	kubelet *kubelet
}

func newCluster(t testing.TB, seed uint64, inv gpu.Inventory) *cluster {
	t.Helper()
	slots, err := gpu.NewSlots(inv)
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, inv: inv, slots: slots, place: true}
	c.kubelet = &kubelet{
		random:    rand.New(rand.NewPCG(seed, 11)),
		forgotten: make(map[gpu.SlotID]bool),
		prefer: func(r gpu.Resource, available, must []gpu.SlotID, size int) ([]gpu.SlotID, error) {
			got, err := Prefer(c.state(), r, available, must, size)
			if err == nil {
				c.checkPreference(got, available, must, size)
			}
			return got, err
		},
		allocate: func(r gpu.Resource, ids []gpu.SlotID) error {
			g, err := Resolve(c.state(), r, ids)
			if err != nil {
				return err
			}
			possible, err := Admit(c.state(), g)
			if err == nil {
				c.given = append(c.given, possible[0])
			}
			return err
		},
	}
	for _, d := range inv.Devices {
		c.kubelet.slots = slices.Concat(c.kubelet.slots, slots.Of(gpu.Memory, d.UUID), slots.Of(gpu.Cores, d.UUID))
	}
	return c
}

func (c *cluster) state() State {
	held, known := c.kubelet.podResources()
	return State{
		Inventory: c.inv, Slots: c.slots, Pods: c.pods, Allocated: held, Listed: known, Attributed: c.given,
		Policy: placement.Binpack, PlaceUnassigned: c.place,
	}.WithUnlisted()
}

func (c *cluster) checkPreference(got, available, must []gpu.SlotID, size int) {
	c.t.Helper()
	in := func(set []gpu.SlotID) func(gpu.SlotID) bool {
		return func(id gpu.SlotID) bool { return slices.Contains(set, id) }
	}
	if len(got) != size || slices.ContainsFunc(must, func(id gpu.SlotID) bool { return !in(got)(id) }) ||
		slices.ContainsFunc(got, func(id gpu.SlotID) bool { return !in(available)(id) }) {
		c.t.Errorf("Prefer = %v, want %d of %v with %v among them", got, size, available, must)
	}
	if len(slices.Compact(slices.Sorted(slices.Values(got)))) != len(got) {
		c.t.Errorf("Prefer = %v, which names a slot twice", got)
	}
}

func (c *cluster) admit(name string) error {
	c.t.Helper()
	i := slices.IndexFunc(c.pods, func(p Pod) bool { return p.Pod.Name == name })
	_, err := c.kubelet.admit(c.pods[i].Pod, c.pods[i].Request)
	c.pods[i].Admitted = err == nil
	return err
}

func (c *cluster) mustAdmit(names ...string) {
	c.t.Helper()
	for _, name := range names {
		if err := c.admit(name); err != nil {
			c.t.Fatalf("pod %s is not admitted: %v", name, err)
		}
	}
}

// correct writes the corrections of Reconcile, like the plugin, until there are none.
func (c *cluster) correct() {
	for corrections := Reconcile(c.state()); len(corrections) > 0; corrections = Reconcile(c.state()) {
		for _, correction := range corrections {
			c.write(correction)
		}
	}
}

func (c *cluster) write(correction Correction) {
	for i := range c.pods {
		if c.pods[i].Pod == correction.Pod.Pod {
			c.pods[i].Holding = written(c.pods[i].Holding, correction.Actual)
		}
	}
}

// written returns the holding that package api would parse after a write of the assignment.
func written(h placement.Holding, a placement.Assignment) placement.Holding {
	h.Assignment = a
	if a.Allocated {
		h.Request.Count = len(a.Shares)
	}
	return h
}

// on returns the units that a pod holds on each GPU.
func (c *cluster) on(name string) []gpu.Units { return c.slotsOn(gpu.Memory, name) }

func (c *cluster) slotsOn(r gpu.Resource, name string) []gpu.Units {
	out := make([]gpu.Units, len(c.inv.Devices))
	for _, p := range c.pods {
		if p.Pod.Name != name {
			continue
		}
		for _, id := range c.kubelet.all(p.Pod) {
			if id.Resource() != r {
				continue
			}
			d, err := c.slots.Device(id)
			if err != nil {
				c.t.Fatal(err)
			}
			out[d.Index]++
		}
	}
	return out
}

// written returns the indexes of the GPUs in a pod's annotation.
func (c *cluster) written(name string) []int {
	out := []int{}
	for _, p := range c.pods {
		if p.Pod.Name == name {
			for _, id := range p.Assignment.Devices() {
				d, _ := c.inv.Device(id)
				out = append(out, d.Index)
			}
		}
	}
	return out
}

func (c *cluster) want(name string, held []gpu.Units, written ...int) {
	c.t.Helper()
	if diff := cmp.Diff(held, c.on(name)); diff != "" {
		c.t.Errorf("what %s holds of each GPU (-want +got):\n%s", name, diff)
	}
	if diff := cmp.Diff(written, c.written(name)); diff != "" {
		c.t.Errorf("what is written of %s (-want +got):\n%s", name, diff)
	}
}

// The GPU of a plain init container's first resource is also the GPU of its second resource, even if no
// scheduler placed the pod and another GPU is better by now.
func TestAnInitContainerGetsBothResourcesOfOneGPU(t *testing.T) {
	inv := inventory(10, 10)
	slots, err := gpu.NewSlots(inv)
	if err != nil {
		t.Fatal(err)
	}
	first, then := initial("init", 2), app("app", 2)
	first.Cores, then.Cores = 2, 2
	p, beside := pod("p", ask(first, then)), pod("beside", ask(app("a", 3)), 0)
	given := func(ids []gpu.SlotID) []Attributed { return []Attributed{{Pod: p.Pod, Container: first, Slots: ids}} }
	other := Allocated{Namespace: "ns", Name: "other", Container: "a", Slots: coreIDs(1, 0, 1)}
	for name, tc := range map[string]struct {
		r         gpu.Resource
		given     []Attributed
		held      []Allocated
		available []gpu.SlotID
		want      []gpu.SlotID
	}{
		"nothing was given": {gpu.Memory, nil, nil, append(ids(0, 3, 4), ids(1, 0, 1)...), ids(0, 3, 4)},
		"cores first":       {gpu.Memory, given(coreIDs(1, 0, 1)), nil, append(ids(0, 3, 4), ids(1, 0, 1)...), ids(1, 0, 1)},
		"memory first":      {gpu.Cores, given(ids(1, 0, 1)), nil, append(coreIDs(0, 3, 4), coreIDs(1, 0, 1)...), coreIDs(1, 0, 1)},
		"it was another's":  {gpu.Memory, given(coreIDs(1, 0, 1)), []Allocated{other}, append(ids(0, 3, 4), ids(1, 0, 1)...), ids(0, 3, 4)},
	} {
		s := State{Inventory: inv, Slots: slots, Pods: []Pod{p, beside}, Listed: map[string]bool{"ns/p": true}, Attributed: tc.given, Allocated: tc.held, Policy: placement.Binpack, PlaceUnassigned: true}
		got, err := Prefer(s, tc.r, tc.available, nil, 2)
		if diff := cmp.Diff(tc.want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
}

// Once a later container has an allocation, the init containers before it have all of theirs. A call for the
// init container's amount is then for another pod.
func TestAnInitContainerHasHadItsCores(t *testing.T) {
	inv := inventory(10, 10)
	slots, err := gpu.NewSlots(inv)
	if err != nil {
		t.Fatal(err)
	}
	first := initial("init", 2)
	first.Cores = 2
	p := pod("p", ask(first, app("app", 2)), 0)
	for name, held := range map[string][]Allocated{
		"nothing shows":                    nil,
		"the app container has its memory": {{Namespace: "ns", Name: "p", Container: "app", Slots: ids(0, 0, 1)}},
	} {
		s := State{Inventory: inv, Slots: slots, Pods: []Pod{p}, Listed: map[string]bool{"ns/p": true, "ns/new": true}, Allocated: held, PlaceUnassigned: true}
		_, err := Prefer(s, gpu.Cores, append(coreIDs(0, 0, 1), coreIDs(1, 0, 1)...), nil, 2)
		if errors.Is(err, ErrNoPod) != (held != nil) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAPodWithContainersOfEveryKind(t *testing.T) {
	for seed := range uint64(20) {
		c := newCluster(t, seed, inventory(10, 10))
		c.pods = []Pod{pod("p", ask(sidecar("side", 1), initial("init", 3), app("one", 1), app("two", 2)), 1)}
		c.mustAdmit("p")
		c.correct()
		c.want("p", []gpu.Units{0, 4}, 1)
	}
}

func TestAnInitContainerLeavesItsSlots(t *testing.T) {
	tests := map[string]struct {
		req  placement.Request
		want gpu.Units
	}{
		"the app is smaller":      {ask(initial("i", 3), app("a", 2)), 3},
		"the app is as large":     {ask(initial("i", 3), app("a", 3)), 3},
		"the app is larger":       {ask(initial("i", 2), app("a", 6)), 6},
		"two apps share them":     {ask(initial("i", 4), app("a", 2), app("b", 2)), 4},
		"a sidecar takes of them": {ask(initial("i", 4), sidecar("s", 1), app("a", 5)), 6},
		"two init containers":     {ask(initial("i", 2), initial("j", 4), app("a", 3)), 4},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(20) {
				c := newCluster(t, seed, inventory(10, 10, 10))
				c.pods = []Pod{pod("p", tc.req, 1)}
				c.mustAdmit("p")
				c.want("p", []gpu.Units{0, tc.want, 0}, 1)
			}
		})
	}
}

func TestTwoEqualPodsInTheOtherOrder(t *testing.T) {
	req := ask(app("a", 5), app("b", 3))
	c := newCluster(t, 1, inventory(8, 8))
	c.pods = []Pod{pod("first", req, 0), pod("second", req, 1)}
	c.mustAdmit("second", "first") // the kubelet lists the pod for which it calls, so no guess is wrong
	c.correct()
	c.want("first", []gpu.Units{8, 0}, 0)
	c.want("second", []gpu.Units{0, 8}, 1)
}

// An unlisted grant is an allocation of its pod once the kubelet has admitted the pod, unless the kubelet lists the
// slots at another pod.
func TestWhatIsNotListedIsAddedFromMemory(t *testing.T) {
	warm := initial("warm", 2)
	admitted := func(p Pod) Pod { p.Admitted = true; return p }
	other := Allocated{Namespace: "ns", Name: "other", Container: "a", Slots: ids(0, 0, 1)}
	warmed := Allocated{Namespace: "ns", Name: "p", Container: "warm", Slots: ids(0, 0, 1)}
	for name, tc := range map[string]struct {
		pod  Pod
		held []Allocated
		want []Allocated
	}{
		"of a pod that is admitted":          {admitted(pod("p", ask(warm))), nil, []Allocated{warmed}},
		"of one that is not yet":             {pod("p", ask(warm)), nil, nil},
		"of one that the kubelet lists":      {admitted(pod("p", ask(warm, app("a", 1)))), nil, nil},
		"of one that was made again":         {admitted(Pod{Holding: placement.Holding{Pod: placement.PodRef{Namespace: "ns", Name: "p", UID: "new"}, Request: ask(warm)}}), nil, nil},
		"the slots turn out to be another's": {admitted(pod("p", ask(warm))), []Allocated{other}, []Allocated{other}},
	} {
		given := []Attributed{{Pod: placement.PodRef{Namespace: "ns", Name: "p", UID: "p"}, Container: warm, Slots: ids(0, 0, 1)}}
		got := State{Pods: []Pod{tc.pod}, Allocated: tc.held, Attributed: given}.WithUnlisted().Allocated
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// corrections returns the corrections of Reconcile by pod name.
func corrections(c *cluster) map[string]placement.Assignment {
	out := make(map[string]placement.Assignment)
	for _, correction := range Reconcile(c.state()) {
		out[correction.Pod.Pod.Name] = correction.Actual
	}
	return out
}

// PodResources names a pod without UID. An entry for a pod that is not admitted may belong to an earlier pod of
// the same name.
func TestAPodMadeAgainIsNotTakenForTheOneBefore(t *testing.T) {
	req := ask(app("a", 8))
	c := newCluster(t, 1, inventory(8, 8, 8))
	c.pods = []Pod{pod("again", req, 0)}
	c.mustAdmit("again")
	again := pod("again", req, 1)
	again.Pod.UID = "another"
	c.pods = []Pod{again, pod("like it", req, 2)}
	if got := corrections(c); len(got) > 0 {
		t.Errorf("corrections %v, want none: the kubelet has admitted neither", got)
	}
}

// The kubelet has allocated other GPUs than planned to two equal pods, and has so far confirmed the admission
// of one of them.
func TestAPodIsNotMovedToWhereAnotherMayBe(t *testing.T) {
	req := ask(app("a", 8))
	c := newCluster(t, 1, inventory(8, 8, 8))
	c.pods = []Pod{pod("first", req, 0), pod("second", req, 1)}
	s := c.state()
	s.Allocated = []Allocated{
		{Namespace: "ns", Name: "first", Container: "a", Slots: ids(1, 0, 1, 2, 3, 4, 5, 6, 7)},
		{Namespace: "ns", Name: "second", Container: "a", Slots: ids(2, 0, 1, 2, 3, 4, 5, 6, 7)},
	}
	s.Pods[0].Admitted = true
	if got := Reconcile(s); len(got) > 0 {
		t.Errorf("corrections %v, want none: where second is will be known when it is admitted", got)
	}
	s.Pods[1].Admitted = true
	if got := Reconcile(s); len(got) != 2 {
		t.Errorf("corrections %v, want both", got)
	}
}

// A pod is on GPU 1 by plan or without a scheduler, and an equal pod is also planned there. The first pod's
// owner writes GPU 0 to its annotation.
func TestWhatAnOwnerWritesMovesNobodyElse(t *testing.T) {
	req := ask(app("a", 4))
	c := newCluster(t, 1, inventory(8, 8))
	c.pods = []Pod{pod("forged", req, 0), pod("waits", req, 1)}
	s := c.state()
	s.Allocated = []Allocated{{Namespace: "ns", Name: "forged", Container: "a", Slots: ids(1, 0, 1, 2, 3)}}
	s.Pods[0].Admitted = true
	there := s.Pods[1].Assignment
	for name, tc := range map[string]struct {
		plan *placement.Assignment
		want []string
	}{
		"planned there":     {&there, []string{"forged"}},
		"planned by nobody": {&placement.Assignment{}, []string{"forged"}},
		"as it is written":  {nil, []string{"forged", "waits"}}, // the kubelet has swapped the two
	} {
		s.Pods[0].Plan = tc.plan
		var got []string
		for _, c := range Reconcile(s) {
			got = append(got, c.Pod.Pod.Name)
		}
		slices.Sort(got)
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s: corrected (-want +got):\n%s", name, diff)
		}
	}
}

// While a pod may not be admitted yet, the kubelet's entry under its name can belong to a force-deleted pod.
func TestWhatANamesakeHoldsIsNotWrittenOfAPod(t *testing.T) {
	c := newCluster(t, 1, inventory(8, 8))
	c.pods = []Pod{pod("p", ask(app("a", 8)))}
	s := c.state()
	s.Allocated = []Allocated{{Namespace: "ns", Name: "p", Container: "a", Slots: ids(1, 0, 1, 2, 3, 4, 5, 6, 7)}}
	if got := Reconcile(s); len(got) > 0 {
		t.Errorf("corrections %v, want none before the kubelet has admitted it", got)
	}
	s.Pods[0].Admitted = true
	if got := Reconcile(s); len(got) != 1 {
		t.Errorf("corrections %v, want one", got)
	}
}

// A pod keeps its annotated GPU although an equal pod has an unused plan.
func TestAPodKeepsItsGPUWhereAnEqualOneHasAPlan(t *testing.T) {
	req := ask(app("a", 4))
	c := newCluster(t, 1, inventory(8, 8))
	c.pods = []Pod{pod("keeps", req, 0), pod("waits", req)}
	s := c.state()
	plan := pod("", req, 1).Assignment
	s.Pods[1].Plan = &plan
	s.Listed = map[string]bool{"ns/keeps": true}
	if got, err := Prefer(s, gpu.Memory, slices.Concat(ids(1, 0, 1, 2, 3), ids(0, 0, 1, 2, 3)), nil, 4); err != nil || !slices.Equal(got, ids(0, 0, 1, 2, 3)) {
		t.Errorf("Prefer = %v, %v; want the GPU that is written of the pod", got, err)
	}
}

// A pod runs on a waiting pod's GPU, and its annotation names a GPU that is gone.
func TestAPlanOnAGPUThatIsGoneIsNobodys(t *testing.T) {
	req := ask(app("a", 4))
	c := newCluster(t, 1, inventory(8, 8))
	c.pods = []Pod{pod("runs", req, 7), pod("waits", req, 0), pod("lost", req, 7)}
	s := c.state()
	s.Pods[0].Admitted = true
	s.Allocated = []Allocated{{Namespace: "ns", Name: "runs", Container: "a", Slots: ids(0, 0, 1, 2, 3)}}
	var got []string
	for _, c := range Reconcile(s) {
		got = append(got, fmt.Sprint(c.Pod.Pod, " ", c.Actual.Devices(), " leaving ", c.Actual.Leaving))
	}
	if diff := cmp.Diff([]string{"ns/runs [GPU-00000000] leaving []"}, got); diff != "" {
		t.Errorf("corrections (-want +got):\n%s", diff)
	}
	s.Listed = map[string]bool{"ns/waits": true}
	available := slices.Concat(ids(0, 4, 5, 6, 7), ids(1, 0, 1, 2, 3))
	if got, err := Prefer(s, gpu.Memory, available, nil, 4); err != nil || !slices.Equal(got, ids(0, 4, 5, 6, 7)) {
		t.Errorf("Prefer = %v, %v; want what is left of the GPU that is written of the pod", got, err)
	}
}

func TestPodsThatCannotBeToldApartAreRefused(t *testing.T) {
	other := ask(app("a", 4))
	other.ExclusiveGroup = placement.Group{Namespace: "ns", Name: "x"}
	for name, tc := range map[string]struct {
		pods    []Pod
		wantErr bool
	}{
		"interchangeable":         {[]Pod{pod("p", ask(app("a", 4)), 0), pod("q", ask(app("a", 4)), 1)}, false},
		"not interchangeable":     {[]Pod{pod("p", ask(app("a", 4)), 0), pod("q", other, 1)}, true},
		"on the same GPU":         {[]Pod{pod("p", ask(app("a", 4)), 0), pod("q", other, 0)}, false},
		"neither has been placed": {[]Pod{pod("p", ask(app("a", 4))), pod("q", other)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 1, inventory(8, 8))
			c.place = true
			c.pods = tc.pods
			s := c.state()
			available := slices.Concat(ids(0, 0, 1, 2, 3, 4, 5, 6, 7), ids(1, 0, 1, 2, 3, 4, 5, 6, 7))
			s.Listed = map[string]bool{"ns/p": true}
			if _, err := Prefer(s, gpu.Memory, available, nil, 4); err != nil {
				t.Errorf("Prefer: %v; the kubelet has told that it is p", err)
			}
			s.Listed = nil
			_, err := Prefer(s, gpu.Memory, available, nil, 4)
			if (err != nil) != tc.wantErr || err != nil && !strings.Contains(reasons.Error(err), "both pod ns/p and pod ns/q match") {
				t.Errorf("Prefer: %v, want an error: %v", err, tc.wantErr)
			}
		})
	}
}

// The plugin confuses equal pods if PodResources does not answer, or lists all pods after the kubelet's start.
// Each pod still has all its slots on one GPU, no GPU has more allocations than planned, and Reconcile corrects
// the annotations.
func TestTwoEqualPodsTakenForOneAnother(t *testing.T) {
	req := ask(app("a", 5), app("b", 3))
	c := newCluster(t, 1, inventory(8, 8, 8))
	c.pods = []Pod{pod("first", req, 0), pod("second", req, 1), pod("third", req, 2)}
	c.kubelet.prefer = func(r gpu.Resource, available, must []gpu.SlotID, size int) ([]gpu.SlotID, error) {
		s := c.state()
		s.Listed = nil
		return Prefer(s, r, available, must, size)
	}
	c.mustAdmit("third") // the kubelet requests 5, and first is the likeliest pod
	if diff := cmp.Diff([]gpu.Units{8, 0, 0}, c.on("third")); diff != "" {
		t.Errorf("what third holds (-want +got):\n%s", diff)
	}
	want := map[string]placement.Assignment{
		"third": {Shares: []placement.Share{{Device: uuid(0), Units: 8}}, Leaving: []gpu.UUID{uuid(2)}},
		"first": {Shares: []placement.Share{{Device: uuid(2), Units: 8}}, Leaving: []gpu.UUID{uuid(0)}},
	}
	if diff := cmp.Diff(want, corrections(c)); diff != "" {
		t.Errorf("corrections (-want +got):\n%s", diff)
	}
	for _, name := range []string{"first", "third"} { // one annotation is written, and then the plugin ends
		alone := *c
		alone.pods = slices.Clone(c.pods)
		for _, correction := range Reconcile(c.state()) {
			if correction.Pod.Pod.Name == name {
				alone.write(correction)
			}
		}
		alone.correct()
		total := make([]gpu.Units, 3)
		for _, p := range alone.pods {
			total[alone.written(p.Pod.Name)[0]] += 8
			if p.Assignment.Leaving != nil {
				t.Errorf("%s leaves %v for ever", p.Pod, p.Assignment.Leaving)
			}
		}
		if name == "first" && !slices.Equal(total, []gpu.Units{8, 8, 8}) {
			t.Errorf("with %s written first, the GPUs are promised %v", name, total)
		}
	}
	c.mustAdmit("second", "first")
	c.correct()
	c.want("third", []gpu.Units{8, 0, 0}, 0)
	for _, name := range []string{"first", "second"} {
		at := c.written(name)[0]
		want := make([]gpu.Units, 3)
		want[at] = 8
		c.want(name, want, at)
	}
}

func TestPodsThatNoSchedulerPlaced(t *testing.T) {
	planned, stray := ask(app("a", 6)), ask(app("a", 4))
	t.Run("are placed beside what is planned", func(t *testing.T) {
		c := newCluster(t, 1, inventory(8, 8))
		c.pods = []Pod{pod("planned", planned, 0), pod("stray", stray)}
		c.mustAdmit("stray", "planned")
		c.correct()
		c.want("stray", []gpu.Units{0, 4}, 1)
		c.want("planned", []gpu.Units{6, 0}, 0)
	})
	t.Run("are refused when there is no room", func(t *testing.T) {
		c := newCluster(t, 1, inventory(8))
		c.pods = []Pod{pod("planned", planned, 0), pod("stray", stray)}
		err := c.admit("stray")
		if err == nil || !strings.Contains(reasons.Error(err), "pod ns/stray needs 4 GiB on one GPU; free: GPU0 2 (2 GiB in all)") {
			t.Errorf("admission: %v, want that there are 2 GiB", err)
		}
		c.mustAdmit("planned")
	})
	t.Run("are refused where they are not wanted", func(t *testing.T) {
		c := newCluster(t, 1, inventory(8, 8))
		c.place = false
		c.pods = []Pod{pod("planned", planned, 0), pod("stray", stray), pod("like planned", planned)}
		for _, name := range []string{"stray", "like planned"} {
			if err := c.admit(name); err == nil || !strings.Contains(reasons.Error(err), "was not placed by gpumem's scheduler") {
				t.Errorf("admission of %s: %v, want that it was not placed", name, err)
			}
		}
		c.mustAdmit("planned")
		c.want("planned", []gpu.Units{6, 0}, 0)
	})
	t.Run("give way to slots that a pod forgotten by the API server holds", func(t *testing.T) {
		c := newCluster(t, 1, inventory(5, 8))
		c.pods = []Pod{pod("gone", ask(app("a", 3)), 0), pod("stray", stray)}
		c.mustAdmit("gone")
		c.pods = c.pods[1:]
		c.mustAdmit("stray")
		c.correct()
		c.want("stray", []gpu.Units{0, 4}, 1)
	})
}

func TestAPodOverTwoGPUs(t *testing.T) {
	c := newCluster(t, 1, inventory(4, 4, 4))
	req := ask(sidecar("s", 2), app("a", 6))
	req.Count = 2
	c.pods = []Pod{pod("p", req, 0, 2)}
	c.mustAdmit("p")
	c.correct()
	c.want("p", []gpu.Units{4, 0, 4}, 0, 2)
	if _, err := Admit(c.state(), Grant{Devices: c.inv.Devices[:1], SlotsPerDevice: 6}); err == nil {
		t.Error("a grant of one GPU is admitted for a pod of two that has been served")
	}
}

func cored(c placement.Container, cores int) placement.Container {
	c.Cores = cores
	return c
}

func TestMemoryAndCoresAreOfTheSameGPU(t *testing.T) {
	tests := map[string]placement.Request{
		"one container":                         ask(cored(app("a", 2), 40)),
		"a container of each kind":              ask(cored(sidecar("s", 1), 10), cored(initial("i", 3), 20), cored(app("a", 2), 40)),
		"an init container with more":           ask(cored(initial("i", 3), 60), cored(app("a", 2), 40)),
		"an init container with memory alone":   ask(initial("i", 3), cored(app("a", 4), 40)),
		"cores of the second container alone":   ask(app("a", 2), cored(app("b", 2), 40)),
		"cores of the first and third":          ask(cored(app("a", 1), 20), app("b", 2), cored(app("c", 1), 20)),
		"an init container that asks for cores": ask(cored(initial("i", 2), 50), app("a", 2)),
	}
	for name, req := range tests {
		for _, count := range []int{1, 2} {
			t.Run(fmt.Sprint(name, ", over ", count), func(t *testing.T) {
				req := req
				req.Count = count
				if count == 2 {
					req.Containers = req.Containers.Each(func(c *placement.Container) { c.Units *= 2 })
				}
				for seed := range uint64(40) { // a different order of the kubelet each time
					c := newCluster(t, seed, inventory(8, 8, 8))
					devices := []int{1, 2}[:count]
					c.pods = []Pod{pod("p", req, devices...), pod("stray", ask(cored(app("a", 1), 40)))}
					if count == 2 && slices.ContainsFunc(req.Containers.All(), func(c placement.Container) bool { return c.Kind == placement.Init }) {
						continue // see pkg/kube/api
					}
					c.mustAdmit("p")
					for i, units := range c.slotsOn(gpu.Memory, "p") {
						cores := c.slotsOn(gpu.Cores, "p")[i]
						if on := slices.Contains(devices, i); (units > 0) != on || (cores > 0) != on {
							t.Fatalf("seed %d: %d units and %d%% of GPU %d", seed, units, cores, i)
						}
					}
					if got := Reconcile(c.state()); len(got) > 0 && slices.ContainsFunc(got, func(c Correction) bool { return c.Pod.Pod.Name == "p" }) {
						t.Fatalf("seed %d: %v is to be corrected", seed, got)
					}
				}
			})
		}
	}
}

func TestStraysGetMemoryAndCoresOfOneGPU(t *testing.T) {
	for seed := range uint64(40) {
		c := newCluster(t, seed, inventory(4, 8, 8))
		c.pods = []Pod{
			pod("planned", ask(cored(app("a", 1), 60)), 0), // the memory would fit
			pod("stray", ask(cored(app("a", 2), 60))),
		}
		c.mustAdmit("stray", "planned")
		c.correct()
		c.want("stray", []gpu.Units{0, 2, 0}, 1)
		if diff := cmp.Diff([]gpu.Units{0, 60, 0}, c.slotsOn(gpu.Cores, "stray")); diff != "" {
			t.Errorf("cores (-want +got):\n%s", diff)
		}
	}
}

func TestCoresOfAnotherGPUThanMemoryAreRefused(t *testing.T) {
	c := newCluster(t, 1, inventory(4, 4))
	c.pods = []Pod{pod("p", ask(cored(app("a", 2), 40)), 0)}
	s := c.state()
	s.Allocated = []Allocated{{"ns", "p", "a", ids(0, 0, 1)}}
	grant := Grant{Resource: gpu.Cores, Devices: c.inv.Devices[1:], SlotsPerDevice: 40}
	if _, err := Admit(s, grant); err == nil || !strings.Contains(reasons.Error(err), "pod ns/p is on GPU [GPU-00000000], and the kubelet took slots of [GPU-00000001]") {
		t.Errorf("Admit: %v, want that p is elsewhere", err)
	}
	grant.Devices = c.inv.Devices[:1]
	if _, err := Admit(s, grant); err != nil {
		t.Errorf("Admit: %v", err)
	}
	grant.SlotsPerDevice = 30
	if _, err := Admit(s, grant); !errors.Is(err, ErrNoPod) {
		t.Errorf("Admit: %v, want that nobody asks for 30%% of cores", err)
	}
}

func TestAPodWhoseGPUHasNoRoomLeft(t *testing.T) {
	c := newCluster(t, 1, inventory(4, 8))
	c.pods = []Pod{pod("forgotten", ask(app("a", 3)), 0), pod("p", ask(app("a", 2)), 0)}
	c.mustAdmit("forgotten")
	c.pods = c.pods[1:]
	t.Run("is refused where only the scheduler places", func(t *testing.T) {
		c.place = false
		err := c.admit("p")
		if err == nil || !strings.Contains(reasons.Error(err), "pod ns/p needs 2 GiB on GPU [GPU-00000000], and the kubelet has less left") {
			t.Errorf("admission: %v", err)
		}
	})
	t.Run("is placed on another", func(*testing.T) {
		c.place = true
		c.mustAdmit("p")
		c.correct()
		c.want("p", []gpu.Units{0, 2}, 1)
	})
}

func TestAContainerStaysWithItsPod(t *testing.T) {
	c := newCluster(t, 1, inventory(4, 8))
	c.pods = []Pod{pod("p", ask(app("a", 2), app("b", 3)), 0), pod("q", ask(app("a", 3)), 1)}
	s := c.state()
	s.Allocated = []Allocated{{Namespace: "ns", Name: "p", Container: "a", Slots: ids(0, 0, 1)}}
	available := slices.Concat(ids(0, 2, 3), ids(1, 0, 1, 2, 3, 4, 5, 6, 7))
	if got, err := Prefer(s, gpu.Memory, available, nil, 3); err == nil {
		t.Errorf("Prefer = %v for a container whose pod's GPU has 2 left, want an error", got)
	}
	g, err := Resolve(s, gpu.Memory, ids(1, 0, 1, 2))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Admit(s, g); err != nil {
		t.Errorf("Admit: %v, want that q may have it", err)
	}
	s.Pods = s.Pods[:1]
	if _, err := Admit(s, g); err == nil || !strings.Contains(reasons.Error(err), "pod ns/p is on GPU [GPU-00000000], and the kubelet took slots of [GPU-00000001]") {
		t.Errorf("Admit: %v, want that p is elsewhere", err)
	}
}

func TestPreferErrors(t *testing.T) {
	c := newCluster(t, 1, inventory(4, 4))
	c.pods = []Pod{pod("p", ask(app("a", 2)), 0)}
	all := slices.Concat(ids(0, 0, 1, 2, 3), ids(1, 0, 1, 2, 3))
	tests := map[string]struct {
		available, must []gpu.SlotID
		size            int
		want            string
		noPod           bool
	}{
		"no pod asks for that much":         {all, nil, 3, "no pod that waits on this node asks for this amount", true},
		"nothing is asked for":              {all, nil, 0, "asks for 0 slots", false},
		"less than nothing is asked for":    {all, nil, -1, "asks for -1 slots", false},
		"more must be in than is asked for": {all, ids(0, 0, 1), 1, "and names 2", false},
		"what must be in is unknown":        {all, ids(7, 0), 2, "does not have", false},
		"what must be in is not available":  {ids(0, 1, 2), ids(0, 0), 2, "the pod's init containers use GPU [GPU-00000000]", false},
		"what must be in has no room left":  {ids(0, 0), ids(0, 0), 2, "has no 2 GiB free", false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := Prefer(c.state(), gpu.Memory, tc.available, tc.must, tc.size)
			if err == nil || !strings.Contains(reasons.Error(err), tc.want) || errors.Is(err, ErrNoPod) != tc.noPod {
				t.Errorf("Prefer = %v, %v, want an error with %q", got, err, tc.want)
			}
		})
	}
	t.Run("a slot of a GPU that has gone is passed over", func(t *testing.T) {
		got, err := Prefer(c.state(), gpu.Memory, slices.Concat(ids(7, 0, 1), []gpu.SlotID{"?"}, ids(0, 3, 1, 2)), nil, 2)
		if diff := cmp.Diff(ids(0, 1, 2), got); diff != "" || err != nil {
			t.Errorf("Prefer: %v (-want +got):\n%s", err, diff)
		}
	})
}

// The kubelet frees slots a moment after a force-deleted pod has left the API server. Until then, the kubelet
// cannot allocate them, whatever the annotations show.
func TestAPodWhoseGPUTheKubeletHasNotFreedYetGoesToAnother(t *testing.T) {
	c := newCluster(t, 1, inventory(4, 4))
	c.pods = []Pod{pod("p", ask(app("a", 2)), 0), pod("q", ask(app("b", 1)), 0)}
	got, err := Prefer(c.state(), gpu.Memory, slices.Concat(ids(0, 3), ids(1, 0, 1, 2, 3)), nil, 2)
	if diff := cmp.Diff(ids(1, 0, 1), got); diff != "" || err != nil {
		t.Errorf("Prefer: %v (-want +got):\n%s", err, diff)
	}
}

// The kubelet can lose track of slots that it has just allocated, and offer them again.
func TestSlotsThatAnotherContainerHoldsAreNotTaken(t *testing.T) {
	c := newCluster(t, 1, inventory(6))
	c.pods = []Pod{pod("p", ask(app("a", 3)), 0), pod("q", ask(app("a", 2)), 0)}
	s := c.state()
	s.Allocated = []Allocated{{"ns", "p", "a", ids(0, 0, 1, 2)}}
	got, err := Prefer(s, gpu.Memory, ids(0, 0, 1, 2, 3, 4, 5), nil, 2)
	if diff := cmp.Diff(ids(0, 3, 4), got); diff != "" || err != nil {
		t.Errorf("Prefer: %v (-want +got):\n%s", err, diff)
	}
	for name, tc := range map[string]struct {
		ids     []gpu.SlotID
		wantErr string
	}{
		"free": {ids(0, 3, 4), ""},
		"held": {ids(0, 2, 3), "slot 00000000-2 belongs to container a of pod ns/p"},
	} {
		t.Run(name, func(t *testing.T) {
			g, err := Resolve(s, gpu.Memory, tc.ids)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Admit(s, g); (err == nil) != (tc.wantErr == "") || err != nil && reasons.Error(err) != tc.wantErr {
				t.Errorf("Admit: %v, want %q", err, tc.wantErr)
			}
		})
	}
}

func TestPreferGuesses(t *testing.T) {
	req := ask(app("a", 2))
	younger := func(p Pod) Pod { p.Created = start.Add(time.Minute); return p }
	admitted := func(p Pod) Pod { p.Admitted = true; return p }
	tests := map[string]struct {
		pods  []Pod
		held  []Allocated
		known []string
		want  int // index of the GPU
	}{
		"the oldest":                         {pods: []Pod{younger(pod("a", req, 0)), pod("b", req, 1)}, want: 1},
		"among the oldest, by name":          {pods: []Pod{pod("b", req, 1), pod("a", req, 0)}, want: 0},
		"the one that the kubelet lists":     {pods: []Pod{pod("a", req, 0), pod("b", req, 1)}, known: []string{"ns/b"}, want: 1},
		"the one that is not admitted":       {pods: []Pod{admitted(pod("a", req, 0)), pod("b", req, 1)}, known: []string{"ns/a", "ns/b"}, want: 1},
		"an admitted one if there is no one": {pods: []Pod{admitted(pod("a", req, 1))}, want: 1},
		"the one in the middle of admission": {
			pods: []Pod{pod("a", req, 0), younger(pod("b", ask(app("x", 1), app("a", 2)), 1))},
			held: []Allocated{{"ns", "b", "x", ids(1, 0)}}, want: 1,
		},
		"the one that lacks something": {
			pods: []Pod{pod("a", req, 0), younger(pod("b", req, 1))},
			held: []Allocated{{"ns", "a", "a", ids(0, 0, 1)}}, want: 1,
		},
		"where the pod is and not where it was to be": {
			pods: []Pod{pod("a", ask(app("x", 1), app("a", 2)), 0)},
			held: []Allocated{{"ns", "a", "x", ids(1, 0)}}, want: 1,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 1, inventory(4, 4))
			c.pods = tc.pods
			s := c.state()
			s.Allocated, s.Listed = tc.held, make(map[string]bool)
			for _, k := range tc.known {
				s.Listed[k] = true
			}
			got, err := Prefer(s, gpu.Memory, slices.Concat(ids(1, 3, 2), ids(0, 3, 2)), nil, 2)
			if diff := cmp.Diff(ids(tc.want, 2, 3), got); diff != "" || err != nil {
				t.Errorf("Prefer: %v (-want +got):\n%s", err, diff)
			}
		})
	}
}

func TestResolve(t *testing.T) {
	inv := inventory(4, 4, 4)
	inv.Devices[2].Status = gpu.Unhealthy("XID 79")
	slots, err := gpu.NewSlots(inv)
	if err != nil {
		t.Fatal(err)
	}
	s := State{Inventory: inv, Slots: slots, Allocated: []Allocated{{Namespace: "ns", Name: "p", Container: "a", Slots: slices.Concat(ids(1, 3, 6), ids(2, 7), ids(9, 0))}}}
	tests := map[string]struct {
		ids     []gpu.SlotID
		want    []int // GPUs
		each    int
		wantErr string
	}{
		"slots of one GPU":              {ids: ids(1, 3, 0), want: []int{1}, each: 2},
		"equal parts, by index":         {ids: slices.Concat(ids(1, 3, 0), ids(0, 1, 2)), want: []int{0, 1}, each: 2},
		"no slots":                      {wantErr: "no slots are named"},
		"unequal parts":                 {ids: slices.Concat(ids(1, 3), ids(0, 1, 2)), wantErr: "of several GPUs in unequal parts (GPU0 2, GPU1 1)"},
		"a slot twice":                  {ids: ids(1, 3, 3), wantErr: `slot "00000001-3" is named twice`},
		"an unhealthy GPU":              {ids: ids(2, 0), wantErr: "GPU 2 (GPU-00000002) is not healthy: XID 79"},
		"a GPU that the node has not":   {ids: ids(9, 0), wantErr: "does not have"},
		"a slot past the end of a GPU":  {ids: ids(1, 4), wantErr: "past the end"},
		"one that a container holds":    {ids: ids(1, 3, 6), want: []int{1}, each: 2},
		"one of an unhealthy GPU":       {ids: ids(2, 7), wantErr: "not healthy"},
		"one of a GPU that is gone":     {ids: ids(9, 0), wantErr: "does not have"},
		"something that is not an ID":   {ids: []gpu.SlotID{"nvidia0"}, wantErr: "not of the form"},
		"slots of the other resource":   {ids: coreIDs(1, 4), wantErr: `slot "00000001-c4" is of the other resource`},
		"an unhealthy GPU among others": {ids: slices.Concat(ids(0, 0), ids(2, 0)), wantErr: "not healthy"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := Resolve(s, gpu.Memory, tc.ids)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(reasons.Error(err), tc.wantErr) {
					t.Errorf("Resolve = %v, %v, want an error with %q", got, err, tc.wantErr)
				}
				return
			}
			var want Grant
			for _, i := range tc.want {
				want.Devices = append(want.Devices, inv.Devices[i])
			}
			want.SlotsPerDevice, want.Slots = tc.each, tc.ids
			if diff := cmp.Diff(want, got); diff != "" || err != nil {
				t.Errorf("Resolve: %v (-want +got):\n%s", err, diff)
			}
		})
	}
}

// Among equal containers of a pod, the call is for the first without an allocation, even while the kubelet does
// not answer.
func TestAdmitSaysForWhichContainer(t *testing.T) {
	c := newCluster(t, 1, inventory(8, 8))
	one, two, three := app("one", 2), app("two", 2), app("three", 3)
	one.Cores, two.Cores = 20, 20
	p := pod("p", ask(one, two, three), 0)
	c.pods = []Pod{p}
	memory, cores := ids(0, 0, 1), coreIDs(0, 0, 1)
	given := func(c placement.Container, slots []gpu.SlotID) Attributed {
		return Attributed{Pod: p.Pod, Container: c, Slots: slots}
	}
	for name, tc := range map[string]struct {
		before []Attributed
		want   string
	}{
		"nothing was given":          {nil, "one"},
		"the first has its memory":   {[]Attributed{given(one, memory)}, "two"},
		"the first has its cores":    {[]Attributed{given(one, cores)}, "one"},
		"another was given as much":  {[]Attributed{{Pod: placement.PodRef{Namespace: "ns", Name: "q", UID: "q"}, Container: one, Slots: memory}}, "one"},
		"the last was given its own": {[]Attributed{given(three, ids(0, 5, 6, 7))}, "one"},
	} {
		s := c.state()
		s.Attributed = tc.before
		possible, err := Admit(s, Grant{Resource: gpu.Memory, Devices: c.inv.Devices[:1], SlotsPerDevice: 2, Slots: ids(0, 2, 3)})
		if err != nil || possible[0].Container.Name != tc.want || possible[0].Pod != p.Pod {
			t.Errorf("%s: %v, %v; want %s", name, possible, err, tc.want)
		}
	}
}

// Among pods that request the same amount, Admit returns the likeliest first.
func TestAdmitSaysForWhichPod(t *testing.T) {
	c := newCluster(t, 1, inventory(8, 8))
	two := ask(app("a", 2), app("b", 2))
	admitted := func(p Pod) Pod { p.Admitted = true; return p }
	begun := func(name string) []Allocated {
		return []Allocated{{Namespace: "ns", Name: name, Container: "a", Slots: ids(0, 0, 1)}}
	}
	given := func(p Pod, container int) Attributed {
		return Attributed{Pod: p.Pod, Container: p.Request.Containers.All()[container], Slots: ids(0, 4, 5)}
	}
	for name, tc := range map[string]struct {
		old, young Pod
		held       []Allocated
		given      []Attributed
		listed     map[string]bool
		want       string
	}{
		"of equals the older":           {old: pod("old", two, 0), young: pod("young", two, 0), want: "old"},
		"one that is to have these":     {old: pod("old", two, 1), young: pod("young", two, 0), want: "young"},
		"one that has begun":            {old: pod("old", two, 0), young: pod("young", two, 1), held: begun("young"), want: "young"},
		"one that was not given all":    {old: pod("old", two, 0), young: pod("young", two, 1), given: []Attributed{given(pod("old", two), 0), given(pod("old", two), 1)}, want: "young"},
		"one that may lack a container": {old: pod("old", two, 0), young: pod("young", two, 0), given: []Attributed{given(pod("old", two), 0)}, want: "old"},
		"one that is not admitted":      {old: admitted(pod("old", two, 0)), young: pod("young", two, 1), want: "young"},
		"one that the kubelet lists":    {old: pod("old", two, 0), young: pod("young", two, 1), listed: map[string]bool{"ns/young": true}, want: "young"},
	} {
		tc.young.Created = start.Add(time.Second)
		for _, pods := range [][]Pod{{tc.old, tc.young}, {tc.young, tc.old}} {
			s := State{Inventory: c.inv, Slots: c.slots, Pods: pods, Allocated: tc.held, Attributed: tc.given, Listed: tc.listed}
			possible, err := Admit(s, Grant{Resource: gpu.Memory, Devices: c.inv.Devices[:1], SlotsPerDevice: 2, Slots: ids(0, 2, 3)})
			if err != nil || possible[0].Pod.Name != tc.want {
				t.Errorf("%s: %v, %v; want %s", name, possible, err, tc.want)
			}
		}
	}
}

func TestAdmitRefuses(t *testing.T) {
	c := newCluster(t, 1, inventory(8, 8))
	two := ask(app("a", 4))
	two.Count = 2
	c.pods = []Pod{pod("p", two, 0, 1)}
	one := Grant{Devices: c.inv.Devices[:1], SlotsPerDevice: 4}
	if _, err := Admit(c.state(), one); err == nil || !strings.Contains(reasons.Error(err), "pod ns/p is to have 2 GPUs, and the kubelet took slots of 1") {
		t.Errorf("Admit of one GPU for a pod of two: %v", err)
	}
	if _, err := Admit(c.state(), Grant{Devices: c.inv.Devices, SlotsPerDevice: 2}); err != nil {
		t.Errorf("Admit of both: %v", err)
	}
	if _, err := Admit(c.state(), Grant{Devices: c.inv.Devices, SlotsPerDevice: 3}); !errors.Is(err, ErrNoPod) {
		t.Errorf("Admit of what nobody asks for: %v, want ErrNoPod", err)
	}
	c.pods = append(c.pods, pod("later", ask(app("a", 4)), 0))
	s := c.state()
	s.Listed = map[string]bool{"ns/p": true}
	if _, err := Admit(s, one); err == nil {
		t.Error("Admit of what only a pod may have that the kubelet does not list yet: want an error")
	}
}

// The call is for a listed pod even if it is already admitted: the kubelet has lost its records.
func TestPreferIsForAPodThatTheKubeletLists(t *testing.T) {
	c := newCluster(t, 1, inventory(8, 8))
	again, fresh := pod("again", ask(app("a", 4)), 1), pod("new", ask(app("a", 4)), 0)
	again.Admitted = true
	c.pods = []Pod{fresh, again}
	s := c.state()
	for name, want := range map[string]gpu.SlotID{"ns/again": ids(1, 0)[0], "ns/new": ids(0, 0)[0], "ns/other": ids(0, 0)[0]} {
		s.Listed = map[string]bool{name: true}
		got, err := Prefer(s, gpu.Memory, slices.Concat(ids(0, 0, 1, 2, 3), ids(1, 0, 1, 2, 3)), nil, 4)
		if err != nil || got[0] != want {
			t.Errorf("where %s is listed, Prefer = %v, %v, want those from %s on", name, got, err, want)
		}
	}
	// Without a list, the call is for the pod that is not admitted, although that pod already has a grant of
	// the same amount.
	s.Listed, s.Attributed = nil, []Attributed{{Pod: fresh.Pod, Container: fresh.Request.Containers.All()[0], Slots: ids(0, 4, 5, 6, 7)}}
	if got, err := Prefer(s, gpu.Memory, slices.Concat(ids(0, 0, 1, 2, 3), ids(1, 0, 1, 2, 3)), nil, 4); err != nil || got[0] != ids(0, 0)[0] {
		t.Errorf("Prefer = %v, %v, want those of the pod that is not admitted", got, err)
	}
}

// The preferred slots include the kubelet's required ones, whatever their positions in the list of free slots.
func TestPreferKeepsWhatInitContainersLeft(t *testing.T) {
	c := newCluster(t, 1, inventory(8, 8))
	c.pods = []Pod{pod("p", ask(initial("warm", 2), app("a", 4)), 0)}
	for _, must := range [][]gpu.SlotID{ids(0, 6, 7), ids(0, 0, 1), ids(0, 7, 3)} {
		available := slices.Concat(ids(1, 0, 1, 2, 3, 4, 5, 6, 7), ids(0, 0, 1, 2, 3, 4, 5, 6, 7))
		got, err := Prefer(c.state(), gpu.Memory, available, must, 4)
		if err != nil {
			t.Errorf("%v: %v", must, err)
		}
		c.checkPreference(got, available, must, 4)
	}
}

// Prefer may use the last free slots of a GPU.
func TestPreferTakesTheLast(t *testing.T) {
	c := newCluster(t, 1, inventory(8, 8))
	last := slices.Concat(ids(0, 1, 3, 5, 7), ids(1, 0, 1, 2))
	for name, tc := range map[string]struct {
		pod       Pod
		available []gpu.SlotID
		must      []gpu.SlotID
	}{
		"of its GPU":                 {pod("p", ask(app("a", 4)), 0), last, nil},
		"of all that are left":       {pod("p", ask(app("a", 4)), 0), last, ids(0, 1, 3, 5, 7)},
		"of a GPU that it is to get": {pod("p", ask(app("a", 4))), last, nil},
	} {
		c.pods, c.place = []Pod{tc.pod}, true
		s := c.state()
		got, err := Prefer(s, gpu.Memory, tc.available, tc.must, 4)
		if diff := cmp.Diff(ids(0, 1, 3, 5, 7), slices.Sorted(slices.Values(got))); diff != "" || err != nil {
			t.Errorf("%s: %v, slots (-want +got):\n%s", name, err, diff)
		}
		if _, err := Prefer(s, gpu.Memory, tc.available[1:], nil, 4); err == nil {
			t.Errorf("%s: slots are preferred that are not there", name)
		}
		for _, size := range []int{0, -1} {
			if got, err := Prefer(s, gpu.Memory, tc.available, nil, size); err == nil {
				t.Errorf("%s: Prefer of %d = %v, want an error", name, size, got)
			}
		}
	}
}

// A pod without slots has no actual assignment.
func TestActualOfAPodThatWaits(t *testing.T) {
	c := newCluster(t, 1, inventory(8, 8))
	if diff := cmp.Diff(placement.Assignment{}, Actual(c.state(), pod("p", ask(app("a", 4)), 0))); diff != "" {
		t.Errorf("Actual (-want +got):\n%s", diff)
	}
}

// A pod without an assignment gets a GPU on which the kubelet has enough free slots. This applies to a pod with
// an init container and to a pod with cores, but not to a pod with both (unseen).
func TestPreferPlacesWhereTheKubeletHasEnough(t *testing.T) {
	c := newCluster(t, 1, inventory(8, 8))
	c.place = true
	cores := app("a", 4)
	cores.Cores = 20
	for name, req := range map[string]placement.Request{"an init container": ask(initial("warm", 4), app("a", 4)), "cores": ask(cores)} {
		c.pods = []Pod{pod("p", req)}
		got, err := Prefer(c.state(), gpu.Memory, slices.Concat(ids(0, 0, 1, 2), ids(1, 0, 1, 2, 3)), nil, 4)
		if diff := cmp.Diff(ids(1, 0, 1, 2, 3), got); diff != "" || err != nil {
			t.Errorf("with %s, Prefer: %v (-want +got):\n%s", name, err, diff)
		}
	}
}

// An unlisted allocation of an init container affects only its own pod.
func TestPreferKnowsWhoseInitContainerWasServed(t *testing.T) {
	warm, a := initial("warm", 2), app("a", 2)
	warm.Cores, a.Cores = 20, 20
	other := warm
	other.Cores = 30
	seen := pod("seen", ask(app("a", 2)))
	c := newCluster(t, 1, inventory(8, 8))
	p := pod("p", ask(warm, a))
	c.place = true
	for _, pods := range [][]Pod{{p}, {pod("q", ask(other, a)), p}, {p, pod("q", ask(other, a))}, {seen, p}} {
		c.pods = pods
		s := c.state()
		s.Listed = map[string]bool{"ns/p": true}
		s.Attributed = []Attributed{{Pod: p.Pod, Container: warm, Slots: ids(1, 0, 1)}}
		var available []gpu.SlotID
		for n := range 40 {
			available = append(available, coreIDs(0, n)[0], coreIDs(1, n)[0])
		}
		got, err := Prefer(s, gpu.Cores, available, nil, 20)
		if err != nil || !strings.HasPrefix(string(got[0]), "00000001-c") {
			t.Errorf("beside %d pods, Prefer = %v, %v, want cores of the GPU that has the memory", len(pods)-1, got, err)
		}
	}
}

// An unlisted container with memory and cores becomes one entry. A container with only cores becomes no entry.
func TestWhatIsNotListedIsOneEntryOfAContainer(t *testing.T) {
	p := pod("p", ask(initial("warm", 2), initial("next", 2), initial("cores", 0)))
	p.Admitted = true
	given := func(container int, slots []gpu.SlotID) Attributed {
		return Attributed{Pod: p.Pod, Container: p.Request.Containers.All()[container], Slots: slots}
	}
	s := State{Pods: []Pod{p}, Attributed: []Attributed{
		given(0, ids(0, 0, 1)), given(1, ids(0, 2, 3)), given(2, coreIDs(0, 7)), given(1, coreIDs(0, 2)), given(0, coreIDs(0, 1)),
	}}
	want := []Allocated{
		{Namespace: "ns", Name: "p", Container: "warm", Slots: slices.Concat(ids(0, 0, 1), coreIDs(0, 1))},
		{Namespace: "ns", Name: "p", Container: "next", Slots: slices.Concat(ids(0, 2, 3), coreIDs(0, 2))},
	}
	if diff := cmp.Diff(want, s.WithUnlisted().Allocated); diff != "" {
		t.Errorf("allocated (-want +got):\n%s", diff)
	}
}
