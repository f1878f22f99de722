package grants

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/zap"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/node/checkpoint"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
	"github.com/gpumem/gpumem/pkg/node/plugintest"
)

// grant returns a grant of slots to a container of pod ns/NAME.
func grant(name, container string, level gpu.Enforcement, slots ...gpu.SlotID) Grant {
	return Grant{
		Namespace: "ns", Pod: name, UID: "uid-" + name, Container: container, Level: level, Slots: slots,
		Response: &pluginapi.ContainerAllocateResponse{Envs: map[string]string{"LEVEL": string(level)}},
	}
}

func initial(g Grant) Grant {
	g.Init = true
	return g
}

func held(name, container string, slots ...gpu.SlotID) allocation.Allocated {
	return allocation.Allocated{Namespace: "ns", Name: name, Container: container, Slots: slots}
}

// listing returns the state of a node with two GPUs and the kubelet's list of containers.
func listing(list ...allocation.Allocated) allocation.State {
	inv := gpu.Inventory{UnitMiB: 1024, Devices: []gpu.Device{{UUID: "GPU-aaaaaaaa", Allocatable: 8}, {UUID: "GPU-bbbbbbbb", Index: 1, Allocatable: 8}}}
	slots, err := gpu.NewSlots(inv)
	if err != nil {
		panic(err)
	}
	return allocation.State{Inventory: inv, Slots: slots, Allocated: list}
}

// loaded returns the table of a new process.
func loaded(store checkpoint.Store, former string) *Table {
	t := NewTable(store, former, zap.NewNop())
	if err := t.Load(); err != nil {
		panic(err)
	}
	return t
}

func levelOf(t *Table, h allocation.Allocated) gpu.Enforcement {
	g, _ := t.Find(h)
	return g.Level
}

// A pod of the plugin is force-deleted. The next pod starts while the old one still serves the kubelet.
func TestANewProcessHasAllGrantsOfTheOneBefore(t *testing.T) {
	store := checkpoint.File(filepath.Join(t.TempDir(), "grants.json"))
	old := loaded(store, "")
	old.Put(grant("a", "main", gpu.EnforcementMPS, "a-0"))
	next := NewTable(store, "", zap.NewNop())
	old.Put(grant("b", "main", gpu.EnforcementAdvisory, "a-0"))
	old.Put(grant("c", "main", gpu.EnforcementKernel, "a-1", "a-2"))
	next.Put(grant("x", "main", gpu.EnforcementAdvisory, "a-9")) // not loaded yet, so it must not write
	if err := next.Load(); err != nil {
		t.Fatal(err)
	}
	next.Put(grant("d", "main", gpu.EnforcementAdvisory, "a-3"))
	for name, table := range map[string]*Table{"the next": next, "the one after that": loaded(store, "")} {
		if got := levelOf(table, held("b", "main", "a-0")); got != gpu.EnforcementAdvisory {
			t.Errorf("%s: level %q of a slot that was granted again", name, got)
		}
		if got := levelOf(table, held("c", "main", "a-2", "a-1")); got != gpu.EnforcementKernel {
			t.Errorf("%s: level %q of a grant of the last moment", name, got)
		}
	}
}

func TestAnUnusableCheckpointIsSetAside(t *testing.T) {
	for _, text := range []string{"", "{", "[]", "null", `{"v":2,"grants":[{"slots":["a-0"],"response":{}}]}`, `{"v":1,"grants":{}}`, `{"v":1,"grants":[{},{"slots":["a-0"]}]}`, `{"v":1}`} {
		file := filepath.Join(t.TempDir(), "grants.json")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		table := loaded(checkpoint.File(file), "")
		if got, _ := table.Grants(); len(got) > 0 {
			t.Errorf("%q: grants %v", text, got)
		}
		table.Put(grant("a", "main", gpu.EnforcementMPS, "a-0"))
		if got := levelOf(loaded(checkpoint.File(file), ""), held("a", "main", "a-0")); got != gpu.EnforcementMPS {
			t.Errorf("after %q: level %q", text, got)
		}
		aside, err := os.ReadFile(file + ".unusable")
		if strings.HasPrefix(text, `{"v":1`) && !strings.Contains(text, `"grants":{}`) {
			if err == nil {
				t.Errorf("%q is set aside", text)
			}
		} else if err != nil || string(aside) != text {
			t.Errorf("%q is set aside as %q, %v", text, aside, err)
		}
	}
}

