package printers

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/core/decide"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/report/inspect"
	"github.com/gpumem/gpumem/pkg/report/table"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

// inventory returns GPUs of these sizes in GiB, with a unit of 1 GiB.
func inventory(node string, gib ...int) gpu.Inventory {
	inv := gpu.Inventory{UnitMiB: 1024, DriverVersion: "570.86.15", Enforcement: gpu.EnforcementMPS}
	models := map[int]string{15: "Tesla T4", 16: "Tesla V100-SXM2-16GB", 80: "NVIDIA A100-SXM4-80GB"}
	for i, size := range gib {
		inv.Devices = append(inv.Devices, gpu.Device{
			UUID: uuid(node, i), Index: i, Model: models[size], MemoryMiB: int64(size) * 1024, Allocatable: gpu.Units(size),
			NUMANode: i / 4, PCI: fmt.Sprintf("00000000:%02x:00.0", 0x3b+i), ComputeCapability: "8.0",
		})
	}
	return inv
}

func uuid(node string, i int) gpu.UUID {
	return gpu.UUID(fmt.Sprintf("GPU-%08x-0000-4000-8000-00000000000%d", []byte(node[max(0, len(node)-4):]), i))
}

// sharing returns a node that offers a T4 and an A100 in shares.
func sharing() node {
	inv := inventory("tenth", 15, 80)
	inv.UnitMiB = 0
	for i, mib := range []int64{1490, 8110} {
		inv.Devices[i].Allocatable, inv.Devices[i].ShareMiB = gpu.SharesPerDevice, mib
	}
	return node{"tenths", inv, []placement.Holding{
		holding("ml/three", ofShares(request(3, 0)), uuid("tenth", 0)), holding("ml/whole", ofShares(request(10, 0)), uuid("tenth", 1)),
		holding("web/lost", ofShares(request(2, 0))),
	}}
}

func ofShares(r placement.Request) placement.Request {
	r.InShares = true
	return r
}

func request(units gpu.Units, cores int) placement.Request {
	return placement.Request{Containers: placement.NewContainers(placement.Container{Name: "main", Kind: placement.App, Units: units, Cores: cores})}
}

func holding(name string, req placement.Request, on ...gpu.UUID) placement.Holding {
	h := placement.Holding{Pod: ref(name), Request: req, Admitted: true}
	for _, id := range on {
		h.Assignment.Shares = append(h.Assignment.Shares, placement.Share{Device: id})
	}
	h.Assignment = h.Assignment.WithShares(req)
	return h
}

// ref parses "namespace/name"; the namespace defaults to default.
func ref(name string) placement.PodRef {
	namespace, rest, ok := strings.Cut(name, "/")
	if !ok {
		namespace, rest = "default", name
	}
	return placement.PodRef{Namespace: namespace, Name: rest, UID: "uid-" + name}
}

// node is one node of a test case.
type node struct {
	name string
	inv  gpu.Inventory
	pods []placement.Holding
}

// report builds a report through the cache, as the command does.
func report(facts inspect.Facts, nodes ...node) inspect.Report {
	c := cache.New()
	if facts.Nodes == nil {
		facts.Nodes = make(map[string]inspect.NodeFacts)
	}
	facts.Pods = make(map[string]inspect.PodFacts)
	facts.Resource = "gpumem.dev/gpu-mem"
	for i, n := range nodes {
		for _, h := range n.pods {
			c.AddPod(n.name, h)
			facts.Pods[h.Pod.UID] = podFacts(h)
		}
		c.SetNode(n.name, n.inv)
		for _, w := range facts.Waiting {
			if w.Nominated == n.name {
				c.NominatePod(n.name, w.Pod, w.Request, placement.Assignment{}, time.Time{})
			}
		}
		f := facts.Nodes[n.name]
		f.Address = fmt.Sprintf("10.0.0.%d", i+1)
		if f.RefusesCores == nil && !slices.ContainsFunc(n.pods, func(h placement.Holding) bool { return h.Request.Cores() > 0 }) {
			f.RefusesCores = &decide.Refusal{Reason: "Coreless", Message: "the node offers no gpumem.dev/gpu-core"}
		}
		if f.Status == "" {
			f.Status = "Ready"
		}
		facts.Nodes[n.name] = f
	}
	return inspect.New(c.Nodes(), facts)
}

