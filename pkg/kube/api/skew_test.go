package api

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// The values that the first version wrote. Never change them: parts of an installation may be a minor version
// apart, and running pods keep their annotations.
const (
	firstInventory = `{"v":1,"unitMiB":1024,"driverVersion":"580.65.06","enforcement":"advisory","gpus":[` +
		`{"uuid":"GPU-4cc89e34-1e0c-ae68-68be-61d8c9b26a2b","index":0,"model":"Tesla T4","memoryMiB":15360,"units":14,"numaNode":0,"pci":"0000:00:1e.0","computeCapability":"7.5","speed":21,"healthy":true},` +
		`{"uuid":"GPU-bff86e87-4d24-0ce3-d75c-0f9687e55afa","index":1,"model":"Tesla T4","memoryMiB":15360,"units":14,"healthy":false,"unhealthy":"XID 79"}],"nvlinks":[[0,1,2]]}`
	firstAssignment = `{"v":1,"unitMiB":1024,"enforcement":"advisory","gpus":[{"uuid":"GPU-4cc89e34-1e0c-ae68-68be-61d8c9b26a2b","index":0,"units":3,"cores":30}]}`
)

func firstMachine() gpu.Inventory {
	first := gpu.Device{
		UUID: "GPU-4cc89e34-1e0c-ae68-68be-61d8c9b26a2b", Index: 0, Model: "Tesla T4", MemoryMiB: 15360, Allocatable: 14,
		NUMANode: 0, PCI: "0000:00:1e.0", ComputeCapability: "7.5", Speed: 21,
	}
	second := gpu.Device{
		UUID: "GPU-bff86e87-4d24-0ce3-d75c-0f9687e55afa", Index: 1, Model: "Tesla T4", MemoryMiB: 15360, Allocatable: 14,
		NUMANode: -1, Status: gpu.Unhealthy("XID 79"),
	}
	return gpu.Inventory{
		UnitMiB: 1024, DriverVersion: "580.65.06", Enforcement: gpu.EnforcementAdvisory, Devices: []gpu.Device{first, second},
		Links: []gpu.Link{{A: first.UUID, B: second.UUID, Lanes: 2}},
	}
}

// The values with later fields. Never change them after their release.
const (
	givenInventory = `,"given":[{"uid":"0f7a2c1e-3b4d-4e5f-8a9b-0c1d2e3f4a5b","gpus":[[0,3,30],[1,2,0]]}]}`
	heldAssignment = `{"v":1,"unitMiB":1024,"enforcement":"advisory","gpus":[{"uuid":"GPU-4cc89e34-1e0c-ae68-68be-61d8c9b26a2b","index":0,"units":3,"cores":30}],"held":true}`
)

// The kubelet's allocation, and its mark in an assignment, are separate fields. They do not
// change the fields of the first version.
func TestWhatTheKubeletHasGivenIsWrittenBeside(t *testing.T) {
	machine := firstMachine()
	machine.Allocated = []gpu.PodAllocation{{UID: "0f7a2c1e-3b4d-4e5f-8a9b-0c1d2e3f4a5b", Shares: []gpu.Share{
		{Device: machine.Devices[0].UUID, Units: 3, Cores: 30}, {Device: machine.Devices[1].UUID, Units: 2},
	}}}
	text, err := EncodeInventory(machine)
	if want := strings.TrimSuffix(firstInventory, "}") + givenInventory; err != nil || text != want {
		t.Errorf("%v\n got %s\nwant %s", err, text, want)
	}
	got, err := DecodeInventory(text)
	if diff := cmp.Diff(machine, got); err != nil || diff != "" {
		t.Errorf("read again: %v (-want +got):\n%s", err, diff)
	}
	n, a := names(t), placement.Assignment{Shares: []placement.Share{{Device: machine.Devices[0].UUID, Units: 3, Cores: 30}}, UnitMiB: 1024, Allocated: true}
	annotations, err := n.AssignmentAnnotations(a, placement.NewNode("n", machine, nil))
	if err != nil || annotations[n.Assignment()] != heldAssignment {
		t.Errorf("%v\n got %s\nwant %s", err, annotations[n.Assignment()], heldAssignment)
	}
	if read, err := DecodeAssignment(heldAssignment); err != nil || !read.Allocated {
		t.Errorf("read again: %v, %+v", err, read)
	}
	for _, wrong := range []string{
		`,"given":[{"uid":"","gpus":[[0,3,30]]}]}`, `,"given":[{"uid":"u","gpus":[[2,3,30]]}]}`,
		`,"given":[{"uid":"u","gpus":[[0,-3,30]]}]}`, `,"given":[{"uid":"u","gpus":[[0,3,101]]}]}`,
	} {
		if _, err := DecodeInventory(strings.TrimSuffix(firstInventory, "}") + wrong); err == nil || !strings.Contains(err.Error(), "cannot have") {
			t.Errorf("%s: %v", wrong, err)
		}
	}
}

