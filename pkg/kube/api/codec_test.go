package api

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

var inventory = gpu.Inventory{
	UnitMiB: 1024, DriverVersion: "615.10", Enforcement: gpu.EnforcementKernel,
	Devices: []gpu.Device{
		{UUID: "GPU-a", Index: 0, Model: "NVIDIA A100", MemoryMiB: 81920, Allocatable: 79, NUMANode: 0, PCI: "00000000:3b:00.0", ComputeCapability: "8.0", Speed: 100},
		{UUID: "GPU-b", Index: 3, MemoryMiB: 2048, Allocatable: 2, NUMANode: -1, Status: gpu.Unhealthy("XID 79")},
	},
	Links: []gpu.Link{{A: "GPU-a", B: "GPU-b", Lanes: 12}},
}

func TestInventoryRoundTrip(t *testing.T) {
	for name, want := range map[string]gpu.Inventory{"two GPUs": inventory, "no GPU": {UnitMiB: 256}} {
		t.Run(name, func(t *testing.T) {
			s, err := EncodeInventory(want)
			if err != nil {
				t.Fatal(err)
			}
			node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"gpumem.dev/inventory": s}}}
			got, err := names(t).InventoryOf(node)
			if diff := cmp.Diff(want, got); diff != "" || err != nil {
				t.Errorf("read back: %v (-want +got):\n%s", err, diff)
			}
		})
	}
	if _, err := EncodeInventory(gpu.Inventory{UnitMiB: -1}); err == nil {
		t.Error("an inventory that cannot be read back is written")
	}
	if got, err := names(t).InventoryOf(&v1.Node{}); err != nil || len(got.Devices) != 0 {
		t.Errorf("InventoryOf a node without the annotation = %v, %v", got, err)
	}
}