func podFacts(h placement.Holding) inspect.PodFacts {
	f := inspect.PodFacts{State: "Running", Enforcement: string(gpu.EnforcementMPS)}
	switch {
	case strings.Contains(h.Pod.Name, "leaving"):
		f.State = "Terminating"
	case h.Assignment.None():
		f = inspect.PodFacts{State: "Pending"}
	}
	return f
}

// scenes are clusters in the states that users meet.
func scenes() map[string]inspect.Report {
	demo := []node{
		{"gpu-a", inventory("gpu-a", 15, 15), []placement.Holding{
			holding("binpack-0", request(3, 0), uuid("gpu-a", 0)),
			holding("binpack-1", request(3, 0), uuid("gpu-a", 0)),
			holding("binpack-2", request(3, 0), uuid("gpu-a", 0)),
		}},
		{"gpu-b", inventory("gpu-b", 80), nil},
	}
	sick := inventory("gpu-c", 16, 80, 80, 16)
	sick.Devices[1].Status = gpu.Unhealthy("XID 79: GPU has fallen off the bus")
	pair := request(40, 60)
	pair.Count = 2
	small := gpu.Inventory{UnitMiB: 256, DriverVersion: "615.10", Enforcement: gpu.EnforcementKernel, Devices: []gpu.Device{
		{UUID: uuid("edge", 0), Index: 0, Model: "NVIDIA L4", MemoryMiB: 23034, Allocatable: 88, NUMANode: -1},
		{UUID: uuid("edge", 1), Index: 2, Model: "NVIDIA L4", MemoryMiB: 23034, Allocatable: 88, NUMANode: -1},
	}}
	busy := []node{
		{"gpu-c", sick, []placement.Holding{
			holding("ml/train-0", pair, uuid("gpu-c", 1), uuid("gpu-c", 2)),
			holding("ml/leaving", request(20, 0), uuid("gpu-c", 0)),
			holding("web/infer-6d5f", request(4, 25), uuid("gpu-c", 3)),
			holding("web/stray", request(2, 0)),
			holding("web/moved", request(5, 0), "GPU-gone"),
		}},
		{"cpu-1", gpu.Inventory{}, nil},
		{"cpu-2", gpu.Inventory{}, nil},
		{"unread", gpu.Inventory{}, []placement.Holding{holding("web/old", request(7, 0), "GPU-old")}},
		{"silent", gpu.Inventory{}, []placement.Holding{holding("web/early", request(7, 0))}},
	}
	problem := `annotation gpumem.dev/inventory: unknown version 7, want 1`
	troubled := inspect.Facts{
		Nodes:    map[string]inspect.NodeFacts{"unread": {Problem: problem}},
		Problems: []inspect.Problem{{Object: "node unread", Message: problem}},
		Waiting: []inspect.WaitFacts{
			{Pod: ref("ml/huge"), Request: request(100, 0)},
			{Pod: ref("ml/wide"), Request: request(41, 0)},
			{Pod: ref("ml/cores"), Request: request(1, 50)},
			{Pod: ref("web/odd"), Problem: `annotation gpumem.dev/gpu-count: "two": want a number of GPUs from 1 to 64`},
		},
	}
	dgx := inventory("dgx-1", 80, 80, 80, 80, 80, 80, 80, 80)
	for i := range dgx.Devices {
		dgx.Devices[i].Speed = 100
	}
	dgx.Links = []gpu.Link{{A: uuid("dgx-1", 0), B: uuid("dgx-1", 3), Lanes: 2}, {A: uuid("dgx-1", 1), B: uuid("dgx-1", 0), Lanes: 1}}
	eight := []node{{"dgx-1", dgx, []placement.Holding{
		holding("a", request(80, 0), uuid("dgx-1", 0)), holding("b", request(33, 0), uuid("dgx-1", 7)),
	}}}
	important := request(14, 0)
	important.Priority = 100
	evicting := inspect.Facts{Waiting: []inspect.WaitFacts{
		{Pod: ref("ml/vip"), Request: important, Nominated: "gpu-a"},
		{Pod: ref("ml/late"), Request: request(13, 0)},
	}}
	leaving := holding("web/leaving", request(9, 0), uuid("gpu-a", 0))
	leaving.Terminating = true
	alone := request(4, 0)
	alone.Policy = placement.Exclusive
	return map[string]inspect.Report{
		"alone": report(inspect.Facts{}, node{"gpu-a", inventory("gpu-a", 15, 15), []placement.Holding{
			holding("ml/alone", alone, uuid("gpu-a", 0)), holding("web/shares", request(9, 0), uuid("gpu-a", 1)),
		}}),
		"nominated": report(evicting, node{"gpu-a", inventory("gpu-a", 15, 15), []placement.Holding{
			leaving, holding("web/stays", request(3, 0), uuid("gpu-a", 1)),
		}}),
		"demo":      report(inspect.Facts{}, demo...),
		"busy":      report(troubled, busy...),
		"namespace": report(troubled, busy...).InNamespace("ml"),
		"units":     report(inspect.Facts{Waiting: []inspect.WaitFacts{{Pod: ref("w"), Request: request(5, 0)}}}, append(demo, node{"edge", small, []placement.Holding{holding("cam", request(3, 0), uuid("edge", 1))}})...),
		"shares":    report(inspect.Facts{Waiting: []inspect.WaitFacts{{Pod: ref("w"), Request: ofShares(request(12, 0))}}}, append(demo, sharing())...),
		"eight":     report(inspect.Facts{Selected: true}, eight...),
		"forbidden": report(inspect.Facts{PodsUnknown: true, Problems: []inspect.Problem{{Object: "pods", Message: "forbidden"}}}, node{"gpu-a", inventory("gpu-a", 15, 15), nil}),
		"none":      report(inspect.Facts{}, node{"cpu-1", gpu.Inventory{}, nil}),
		"closed":    report(inspect.Facts{Nodes: map[string]inspect.NodeFacts{"gpu-b": {Status: "Ready,SchedulingDisabled", Refuses: &decide.Refusal{Message: "the node is cordoned"}}}, Waiting: []inspect.WaitFacts{{Pod: ref("w"), Request: request(5, 0)}}}, node{"gpu-b", inventory("gpu-b", 80), nil}),
		"asked":     report(inspect.Facts{Selected: true, Nodes: map[string]inspect.NodeFacts{"cpu-1": {NamedByUser: true}}}, node{"cpu-1", gpu.Inventory{}, nil}),
	}
}