// A checkpoint that is unreadable for a while keeps all grants.
func TestACheckpointThatCannotBeReadIsLeftAlone(t *testing.T) {
	store := &filling{Store: checkpoint.File(filepath.Join(t.TempDir(), "grants.json"))}
	loaded(store, "").Put(grant("a", "main", gpu.EnforcementKernel, "a-0"))
	table := NewTable(store, "", zap.NewNop())
	store.unreadable = true
	if err := table.Load(); err == nil || table.loaded {
		t.Errorf("error %v, ready: %t", err, table.loaded)
	}
	table.Put(grant("b", "main", gpu.EnforcementAdvisory, "a-1"))
	store.unreadable = false
	if err := table.Load(); err != nil || levelOf(table, held("a", "main", "a-0")) != gpu.EnforcementKernel {
		grants, _ := table.Grants()
		t.Errorf("%v, grants %v", err, grants)
	}
}

func TestACheckpointThatIsNeverReadableIsSetAside(t *testing.T) {
	file := filepath.Join(t.TempDir(), "grants.json")
	if err := os.Mkdir(file, 0o755); err != nil {
		t.Fatal(err)
	}
	table := NewTable(checkpoint.File(file), "", zap.NewNop())
	tries := 1
	for table.Load() != nil && tries < 1000 {
		tries++
	}
	if tries != maxReads {
		t.Errorf("the table is loaded after %d tries, want %d", tries, maxReads)
	}
	table.Put(grant("a", "main", gpu.EnforcementMPS, "a-0"))
	if got := levelOf(loaded(checkpoint.File(file), ""), held("a", "main", "a-0")); got != gpu.EnforcementMPS {
		t.Errorf("level %q", got)
	}
	if aside, err := os.Stat(file + ".unusable"); err != nil || !aside.IsDir() {
		t.Errorf("the checkpoint is not set aside: %v", err)
	}
}

// full is a disk without space.
type full struct{ checkpoint.Store }

func (full) Write([]byte) error { return errors.New("no space left on device") }

