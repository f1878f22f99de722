package api_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/tabletest"
	"github.com/gpumem/gpumem/pkg/report/history"
)

// Each folder of testdata/wire contains the values that a version has written for other parts or versions.
// Folders of released versions never change. The folder of the next version has the present output
// ("make update"), so a new field of a format shows in a diff.
const (
	first  gpu.UUID = "GPU-4cc89e34-1e0c-ae68-68be-61d8c9b26a2b"
	second gpu.UUID = "GPU-bff86e87-4d24-0ce3-d75c-0f9687e55afa"
)

// format is an encoding that two parts or two versions of gpumem share.
type format struct {
	file  string
	value any                               // with every field set
	write func() (string, error)            // writes the value
	again func(text string) (string, error) // parses a text and writes the result
	lost  map[string]string                 // by version: the reason why this version cannot read that version's text
	apart []string                          // fields that are stored elsewhere
}

func machine() gpu.Inventory {
	return gpu.Inventory{
		UnitMiB: 1024, DriverVersion: "580.65.06", Enforcement: gpu.EnforcementAdvisory, Weaker: "mps: no daemon answers", MPS: true, Coreless: true,
		Devices: []gpu.Device{
			{UUID: first, Index: 0, Model: "Tesla T4", MemoryMiB: 15360, Allocatable: 14, Foreign: 2, NUMANode: 1, PCI: "00000000:3b:00.0", ComputeCapability: "7.5", Speed: 21},
			{UUID: second, Index: 1, Model: "Tesla T4", MemoryMiB: 15360, Allocatable: 14, NUMANode: -1, PCI: "00000000:3c:00.0", ComputeCapability: "7.5", Speed: 21, Status: gpu.Unhealthy("XID 79")},
			{UUID: "GPU-0f0e0d0c-1111-2222-3333-444455556666", Index: 2, Model: "Tesla T4", MemoryMiB: 15360, Allocatable: 14, NUMANode: -1, Status: gpu.Status{Stopped: true}},
			{UUID: "GPU-0f0e0d0c-1111-2222-3333-444455556667", Index: 3, Model: "Tesla T4", MemoryMiB: 15360, Allocatable: 14, Foreign: 1, NUMANode: -1, Status: gpu.Status{ByClaims: true}},
		},
		Links: []gpu.Link{{A: first, B: second, Lanes: 2}},
		Allocated: []gpu.PodAllocation{
			{UID: "0f7a2c1e-3b4d-4e5f-8a9b-0c1d2e3f4a5b", Shares: []gpu.Share{{Device: first, Units: 3, Cores: 30}}},
			{UID: "1f7a2c1e-3b4d-4e5f-8a9b-0c1d2e3f4a5b", Namespace: "team", Name: "claimant", Shares: []gpu.Share{{Device: "GPU-0f0e0d0c-1111-2222-3333-444455556667", Units: 3, Cores: 30}}},
		},
	}
}

// A node with a plugin that ran another protocol of MPS has MPS clients too.
func TestInventoryWithARetiredProtocol(t *testing.T) {
	text, err := api.EncodeInventory(machine())
	if err != nil {
		t.Fatal(err)
	}
	if inv, err := api.DecodeInventory(strings.Replace(text, `"mps":2`, `"mps":3`, 1)); err != nil || !inv.MPS {
		t.Errorf("clients of MPS: %t, %v", inv.MPS, err)
	}
	if inv, err := api.DecodeInventory(strings.Replace(text, `"mps":2,`, "", 1)); err != nil || inv.MPS {
		t.Errorf("clients of no daemon: %t, %v", inv.MPS, err)
	}
}

func assignment() placement.Assignment {
	return placement.Assignment{
		Shares: []placement.Share{{Device: first, Units: 3, Cores: 30}}, UnitMiB: 1024, Enforcement: gpu.EnforcementAdvisory,
		ByNode: true, Allocated: true, Leaving: []gpu.UUID{second},
	}
}