func TestPrinters(t *testing.T) {
	printers := []struct {
		title string
		print Printer
	}{
		{"", Table(table.ListOptions{})},
		{"-o wide", Table(table.ListOptions{Wide: true})},
		{"--no-headers", Table(table.ListOptions{NoHeaders: true})},
		{"--details", Details(table.ListOptions{})},
		{"--details -o wide", Details(table.ListOptions{Wide: true})},
		{"--details --no-headers", Details(table.ListOptions{NoHeaders: true})},
	}
	for scene, r := range scenes() {
		t.Run(scene, func(t *testing.T) {
			var out bytes.Buffer
			for _, p := range printers {
				fmt.Fprintf(&out, "$ kubectl inspect gpumem %s\n", p.title)
				if err := p.print(&out, r); err != nil {
					t.Fatal(err)
				}
				fmt.Fprintln(&out)
			}
			golden(t, scene+".txt", out.Bytes())
			asJSON, err := json.MarshalIndent(r, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			golden(t, scene+".json", append(asJSON, '\n'))
		})
	}
}

func TestJSONIsReadBack(t *testing.T) {
	for scene, want := range scenes() {
		t.Run(scene, func(t *testing.T) {
			text, err := json.Marshal(want)
			if err != nil {
				t.Fatal(err)
			}
			var got inspect.Report
			if err := json.Unmarshal(text, &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestRowsHaveAsManyWordsAsTheHeader(t *testing.T) {
	for scene, r := range scenes() {
		t.Run(scene, func(t *testing.T) {
			var out bytes.Buffer
			if err := Table(table.ListOptions{})(&out, r); err != nil {
				t.Fatal(err)
			}
			table, _, _ := strings.Cut(out.String(), "\n\n")
			lines := strings.Split(table, "\n")
			for _, line := range lines[1:] {
				if got, want := len(strings.Fields(line)), len(strings.Fields(lines[0])); got != want {
					t.Errorf("%d words under %d headers: %s", got, want, line)
				}
			}
		})
	}
}

func TestOverCommittedGPUIsShownAsItIs(t *testing.T) {
	r := report(inspect.Facts{}, node{"gpu-a", inventory("gpu-a", 16), []placement.Holding{
		holding("a", request(12, 0), uuid("gpu-a", 0)), holding("b", request(8, 0), uuid("gpu-a", 0)),
	}})
	for want, print := range map[string]Printer{
		"20/16":                           Table(table.ListOptions{}),
		"125%":                            Table(table.ListOptions{}),
		"GPU0 is over-committed by 4 GiB": Details(table.ListOptions{}),
	} {
		var out bytes.Buffer
		if err := print(&out, r); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), want) {
			t.Errorf("want %q in:\n%s", want, out.String())
		}
	}
}

func TestAGPUThatIsUnhealthyAndCordonedBesidesHasBothMarks(t *testing.T) {
	inv := inventory("gpu-a", 14, 14)
	inv.Devices[0].Status = gpu.Status{Unhealthy: true, Cordoned: true, Reason: "XID 79"}
	var out bytes.Buffer
	if err := Table(table.ListOptions{})(&out, report(inspect.Facts{}, node{"gpu-a", inv, nil})); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"0/14!~ ", "\nIn GPU columns: allocated/total; ! unhealthy; ~ cordoned\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("want %q in:\n%s", want, out.String())
		}
	}
}

func TestACordonedGPUIsNotCalledUnhealthy(t *testing.T) {
	inv := inventory("gpu-a", 14, 14)
	inv.Devices[0].Status.Cordoned = true
	r := report(inspect.Facts{}, node{"gpu-a", inv, nil})
	gpus := func(w io.Writer, r inspect.Report) error {
		return table.List(w, GPUColumns(r), GPURows(r, nil), table.ListOptions{})
	}
	for _, tc := range []struct {
		print Printer
		wants []string
	}{
		{Table(table.ListOptions{}), []string{"0/14~ ", "\nIn GPU columns: allocated/total; ~ cordoned\n"}},
		{Details(table.ListOptions{}), []string{" Cordoned ", "* GPU0 is cordoned and takes no new pods until it is uncordoned"}},
		{gpus, []string{" Cordoned\n"}},
	} {
		var out bytes.Buffer
		if err := tc.print(&out, r); err != nil {
			t.Fatal(err)
		}
		for _, want := range tc.wants {
			if !strings.Contains(out.String(), want) || strings.Contains(out.String(), "nhealthy") {
				t.Errorf("want %q, and nothing unhealthy, in:\n%s", want, out.String())
			}
		}
	}
}

func TestTextOfOthersCannotSteerTheTerminal(t *testing.T) {
	inv := inventory("gpu-a", 16)
	inv.Devices[0].Model = "evil\x1b[2J\tmodel\nnext"
	inv.Devices[0].Status = gpu.Unhealthy("\x1b]0;title\a")
	r := report(inspect.Facts{Waiting: []inspect.WaitFacts{{Pod: ref("w"), Problem: "\x1b[31mred"}}}, node{"gpu-a", inv, nil})
	for _, print := range []Printer{Table(table.ListOptions{Wide: true}), Details(table.ListOptions{Wide: true})} {
		var out bytes.Buffer
		if err := print(&out, r); err != nil {
			t.Fatal(err)
		}
		if strings.ContainsAny(out.String(), "\x1b\a\t") {
			t.Errorf("control characters in %q", out.String())
		}
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errors.ErrUnsupported }

func TestPrintersReportAWriteError(t *testing.T) {
	for _, print := range []Printer{Table(table.ListOptions{}), Details(table.ListOptions{}), Trouble(table.ListOptions{})} {
		if err := print(brokenPipe{}, scenes()["demo"]); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("got %v", err)
		}
	}
}

func TestInNamespaceLeavesTheReportAsItWas(t *testing.T) {
	r, same := scenes()["busy"], scenes()["busy"]
	r.InNamespace("ml")
	if diff := cmp.Diff(same, r); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The printers accept any values, because a Report may come from a file without validation.
func TestOddReportsPrint(t *testing.T) {
	minus := int64(-1 << 62)
	for _, r := range []inspect.Report{
		{},
		{Nodes: []inspect.Node{{}}, Waiting: []inspect.WaitingPod{{}}},
		{Nodes: []inspect.Node{{UnitMiB: -5, GPUs: []inspect.GPU{{Index: -3}, {Index: 1 << 60}}, Unattributed: []inspect.Pod{{}}}}, Total: inspect.Total{RequestedMiB: &minus, CapacityMiB: 1}},
	} {
		for _, print := range []Printer{Table(table.ListOptions{Wide: true}), Details(table.ListOptions{Wide: true}), Trouble(table.ListOptions{})} {
			if err := print(&bytes.Buffer{}, r.InNamespace("x")); err != nil {
				t.Error(err)
			}
		}
	}
}

func BenchmarkNewAndTable(b *testing.B) {
	c := cache.New()
	for i := range 5000 {
		name := fmt.Sprintf("node-%04d", i)
		for j := range 10 {
			c.AddPod(name, holding(fmt.Sprintf("pod-%d-%d", i, j), request(3, 0), uuid(name, j%8)))
		}
		c.SetNode(name, inventory(name, 80, 80, 80, 80, 80, 80, 80, 80))
	}
	facts := inspect.Facts{}
	for i := range 1000 {
		facts.Waiting = append(facts.Waiting, inspect.WaitFacts{Pod: ref(fmt.Sprint("w", i)), Request: request(gpu.Units(90+i%10), 0)})
	}
	for b.Loop() {
		r := inspect.New(c.Nodes(), facts)
		if err := Table(table.ListOptions{})(&bytes.Buffer{}, r); err != nil {
			b.Fatal(err)
		}
	}
}

// The word "cordoned" in the driver's description of a fault does not mark a GPU as cordoned.
func TestAReasonThatEndsInCordonedCordonsNothing(t *testing.T) {
	for _, reason := range []string{"cordoned", "XID 79; cordoned"} {
		inv := inventory("gpu-a", 14, 14)
		inv.Devices[0].Status = gpu.Unhealthy(reason)
		var out bytes.Buffer
		if err := Table(table.ListOptions{})(&out, report(inspect.Facts{}, node{"gpu-a", inv, nil})); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), "0/14! ") || strings.Contains(out.String(), "~") {
			t.Errorf("%q: want it unhealthy and not cordoned:\n%s", reason, out.String())
		}
	}
}