// later is a document with additional fields, as the next minor version may write it.
func later(t *testing.T, text string) string {
	t.Helper()
	var document map[string]any
	if err := json.Unmarshal([]byte(text), &document); err != nil {
		t.Fatal(err)
	}
	document["later"] = map[string]any{"things": []int{1, 2}}
	for _, g := range document["gpus"].([]any) {
		g.(map[string]any)["temperature"] = 60
	}
	grown, err := json.Marshal(document)
	if err != nil {
		t.Fatal(err)
	}
	return string(grown)
}

// A device plugin and a scheduler read each other's values if one has this version and the other has the
// previous version.
func TestOneMinorVersionApart(t *testing.T) {
	for name, text := range map[string]string{"before": firstInventory, "after": later(t, firstInventory)} {
		got, err := DecodeInventory(text)
		if diff := cmp.Diff(firstMachine(), got); err != nil || diff != "" {
			t.Errorf("inventory of the version %s: %v (-want +got):\n%s", name, err, diff)
		}
	}
	want := placement.Assignment{Shares: []placement.Share{{Device: "GPU-4cc89e34-1e0c-ae68-68be-61d8c9b26a2b", Units: 3, Cores: 30}}, UnitMiB: 1024, Enforcement: gpu.EnforcementAdvisory}
	for name, text := range map[string]string{"before": firstAssignment, "after": later(t, firstAssignment)} {
		got, err := DecodeAssignment(text)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("assignment of the version %s: %v (-want +got):\n%s", name, err, diff)
		}
	}
	// The values of this version have the fields of the first one with the same meaning. Older readers
	// ignore later fields.
	text, err := EncodeInventory(firstMachine())
	if err != nil {
		t.Fatal(err)
	}
	var was, is map[string]any
	if err := json.Unmarshal([]byte(firstInventory), &was); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(text), &is); err != nil {
		t.Fatal(err)
	}
	for field, value := range was {
		if diff := cmp.Diff(value, is[field]); diff != "" {
			t.Errorf("inventory: field %s is another now (-first +now):\n%s", field, diff)
		}
	}
}

// The fields of the first version record whether a GPU takes pods, with the texts that the first version
// compares. An older reader recognizes a stopped plugin.
func TestStatusOneMinorVersionApart(t *testing.T) {
	const first = `{"v":1,"unitMiB":1024,"gpus":[{"uuid":"GPU-a","index":0,"memoryMiB":0,"units":0,`
	for name, tc := range map[string]struct {
		text   string     // of the first version, or with later fields
		status gpu.Status // the parsed status
		now    string     // text of this version; empty: the same text
	}{
		"healthy":       {text: `"healthy":true}]}`},
		"unhealthy":     {text: `"healthy":false,"unhealthy":"XID 79"}]}`, status: gpu.Unhealthy("XID 79")},
		"for no reason": {text: `"healthy":false}]}`, status: gpu.Unhealthy("")},
		"in like words": {text: `"healthy":false,"unhealthy":"XID 79; cordoned"}]}`, status: gpu.Unhealthy("XID 79; cordoned")},
		"cordoned":      {text: `"healthy":false,"unhealthy":"cordoned"}]}`, status: gpu.Unhealthy("cordoned")},
		"stopped before": {text: `"healthy":false,"unhealthy":"its device plugin is stopped or being replaced"}]}`, status: gpu.Status{Stopped: true},
			now: `"healthy":false,"unhealthy":"its device plugin is stopped or being replaced","stopped":true}]}`},
		"stopped": {text: `"healthy":false,"unhealthy":"in other words","stopped":true}]}`, status: gpu.Status{Stopped: true},
			now: `"healthy":false,"unhealthy":"its device plugin is stopped or being replaced","stopped":true}]}`},
	} {
		inv, err := DecodeInventory(first + tc.text)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := inv.Devices[0].Status; got != tc.status {
			t.Errorf("%s: read as %+v, want %+v", name, got, tc.status)
		}
		want := first + tc.now
		if tc.now == "" {
			want = first + tc.text
		}
		inv.Devices[0].Status.Cordoned = true // administrators cordon GPUs in another annotation
		if got, err := EncodeInventory(inv); err != nil || got != want {
			t.Errorf("%s: %v, written again\n got %s\nwant %s", name, err, got, want)
		}
	}
}