// The format is a contract with other versions of gpumem.
func TestInventoryForm(t *testing.T) {
	got, err := EncodeInventory(inventory)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"v":1,"unitMiB":1024,"driverVersion":"615.10","enforcement":"kernel","gpus":[` +
		`{"uuid":"GPU-a","index":0,"model":"NVIDIA A100","memoryMiB":81920,"units":79,"numaNode":0,"pci":"00000000:3b:00.0","computeCapability":"8.0","speed":100,"healthy":true},` +
		`{"uuid":"GPU-b","index":3,"memoryMiB":2048,"units":2,"healthy":false,"unhealthy":"XID 79"}],"nvlinks":[[0,3,12]]}`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("annotation (-want +got):\n%s", diff)
	}
}

func TestDecodeInventory(t *testing.T) {
	tests := map[string]struct {
		value   string
		wantErr string
	}{
		"fields of a newer writer are passed over": {`{"v":1,"unitMiB":1024,"colour":"red","gpus":[{"uuid":"a","index":0,"memoryMiB":2048,"units":2,"healthy":true,"x":{}}]}`, ""},
		"nothing":                    {``, "malformed value"},
		"something else":             {`[]`, "malformed value"},
		"null":                       {`null`, "unknown version 0, want 1"},
		"no version":                 {`{"unitMiB":1024}`, "unknown version 0, want 1"},
		"the next version":           {`{"v":2,"unitMiB":1024}`, "unknown version 2, want 1"},
		"the next version's form":    {`{"v":2,"gpus":{"a":1}}`, "unknown version 2, want 1"},
		"more after the end":         {`{"v":1,"unitMiB":1}{}`, "malformed value"},
		"no unit":                    {`{"v":1,"gpus":[{"uuid":"a","memoryMiB":2048,"units":1}]}`, "1 shares of 0 MiB in an inventory with units of 0 MiB"},
		"a GPU twice":                {`{"v":1,"unitMiB":1,"gpus":[{"uuid":"a"},{"uuid":"a","index":1}]}`, "listed twice"},
		"more units than memory":     {`{"v":1,"unitMiB":1024,"gpus":[{"uuid":"a","memoryMiB":2048,"units":9000000000000000000}]}`, "units of 1024 MiB in 2048 MiB"},
		"memory beyond all GPUs":     {`{"v":1,"unitMiB":1,"gpus":[{"uuid":"a","memoryMiB":9223372036854775807,"units":9223372036854775807}]}`, "at most"},
		"a number beyond all":        {`{"v":1,"unitMiB":1e30}`, "malformed value"},
		"a link to no GPU":           {`{"v":1,"unitMiB":1,"gpus":[{"uuid":"a","index":0}],"nvlinks":[[0,1,2]]}`, "link of 2 lanes from a to , want"},
		"a link to itself":           {`{"v":1,"unitMiB":1,"gpus":[{"uuid":"a","index":0}],"nvlinks":[[0,0,2]]}`, "from one device to another"},
		"a link of no lanes":         {`{"v":1,"unitMiB":1,"gpus":[{"uuid":"a","index":0},{"uuid":"b","index":1}],"nvlinks":[[0,1]]}`, "link of 0 lanes from a to b"},
		"an enforcement of the next": {`{"v":1,"unitMiB":1,"enforcement":"quantum"}`, `enforcement "quantum"`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := DecodeInventory(tc.value)
			checkError(t, err, tc.wantErr)
		})
	}
}

func TestAssignmentRoundTrip(t *testing.T) {
	n := names(t)
	on := placement.NewNode("n", inventory, nil)
	want := placement.Assignment{Shares: []placement.Share{{Device: "GPU-a", Units: 3, Cores: 30}, {Device: "GPU-b", Units: 3, Cores: 30}}}
	ref := placement.PodRef{Namespace: "ns", Name: "p", UID: "uid"}
	binding, err := n.Binding(ref, "n", want, on)
	if err != nil {
		t.Fatal(err)
	}
	wantBinding := &v1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "uid", Annotations: map[string]string{
			"gpumem.dev/gpu-index": "0,3",
			"gpumem.dev/assignment": `{"v":1,"unitMiB":1024,"enforcement":"kernel","gpus":[` +
				`{"uuid":"GPU-a","index":0,"units":3,"cores":30},{"uuid":"GPU-b","index":3,"units":3,"cores":30}]}`,
		}},
		Target: v1.ObjectReference{Kind: "Node", Name: "n"},
	}
	if diff := cmp.Diff(wantBinding, binding); diff != "" {
		t.Errorf("binding (-want +got):\n%s", diff)
	}
	want.Enforcement, want.UnitMiB = gpu.EnforcementKernel, 1024 // from the node
	got, err := n.AssignmentOf(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: binding.Annotations}})
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("read back: %v (-want +got):\n%s", err, diff)
	}
	annotations, err := n.AssignmentAnnotations(got, on)
	if diff := cmp.Diff(binding.Annotations, annotations); diff != "" || err != nil {
		t.Errorf("written again: %v (-want +got):\n%s", err, diff)
	}
	if a, err := n.AssignmentOf(&v1.Pod{}); err != nil || !a.None() {
		t.Errorf("AssignmentOf a pod without one = %v, %v", a, err)
	}
	elsewhere := placement.Assignment{Shares: []placement.Share{{Device: "GPU-x", Units: 3}}}
	if _, err := n.Binding(ref, "n", elsewhere, on); err == nil {
		t.Error("a GPU that the node lacks is written")
	}
	if _, err := n.AssignmentAnnotations(placement.Assignment{}, on); err == nil {
		t.Error("an assignment of nothing is written, and could not be read back")
	}
}

func TestDecodeAssignment(t *testing.T) {
	tests := map[string]struct {
		value   string
		wantErr string
	}{
		"one GPU":                 {assignmentOf("GPU-a"), ""},
		"fields of a newer":       {`{"v":1,"gpus":[{"uuid":"a","units":1,"x":1}],"y":2}`, ""},
		"nothing":                 {``, "malformed value"},
		"an index, as gpushare's": {`0`, "malformed value"},
		"the next version":        {`{"v":2,"containers":{}}`, "unknown version 2, want 1"},
		"no GPU":                  {`{"v":1}`, "it names no GPU"},
		"a GPU twice":             {assignmentOf("GPU-a", "GPU-a"), "named twice"},
		"a GPU without a name":    {assignmentOf(""), "empty"},
		"a negative unit":         {`{"v":1,"unitMiB":-1,"gpus":[{"uuid":"a","units":1}]}`, "unit is -1 MiB"},
		"a unit beyond all GPUs":  {`{"v":1,"unitMiB":1099511627777,"gpus":[{"uuid":"a","units":1}]}`, "unit is 1099511627777 MiB, want 1 to 1099511627776"},
		"no units":                {`{"v":1,"gpus":[{"uuid":"a"}]}`, "out of range"},
		"negative units":          {`{"v":1,"gpus":[{"uuid":"a","units":-1}]}`, "out of range"},
		"GPUs that it leaves":     {`{"v":1,"gpus":[{"uuid":"a","units":1}],"leaving":["b","c"]}`, ""},
		"leaving where it is":     {`{"v":1,"gpus":[{"uuid":"a","units":1}],"leaving":["a"]}`, "named twice"},
		"leaving nothing":         {`{"v":1,"gpus":[{"uuid":"a","units":1}],"leaving":[""]}`, "empty"},
		"endless units":           {`{"v":1,"gpus":[{"uuid":"a","units":9223372036854775807}]}`, "out of range"},
		"negative cores":          {`{"v":1,"gpus":[{"uuid":"a","units":1,"cores":-1}]}`, "out of range"},
		"more cores than a GPU's": {`{"v":1,"gpus":[{"uuid":"a","units":1,"cores":101}]}`, "out of range"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := DecodeAssignment(tc.value)
			checkError(t, err, tc.wantErr)
		})
	}
}

// FuzzDecodeInventory checks that a parsed inventory is valid and does not change when it is written and
// parsed again.
func FuzzDecodeInventory(f *testing.F) {
	good, err := EncodeInventory(inventory)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(`{"v":1,"unitMiB":1024,"gpus":null}`)
	f.Add(`{"v":1,"unitMiB":1,"gpus":[{"uuid":"\ud800","index":0,"memoryMiB":1099511627776,"units":1099511627776}]}`)
	f.Add(`{"v":1,"unitMiB":1,"gpus":[{"uuid":"a","index":9223372036854775807,"numaNode":-5}]}`)
	f.Fuzz(func(t *testing.T, s string) {
		inv, err := DecodeInventory(s)
		if err != nil {
			return
		}
		if inv.Allocatable() < 0 {
			t.Fatalf("a capacity of %d", inv.Allocatable())
		}
		written, err := EncodeInventory(inv)
		if err != nil {
			t.Fatal(err)
		}
		again, err := DecodeInventory(written)
		for i, d := range inv.Devices { // every negative value means unknown
			inv.Devices[i].NUMANode = max(-1, d.NUMANode)
		}
		if diff := cmp.Diff(inv, again); diff != "" || err != nil {
			t.Fatalf("read again: %v (-want +got):\n%s", err, diff)
		}
		if slots, err := gpu.NewSlots(inv); err == nil && inv.Allocatable() > 0 && inv.Devices[0].Allocatable > 0 && len(slots.Of(gpu.Cores, inv.Devices[0].UUID)) == 0 {
			t.Fatalf("no IDs for %s", inv.Devices[0].UUID)
		}
	})
}

// FuzzDecodeAssignment checks that a parsed assignment names each GPU once, has valid amounts, and does not
// change when it is written and parsed again.
func FuzzDecodeAssignment(f *testing.F) {
	f.Add(assignmentOf("GPU-a", "GPU-b"))
	f.Add(`{"v":1,"gpus":[{"uuid":"a","units":1,"cores":100}]}`)
	f.Add(`{"v":2,"gpus":7}`)
	f.Add(`{"v":1,"gpus":[{"uuid":"a","units":1}],"leaving":["b"],"byNode":true}`)
	f.Add(`{"V":1,"GPUS":[{"UUID":"a","UNITS":1.0}]}`)
	f.Fuzz(func(t *testing.T, s string) {
		a, err := DecodeAssignment(s)
		if err != nil {
			return
		}
		seen := make(map[gpu.UUID]bool)
		out := assignmentJSON{Version: version, UnitMiB: a.UnitMiB, ByNode: a.ByNode, Leaving: a.Leaving}
		for _, share := range a.Shares {
			if seen[share.Device] || share.Device == "" || share.Units < 1 || share.Units > maxAmount || share.Cores < 0 || share.Cores > 100 {
				t.Fatalf("share %+v of %q", share, s)
			}
			seen[share.Device] = true
			out.GPUs = append(out.GPUs, shareJSON{UUID: share.Device, Units: share.Units, Cores: share.Cores})
		}
		data, err := json.Marshal(out)
		if err != nil || a.None() {
			t.Fatalf("%v of %q: %v", a, s, err)
		}
		if again, err := DecodeAssignment(string(data)); err != nil || !cmp.Equal(a, again) {
			t.Fatalf("read again: %v, %v, want %v", again, err, a)
		}
	})
}

// A node whose unit differs from the installation's takes no pods.
func TestANodeWithAnotherUnitIsNotReady(t *testing.T) {
	for _, tc := range []struct {
		node, installation int64
		want               string
	}{
		{1024, 1024, ""},
		{512, 0, ""},
		{512, 1024, "not ready: the node has units of 512 MiB, and the installation has unitMiB 1024; drain the node, or restore unitMiB"},
	} {
		n := names(t)
		n.UnitMiB = tc.installation
		value, err := EncodeInventory(gpu.Inventory{UnitMiB: tc.node, Devices: []gpu.Device{{UUID: "GPU-0", MemoryMiB: 4096, Allocatable: 4}}})
		if err != nil {
			t.Fatal(err)
		}
		inv, err := n.InventoryOf(&v1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{n.Inventory(): value}}})
		if err != nil || inv.Devices[0].Status.Reason != tc.want || inv.Devices[0].Status.TakesPods() != (tc.want == "") {
			t.Errorf("units of %d MiB where the installation has %d: %+v, %v; want %q", tc.node, tc.installation, inv.Devices, err, tc.want)
		}
	}
}

func TestCordonedGPUsTakeNoNewPods(t *testing.T) {
	names, err := NewNames(DefaultDomain)
	if err != nil {
		t.Fatal(err)
	}
	value, err := EncodeInventory(gpu.Inventory{UnitMiB: 1024, Devices: []gpu.Device{
		{UUID: "GPU-a", Index: 0}, {UUID: "GPU-b", Index: 1}, {UUID: "GPU-c", Index: 2, Status: gpu.Unhealthy("XID 79")},
		{UUID: "GPU-d", Index: 3, Status: gpu.Status{Stopped: true}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
		names.Inventory(): value, names.Cordoned(): " GPU-b,,GPU-c, GPU-d,GPU-gone ",
	}}}
	inv, err := names.InventoryOf(node)
	if err != nil {
		t.Fatal(err)
	}
	var got []gpu.Status
	for _, d := range inv.Devices {
		got = append(got, d.Status)
	}
	want := []gpu.Status{{}, {Cordoned: true}, {Cordoned: true, Unhealthy: true, Reason: "XID 79"}, {Cordoned: true, Stopped: true}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := FormatCordonedGPUs(names.CordonedGPUs(node)); got != "GPU-b,GPU-c,GPU-d,GPU-gone" {
		t.Errorf("written again: %q", got)
	}
}