func writeAssignment(a placement.Assignment) (string, error) {
	names, err := api.NewNames("gpumem.dev")
	if err != nil {
		return "", err
	}
	annotations, err := names.AssignmentAnnotations(a, placement.NewNode("node1", machine(), nil))
	return annotations[names.Assignment()], err
}

func decided() history.List {
	score, cores := int64(7), 70
	return history.List{Pods: []history.Pod{{
		Namespace: "team", Name: "serve", UID: "uid-serve", Tries: 2, First: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC),
		Decisions: []history.Decision{{
			Time: time.Date(2026, 1, 2, 3, 4, 6, 7, time.UTC), Verb: history.Filter, Result: history.Unfit, Reason: "Fragmented",
			Message: "needs 3 GiB on one GPU", Node: "node1", Asked: 2, Fit: 1, Sampled: true, Why: "cpu: node2 leaves more",
			Nodes: []history.Node{{
				Name: "node1", Score: &score, Reason: "Fragmented", Message: "needs 3 GiB on one GPU", UnitMiB: 1024,
				GPUs: []history.GPU{{
					Index: 1, UUID: first, Model: "Tesla T4", Capacity: 14, Free: 2, FreeCores: &cores, Reason: "InsufficientMemory",
					Unhealthy: "XID 79", Chosen: true, Status: gpu.Status{Unhealthy: true, Cordoned: true, Stopped: true, ByClaims: true, Reason: "XID 79"},
				}},
			}},
		}},
	}}}
}

func reservation() api.Reservation {
	return api.Reservation{Node: "node1", GPUs: []gpu.UUID{first, second}}
}

func formats() []format {
	return []format{
		{
			file: "inventory.json", value: machine(),
			apart: []string{".Devices[].Parent", ".Devices[].ShareMiB", ".Devices[].Status.Cordoned", ".CPU"}, // Parent is known on the node only, TestInventoryInShares covers ShareMiB, Cordoned is another annotation, and CPU is in the node's status
			write: func() (string, error) { return api.EncodeInventory(machine()) },
			again: func(text string) (string, error) {
				inv, err := api.DecodeInventory(text)
				if err != nil {
					return "", err
				}
				return api.EncodeInventory(inv)
			},
		},
		{
			file: "assignment.json", value: assignment(),
			write: func() (string, error) { return writeAssignment(assignment()) },
			again: func(text string) (string, error) {
				a, err := api.DecodeAssignment(text)
				if err != nil {
					return "", err
				}
				return writeAssignment(a)
			},
		},
		{
			file: "reservation.txt", value: reservation(),
			write: func() (string, error) { return reservation().Condition(time.Time{}).Message, nil },
			again: func(text string) (string, error) {
				pod := &v1.Pod{Status: v1.PodStatus{Conditions: []v1.PodCondition{{Type: api.Reserved, Status: v1.ConditionTrue, Message: text}}}}
				r, _, found := api.ReservationOf(pod, time.Time{})
				if !found {
					return "", fmt.Errorf("no reservation is found in %s", text)
				}
				return r.Condition(time.Time{}).Message, nil
			},
			lost: map[string]string{"0.1": "a sentence: what was kept for a pod that waits is kept no longer, and the pod is placed as others are"},
		},
		{file: "decisions.json", value: decided(), write: asJSON(decided()), again: jsonAgain[history.List]},
	}
}

func asJSON(value any) func() (string, error) {
	return func() (string, error) {
		text, err := json.Marshal(value)
		return string(text), err
	}
}

func jsonAgain[T any](text string) (string, error) {
	var value T
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		return "", err
	}
	return asJSON(value)()
}