func TestAFullDiskKeepsNoGrantFromTheKubelet(t *testing.T) {
	former := filepath.Join(t.TempDir(), "levels.json")
	if err := os.WriteFile(former, []byte(`{"a-1":{"level":"kernel"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	table := loaded(full{Store: checkpoint.File(former + ".none")}, former)
	table.Put(grant("a", "main", gpu.EnforcementMPS, "a-0"))
	if got := levelOf(table, held("a", "main", "a-0")); got != gpu.EnforcementMPS {
		t.Errorf("level %q", got)
	}
	if _, err := os.Stat(former); err != nil {
		t.Errorf("the levels of version 0.2 are lost: %v", err)
	}
}

// A process that does not answer in time loses its socket to another process. It serves again when the other
// process ends.
func TestAProcessThatGaveWayWritesNothing(t *testing.T) {
	store := checkpoint.File(filepath.Join(t.TempDir(), "grants.json"))
	slow := loaded(store, "")
	slow.Put(grant("a", "main", gpu.EnforcementMPS, "a-0"))
	other := loaded(store, "")
	slow.GiveWay()
	other.Put(grant("b", "main", gpu.EnforcementAdvisory, "a-0"))
	slow.Put(grant("x", "main", gpu.EnforcementKernel, "a-0"))
	if err := slow.Load(); err != nil {
		t.Fatal(err)
	}
	for name, table := range map[string]*Table{"the same": slow, "the next": loaded(store, "")} {
		if got := levelOf(table, held("b", "main", "a-0")); got != gpu.EnforcementAdvisory {
			t.Errorf("%s process: level %q of the other process's grant", name, got)
		}
	}
}

// filling is a disk that is full for a while, or cannot be read.
type filling struct {
	checkpoint.Store

	full       bool
	unreadable bool
}

func (f *filling) Read() ([]byte, error) {
	if f.unreadable {
		return nil, errors.New("input/output error")
	}
	return f.Store.Read()
}

func (f *filling) Write(data []byte) error {
	if f.full {
		return errors.New("no space left on device")
	}
	return f.Store.Write(data)
}

func TestAWriteThatFailedIsTriedAgain(t *testing.T) {
	store := &filling{Store: checkpoint.File(filepath.Join(t.TempDir(), "grants.json"))}
	table := loaded(store, "")
	table.Put(grant("a", "main", gpu.EnforcementKernel, "a-0"))
	store.full = true
	table.Put(grant("b", "main", gpu.EnforcementAdvisory, "a-0"))
	table.Retry()
	store.full = false
	table.Retry()
	if got := levelOf(loaded(store, ""), held("b", "main", "a-0")); got != gpu.EnforcementAdvisory {
		t.Errorf("level %q of the pod before", got)
	}
}

// Package nri and State.RetiredClients use the table before the plugin serves the kubelet.
func TestATableHasTheCheckpointBeforeItIsLoaded(t *testing.T) {
	dir := t.TempDir()
	former := filepath.Join(dir, "levels.json")
	if err := os.WriteFile(former, []byte(`{"a-1":{"level":"mps","mps":1}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	store := checkpoint.File(filepath.Join(dir, "grants.json"))
	for range 2 { // with and without the file of version 0.2
		table := NewTable(store, former, zap.NewNop())
		if got := table.FormerLevel("a-1"); got.MPS != 1 {
			t.Errorf("former level %v", got)
		}
		loaded(store, former).Put(grant("a", "main", gpu.EnforcementKernel, "a-0"))
	}
	if got := levelOf(NewTable(store, former, zap.NewNop()), held("a", "main", "a-0")); got != gpu.EnforcementKernel {
		t.Errorf("level %q", got)
	}
}

// The levels of version 0.2 stay valid until a slot is granted again, also for later processes.
func TestLevelsOfVersion02(t *testing.T) {
	dir := t.TempDir()
	former, store := filepath.Join(dir, "levels.json"), checkpoint.File(filepath.Join(dir, "grants.json"))
	if err := os.WriteFile(former, []byte(`{"a-0":{"level":"kernel","mps":3},"a-1":{"level":"mps","mps":2},"a-2":{"level":"kernel"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	table := loaded(store, former)
	for _, tc := range []struct {
		slots []gpu.SlotID
		want  Former
	}{
		{[]gpu.SlotID{"a-0", "a-1"}, Former{gpu.EnforcementMPS, 3}},
		{[]gpu.SlotID{"a-1", "a-0"}, Former{gpu.EnforcementMPS, 3}},
		{[]gpu.SlotID{"a-2"}, Former{gpu.EnforcementKernel, 0}},
		{[]gpu.SlotID{"a-2", "a-3"}, Former{}},
		{nil, Former{}},
	} {
		if got := table.FormerLevel(tc.slots...); got != tc.want {
			t.Errorf("%v: %v, want %v", tc.slots, got, tc.want)
		}
	}
	table.Put(grant("a", "main", gpu.EnforcementAdvisory, "a-0"))
	if _, err := os.Stat(former); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file of version 0.2 would count again once the checkpoint is lost: %v", err)
	}
	after := loaded(store, former)
	if got := after.FormerLevel("a-0"); got != (Former{}) {
		t.Errorf("a slot that was granted again has %v", got)
	}
	if got := after.FormerLevel("a-2"); got.Level != gpu.EnforcementKernel {
		t.Errorf("a slot that was not granted since has %v", got)
	}
	if err := os.WriteFile(former, []byte("[]"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := loaded(checkpoint.File(filepath.Join(dir, "none.json")), former).FormerLevel("a-0"); got != (Former{}) {
		t.Errorf("an unreadable file of version 0.2 has %v", got)
	}
}

// After a rollback, version 0.2 allocated the slot of an ended pod to another pod. Then an upgrade followed.
func TestAGrantFromBeforeARollbackIsNotThatOfALaterPod(t *testing.T) {
	dir := t.TempDir()
	former, store := filepath.Join(dir, "levels.json"), checkpoint.File(filepath.Join(dir, "grants.json"))
	if err := os.WriteFile(former, []byte(`{"aaaaaaaa-2":{"level":"kernel"},"aaaaaaaa-3":{"level":"kernel"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	table := loaded(store, former)
	table.Put(grant("a", "main", gpu.EnforcementMPS, "aaaaaaaa-0"))
	table.Put(grant("c", "main", gpu.EnforcementMPS, "aaaaaaaa-1"))
	if err := os.WriteFile(former, []byte(`{"aaaaaaaa-0":{"level":"advisory"},"aaaaaaaa-2":{"level":"mps"}}`), 0o600); err != nil { // by 0.2, for pods b and d
		t.Fatal(err)
	}
	list := listing(held("b", "main", "aaaaaaaa-0"), held("c", "main", "aaaaaaaa-1"), held("d", "main", "aaaaaaaa-2"), held("e", "main", "aaaaaaaa-3"))
	for name, table := range map[string]*Table{
		"before it is loaded":       NewTable(store, former, zap.NewNop()),
		"loaded, on a full disk":    loaded(full{Store: store}, former),
		"loaded":                    loaded(store, former),
		"loaded by a later process": loaded(store, former),
	} {
		table.Adopt(list, table.Count())
		for i, want := range []gpu.Enforcement{gpu.EnforcementAdvisory, gpu.EnforcementMPS, gpu.EnforcementMPS, gpu.EnforcementKernel} {
			if got := levelOf(table, list.Allocated[i]); got != want {
				t.Errorf("%s: pod %s has level %q, want %s", name, list.Allocated[i].Name, got, want)
			}
		}
	}
	if _, err := os.Stat(former); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file of version 0.2 would end later grants: %v", err)
	}
}

// The kubelet allocates the slots of an init container to the next containers of its pod.
func TestEachContainerOfSharedSlotsHasItsGrant(t *testing.T) {
	table := NewTable(nil, "", zap.NewNop())
	table.Put(initial(grant("p", "first", gpu.EnforcementKernel, "a-0", "a-1")))
	table.Put(initial(grant("p", "second", gpu.EnforcementMPS, "a-0", "a-1")))
	table.Put(grant("p", "main", gpu.EnforcementAdvisory, "a-0", "a-1"))
	table.Put(initial(grant("p", "first", gpu.EnforcementKernel, "a-c0")))
	p := placement.PodRef{Namespace: "ns", Name: "p", UID: "uid-p"}
	for container, want := range map[string]gpu.Enforcement{"first": gpu.EnforcementKernel, "second": gpu.EnforcementMPS} {
		memory, cores := table.FindInit(p, container, 2, nil)
		if memory == nil || memory.Level != want || (cores != nil) != (container == "first") {
			t.Errorf("%s: %v, %v; want level %s", container, memory, cores, want)
		}
	}
	if got := levelOf(table, held("p", "main", "a-0", "a-1")); got != gpu.EnforcementAdvisory {
		t.Errorf("main: level %q", got)
	}
	for _, other := range []placement.PodRef{{Namespace: "ns", Name: "q", UID: "uid-q"}, {Namespace: "ns", Name: "p", UID: "another"}} {
		if memory, _ := table.FindInit(other, "first", 2, nil); memory != nil {
			t.Errorf("pod %v has %v", other, memory)
		}
	}
	if memory, _ := table.FindInit(p, "first", 1, nil); memory != nil {
		t.Errorf("a container of another size has %v", memory)
	}
	table.Put(grant("q", "main", gpu.EnforcementAdvisory, "a-1"))
	if got, _ := table.Grants(); len(got) != 2 {
		t.Errorf("grants %v, want the last one and that of cores", got)
	}
}

// PodResources lists slots at another pod than the plugin had assumed.
func TestGrantsMoveToThePodThatHasTheirSlots(t *testing.T) {
	table := NewTable(nil, "", zap.NewNop())
	table.Put(initial(grant("p", "warm", gpu.EnforcementKernel, "a-0", "a-1", "a-2")))
	table.Put(initial(grant("p", "warm", gpu.EnforcementMPS, "b-0")))
	table.Put(grant("r", "main", gpu.EnforcementAdvisory, "c-0"))
	before := table.Count()
	table.Put(initial(grant("p", "late", gpu.EnforcementAdvisory, "d-0")))
	s := listing(held("q", "main", "a-1", "a-2"), held("s", "app", "b-0"), held("r", "main", "c-0"), held("t", "main", "d-0"))
	s.Pods = []allocation.Pod{{Holding: placement.Holding{Pod: placement.PodRef{Namespace: "ns", Name: "q", UID: "uid-q"}}}}
	table.Adopt(s, before)
	if grants, _ := table.Grants(); grants[0].UID != "" {
		t.Errorf("the grant moves to pod %s, which the kubelet may not have admitted", grants[0].UID)
	}
	s.Pods[0].Admitted = true
	table.Adopt(s, before)
	type owner struct {
		Pod, UID, Container string
		Init                bool
	}
	var got []owner
	grants, _ := table.Grants()
	for _, g := range grants {
		got = append(got, owner{g.Pod, g.UID, g.Container, g.Init})
	}
	want := []owner{{"q", "uid-q", "", true}, {"s", "", "app", false}, {"r", "uid-r", "main", false}, {"p", "uid-p", "late", true}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("owners (-want +got):\n%s", diff)
	}
	if memory, _ := table.FindInit(placement.PodRef{Namespace: "ns", Name: "q", UID: "uid-q"}, "prepare", 3, nil); memory == nil || memory.Level != gpu.EnforcementKernel {
		t.Errorf("the init container of pod q has %v", memory)
	}
}

// A listed container has a grant even if version 0.2, which recorded only levels, allocated its slots, or if the
// checkpoint is lost.
func TestAListedContainerHasAGrant(t *testing.T) {
	former := filepath.Join(t.TempDir(), "levels.json")
	if err := os.WriteFile(former, []byte(`{"aaaaaaaa-0":{"level":"kernel","mps":3},"aaaaaaaa-1":{"level":"mps","mps":2}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	table := NewTable(nil, former, zap.NewNop())
	s := listing(held("p", "main", "aaaaaaaa-1", "aaaaaaaa-0", "aaaaaaaa-c0"), held("q", "main", "aaaaaaaa-2"), held("r", "main", "bbbbbbbb-0", "gone"), held("s", "old", "bbbbbbbb-1"))
	s.Pods = []allocation.Pod{{Holding: placement.Holding{Pod: placement.PodRef{Namespace: "ns", Name: "p", UID: "uid-p"}, Admitted: true}}}
	table.Put(grant("new", "main", gpu.EnforcementAdvisory, "bbbbbbbb-1")) // after the kubelet listed pod s
	for range 2 {
		table.Adopt(s, 0)
	}
	grants, _ := table.Grants()
	want := []Grant{
		{Namespace: "ns", Pod: "p", UID: "uid-p", Container: "main", Slots: []gpu.SlotID{"aaaaaaaa-0", "aaaaaaaa-1"}, GPUs: []GPU{{UUID: "GPU-aaaaaaaa", Units: 2, MiB: 2048}}, Level: gpu.EnforcementMPS, MPS: 3},
		{Namespace: "ns", Pod: "p", UID: "uid-p", Container: "main", Slots: []gpu.SlotID{"aaaaaaaa-c0"}, GPUs: []GPU{{UUID: "GPU-aaaaaaaa", Cores: 1}}},
		{Namespace: "ns", Pod: "q", Container: "main", Slots: []gpu.SlotID{"aaaaaaaa-2"}, GPUs: []GPU{{UUID: "GPU-aaaaaaaa", Units: 1, MiB: 1024}}},
	}
	if diff := cmp.Diff(want, grants[1:], cmpopts.IgnoreUnexported(Grant{})); diff != "" {
		t.Errorf("grants (-want +got):\n%s", diff)
	}
}

// After a restart of the plugin alone, the kubelet still has the grants of the previous process. The plugin can
// attribute the call for one of two equal pods to the other pod.
func TestAGrantThatTheKubeletListsStays(t *testing.T) {
	store := checkpoint.File(filepath.Join(t.TempDir(), "grants.json"))
	loaded(store, "").Put(grant("p", "main", gpu.EnforcementKernel, "aaaaaaaa-0"))
	table := loaded(store, "")
	table.Adopt(listing(held("p", "main", "aaaaaaaa-0")), 0)
	table.Put(grant("p", "main", gpu.EnforcementAdvisory, "aaaaaaaa-1"))
	if got := levelOf(table, held("p", "main", "aaaaaaaa-0")); got != gpu.EnforcementKernel {
		t.Errorf("level %q of a grant that the kubelet lists", got)
	}
}

// A kubelet that lost its records calls again for each container.
func TestAKubeletThatAsksAgainReplacesGrants(t *testing.T) {
	table := NewTable(nil, "", zap.NewNop())
	table.Put(initial(grant("p", "warm", gpu.EnforcementAdvisory, "a-0")))
	table.Put(initial(grant("p", "warm", gpu.EnforcementAdvisory, "a-1"))) // for a pod that is not known yet
	if got, _ := table.Grants(); len(got) != 2 {
		t.Errorf("grants %v, want both", got)
	}
	table.Registered()
	table.Put(initial(grant("p", "warm", gpu.EnforcementAdvisory, "b-0")))
	got, recent := table.Grants()
	if len(got) != 1 || got[0].Slots[0] != "b-0" || !recent(got[0]) {
		t.Errorf("grants %v, want the last one", got)
	}
	table.Prune(table.Count()-1, func(g Grant, _ bool) bool { return g.Pod != "p" })
	if got, _ := table.Grants(); len(got) != 1 {
		t.Errorf("grants %v, want the one that is newer than the test", got)
	}
	table.Prune(table.Count(), func(g Grant, _ bool) bool { return g.Pod != "p" })
	if got, _ := table.Grants(); len(got) > 0 {
		t.Errorf("grants %v, want none", got)
	}
}

func TestTheLimitIsThatOfTheSmallestGPU(t *testing.T) {
	devices := []gpu.Device{{UUID: "GPU-a", ShareMiB: 800}, {UUID: "GPU-b", ShareMiB: 400}}
	to := allocation.Attributed{Pod: placement.PodRef{Namespace: "ns", Name: "p", UID: "uid"}, Container: placement.Container{Name: "warm", Kind: placement.Init}}
	got := NewGrant(to, allocation.Grant{Devices: devices, SlotsPerDevice: 2, Slots: []gpu.SlotID{"b-0", "a-0"}}, gpu.Inventory{MPS: true}, nil)
	want := Grant{
		Namespace: "ns", Pod: "p", UID: "uid", Container: "warm", Init: true, Slots: []gpu.SlotID{"b-0", "a-0"}, Level: gpu.EnforcementAdvisory, MPS: 2,
		GPUs: []GPU{{UUID: "GPU-a", Units: 2, MiB: 1600}, {UUID: "GPU-b", Units: 2, MiB: 800}},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(Grant{})); diff != "" {
		t.Errorf("grant (-want +got):\n%s", diff)
	}
	if got.LimitMiB() != 800 {
		t.Errorf("limit %d MiB, want 800", got.LimitMiB())
	}
}

// TestAnInitContainerIsOne verifies that the table and package allocation agree about the kind of a container.
func TestAnInitContainerIsOne(t *testing.T) {
	for _, kind := range []placement.ContainerKind{placement.App, placement.Init} {
		to := allocation.Attributed{Pod: placement.PodRef{Namespace: "ns", Name: "p", UID: "u"}, Container: placement.Container{Name: "c", Kind: kind}, Slots: []gpu.SlotID{"a-0"}}
		g := NewGrant(to, allocation.Grant{Slots: to.Slots}, gpu.Inventory{}, nil)
		if diff := cmp.Diff(to, g.Attributed()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

// TestTwoGrantsExchangeTheirContainers covers an init container whose grant the table had attributed to another
// container. The next process reads the exchange from the checkpoint.
func TestTwoGrantsExchangeTheirContainers(t *testing.T) {
	store := checkpoint.File(filepath.Join(t.TempDir(), "grants.json"))
	table := loaded(store, "")
	own, other := initial(grant("p", "warm", gpu.EnforcementMPS, "a-0")), grant("q", "main", gpu.EnforcementAdvisory, "a-1")
	cores := initial(grant("p", "warm", gpu.EnforcementAdvisory, "a-c0"))
	for _, g := range []Grant{own, other, cores} {
		table.Put(g)
	}
	table.Attribute(own.ref(), "warm", other)
	for name, table := range map[string]*Table{"this process": table, "the next one": loaded(store, "")} {
		got := make(map[gpu.SlotID]string)
		grants, _ := table.Grants()
		for _, g := range grants {
			got[g.Slots[0]] = fmt.Sprint(g.ref(), " ", g.UID, " ", g.Container, " ", g.Init)
		}
		want := map[gpu.SlotID]string{"a-0": "ns/q uid-q main false", "a-1": "ns/p uid-p warm true", "a-c0": "ns/p uid-p warm true"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestAWriteWaitsForItsTurn verifies that a call gives up when another write takes too long.
func TestAWriteWaitsForItsTurn(t *testing.T) {
	r := NewReconciler(Config{WriteWait: time.Millisecond}, nil, plugintest.NewPods(), nil, nil, zap.NewNop())
	ref := placement.PodRef{Namespace: "ns", Name: "p", UID: "u"}
	r.turn <- struct{}{}
	if err := r.write(t.Context(), ref, nil, allocation.State{}); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "write the assignment of pod ns/p after another write") {
		t.Errorf("error %v", err)
	}
	<-r.turn
	if err := r.write(t.Context(), ref, nil, allocation.State{}); err != nil || len(r.turn) != 0 {
		t.Errorf("a pod that is gone: %v, %d turns are taken", err, len(r.turn))
	}
}

// unwatched is a list with a pod that the watch has not delivered.
type unwatched struct{ *list }

type list = plugintest.Pods

func (unwatched) HasUnwatched() bool { return true }

// TestPodsAreListedWhileTheWatchIsBehind verifies that a pass lists the pods only while the watch is behind,
// and reports a failure.
func TestPodsAreListedWhileTheWatchIsBehind(t *testing.T) {
	pods := plugintest.NewPods()
	pass := func(pods Pods) error {
		return NewReconciler(Config{WriteWait: time.Second}, nil, pods, nil, nil, zap.NewNop()).refresh(t.Context())
	}
	if err := pass(pods); err != nil || pods.Refreshes != 0 {
		t.Errorf("%v, %d lists", err, pods.Refreshes)
	}
	pods.Away = 1
	if err := pass(unwatched{pods}); err == nil || pods.Refreshes != 1 {
		t.Errorf("the API server is away: %v, %d lists", err, pods.Refreshes)
	}
	if err := pass(unwatched{pods}); err != nil || pods.Refreshes != 2 {
		t.Errorf("%v, %d lists", err, pods.Refreshes)
	}
}

// TestThePublishedAccountOutlivesAnIncompleteList expects a pod's entry to stay while the kubelet lists no
// allocation of the pod.
func TestThePublishedAccountOutlivesAnIncompleteList(t *testing.T) {
	entry := gpu.PodAllocation{UID: "u1", Shares: []gpu.Share{{Device: plugintest.GPUA, Units: 3}}}
	published := plugintest.TwoGPUs()
	published.Allocated = []gpu.PodAllocation{entry, {UID: "gone", Shares: entry.Shares}}
	n := New(Config{Published: published}, nil, nil, nil, nil, zap.NewNop())
	pod := allocation.Pod{Holding: placement.Holding{Pod: placement.PodRef{Namespace: "ns", Name: "p", UID: "u1"}}}
	for range 2 {
		n.tally(allocation.State{Inventory: plugintest.TwoGPUs(), Pods: []allocation.Pod{pod}})
		given, known, _ := n.Allocations()
		if diff := cmp.Diff([]gpu.PodAllocation{entry}, given); diff != "" || !known {
			t.Errorf("known: %t (-want +got):\n%s", known, diff)
		}
	}
}
