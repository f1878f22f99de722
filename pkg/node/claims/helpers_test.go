package claims

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"go.uber.org/zap"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	cdi "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/resourceslices"
	"github.com/gpumem/gpumem/pkg/node/grants"
	"github.com/gpumem/gpumem/pkg/node/plugintest"
	"github.com/gpumem/gpumem/pkg/node/render"
)

const (
	domain = "gpumem.dev"
	node   = "node1"
)

// Names of the two GPUs.
var (
	gpuA = resourceslices.DeviceName(plugintest.GPUA)
	gpuB = resourceslices.DeviceName(plugintest.GPUB)
)

// errKilled is the error of all methods of a disk after its process was killed.
var errKilled = errors.New("killed")

// memory is a Disk that outlives its processes. A process is killed before or after a step.
type memory struct {
	checkpoint []byte
	aside      []byte
	unreadable bool
	specs      map[types.UID][]byte

	left  int  // steps until the kill; negative if none
	after bool // the last step is completed
	dead  bool
}

func newMemory() *memory { return &memory{specs: make(map[types.UID][]byte), left: -1} }

// step calls the function do, unless the process is killed.
func (m *memory) step(do func()) error {
	if m.dead {
		return errKilled
	}
	if m.left == 0 {
		if m.dead = true; m.after {
			do()
		}
		return errKilled
	}
	m.left--
	do()
	return nil
}

// again makes the disk usable for the next process after a kill.
func (m *memory) again() { m.left, m.dead = -1, false }

func (m *memory) Read() ([]byte, error) {
	if m.unreadable {
		return nil, errors.New("input/output error")
	}
	return m.checkpoint, nil
}

func (m *memory) Write(data []byte) error {
	return m.step(func() { m.checkpoint = slices.Clone(data) })
}

func (m *memory) SetAside() (string, error) {
	m.aside, m.checkpoint = m.checkpoint, nil
	return "aside", nil
}

func (m *memory) ReadSpec(uid types.UID) ([]byte, error) { return m.specs[uid], nil }

func (m *memory) Specs() ([]types.UID, error) { return slices.Collect(maps.Keys(m.specs)), nil }

func (m *memory) WriteSpec(uid types.UID, data []byte) error {
	return m.step(func() { m.specs[uid] = slices.Clone(data) })
}

func (m *memory) RemoveSpec(uid types.UID) error { return m.step(func() { delete(m.specs, uid) }) }

// env returns the environment in a claim's file.
func (m *memory) env(t *testing.T, uid types.UID) map[string]string {
	t.Helper()
	var file cdi.Spec
	if err := json.Unmarshal(m.specs[uid], &file); err != nil {
		t.Fatalf("CDI file of %s: %v", uid, err)
	}
	if len(file.Devices) != 1 || file.Devices[0].Name != string(uid) || file.Kind != domain+"/claim" {
		t.Fatalf("CDI file of %s: %+v", uid, file)
	}
	out := make(map[string]string)
	for _, variable := range file.Devices[0].ContainerEdits.Env {
		name, value, _ := strings.Cut(variable, "=")
		out[name] = value
	}
	return out
}

// rig is a driver with its dependencies.
type rig struct {
	*Driver
	disk   *memory
	source *plugintest.Source
	ready  error
}

func newRig(t *testing.T, inv gpu.Inventory, disk *memory) *rig {
	t.Helper()
	r := &rig{disk: disk, source: plugintest.NewSource(inv)}
	cfg := Config{
		Domain: domain, Node: node, Cores: true, Containers: render.DefaultConfig(),
		Ready: func(context.Context, gpu.Enforcement, []gpu.Device) error { return r.ready },
	}
	prepared, _, err := readClaims(disk, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	r.Driver = New(cfg, grants.NewOffers(r.source, false), disk, prepared, zap.NewNop())
	return r
}

// one prepares one claim.
func (r *rig) one(t *testing.T, claim *resourceapi.ResourceClaim) kubeletplugin.PrepareResult {
	t.Helper()
	results, err := r.PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{claim})
	if err != nil || len(results) != 1 {
		t.Fatalf("prepare: %v, %v", results, err)
	}
	return results[claim.UID]
}

func (r *rig) undo(t *testing.T, uid types.UID) error {
	t.Helper()
	results, err := r.UnprepareResourceClaims(t.Context(), []kubeletplugin.NamespacedObject{{UID: uid}})
	if err != nil || len(results) != 1 {
		t.Fatalf("unprepare: %v, %v", results, err)
	}
	return results[uid]
}

// result returns a part of a device, in GiB and in per cent of the cores.
func result(device string, gib, cores int64, change ...func(*resourceapi.DeviceRequestAllocationResult)) resourceapi.DeviceRequestAllocationResult {
	out := resourceapi.DeviceRequestAllocationResult{
		Request: "gpu", Driver: domain, Pool: node, Device: device, ShareID: new(types.UID("share")),
		ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{
			"memory": *resource.NewQuantity(gib<<30, resource.BinarySI), "cores": *resource.NewQuantity(cores, resource.DecimalSI),
		},
	}
	for _, f := range change {
		f(&out)
	}
	return out
}

func allocated(name string, results ...resourceapi.DeviceRequestAllocationResult) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name, UID: types.UID("uid-" + name)},
		Status:     resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: results}}},
	}
}

// mounts returns the mounts in a claim's file, with their options.
func (m *memory) mounts(t *testing.T, uid types.UID) (out []string) {
	t.Helper()
	var file cdi.Spec
	if err := json.Unmarshal(m.specs[uid], &file); err != nil {
		t.Fatal(err)
	}
	for _, mount := range file.Devices[0].ContainerEdits.Mounts {
		out = append(out, mount.ContainerPath+" "+mount.Options[len(mount.Options)-1])
	}
	return out
}