// This version reads the values of each version with the same meaning: written again, they keep all fields.
func TestEachVersionIsRead(t *testing.T) {
	versions, err := filepath.Glob("testdata/wire/*")
	if err != nil || len(versions) < 2 {
		t.Fatal(versions, err)
	}
	for _, dir := range versions {
		version := filepath.Base(dir)
		for _, f := range formats() {
			text, err := os.ReadFile(filepath.Join(dir, f.file))
			if err != nil {
				t.Error(err)
				continue
			}
			got, err := f.again(strings.TrimSpace(string(text)))
			switch {
			case f.lost[version] != "":
				if err == nil {
					t.Errorf("%s of %s is read as %s, and it is said not to be: %s", f.file, version, got, f.lost[version])
				}
				continue
			case err != nil:
				t.Errorf("%s of %s: %v", f.file, version, err)
				continue
			}
			var was, is any
			if err := json.Unmarshal(text, &was); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal([]byte(got), &is); err != nil {
				t.Fatal(err)
			}
			for _, lost := range missing("", was, is) {
				t.Errorf("%s of %s: %s", f.file, version, lost)
			}
		}
	}
}

// missing lists the values of an old document (was) that a new document (is) lacks or changes.
func missing(path string, was, is any) (out []string) {
	switch was := was.(type) {
	case map[string]any:
		there, _ := is.(map[string]any)
		for key, value := range was {
			out = append(out, missing(path+"."+key, value, there[key])...)
		}
	case []any:
		there, _ := is.([]any)
		if len(there) != len(was) {
			return []string{fmt.Sprintf("%s had %d elements, and has %d", path, len(was), len(there))}
		}
		for i := range was {
			out = append(out, missing(fmt.Sprintf("%s[%d]", path, i), was[i], there[i])...)
		}
	default:
		if !cmp.Equal(was, is) {
			return []string{fmt.Sprintf("%s was %v, and is %v", path, was, is)}
		}
	}
	return out
}

func TestMissing(t *testing.T) {
	var was, is any
	if err := json.Unmarshal([]byte(`{"a":1,"b":[{"c":2,"d":3}],"e":[1]}`), &was); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(`{"a":1,"b":[{"c":4,"new":5}],"e":[]}`), &is); err != nil {
		t.Fatal(err)
	}
	got := missing("", was, is)
	slices.Sort(got)
	if diff := cmp.Diff([]string{".b[0].c was 2, and is 4", ".b[0].d was 3, and is <nil>", ".e had 1 elements, and has 0"}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// The folder of the next version matches the present output, with every field set, so new fields show here.
func TestTheVersionToCome(t *testing.T) {
	chart, err := os.ReadFile("../../../charts/gpumem/Chart.yaml")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join("testdata", "wire", string(regexp.MustCompile(`(?m)^version: (\d+\.\d+)\.`).FindSubmatch(chart)[1]))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, f := range formats() {
		if diff := cmp.Diff(f.apart, zeros("", reflect.ValueOf(f.value))); diff != "" {
			t.Errorf("%s: not set in the test: set it, so that the format has it (-want +got):\n%s", f.file, diff)
		}
		got, err := f.write()
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, f.file)
		if *tabletest.Update {
			if err := os.WriteFile(file, []byte(got+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(strings.TrimSpace(string(want)), got); diff != "" {
			t.Errorf("%s: this version writes something else now. Before its release: make update. After it: add fields, and change none (-was +is):\n%s", file, diff)
		}
	}
}

// zeros returns the unset fields of a value. For a list, these are the fields that no element sets.
func zeros(path string, v reflect.Value) (out []string) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return []string{path}
		}
		return zeros(path, v.Elem())
	case reflect.Slice:
		if v.Len() == 0 {
			return []string{path}
		}
		out = zeros(path+"[]", v.Index(0))
		for i := 1; i < v.Len(); i++ {
			out = slices.DeleteFunc(out, func(name string) bool { return !slices.Contains(zeros(path+"[]", v.Index(i)), name) })
		}
		return out
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			break
		}
		for i := range v.NumField() {
			out = append(out, zeros(path+"."+v.Type().Field(i).Name, v.Field(i))...)
		}
		return out
	default:
	}
	if v.IsZero() {
		return []string{path}
	}
	return nil
}
