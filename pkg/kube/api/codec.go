package api

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// version is the version of all JSON values. The package comment describes when it rises.
const version = 1

type inventoryJSON struct {
	Version       int             `json:"v"`
	UnitMiB       int64           `json:"unitMiB"` // 0: the GPUs are offered in shares; readers that do not support shares reject 0
	DriverVersion string          `json:"driverVersion,omitempty"`
	Enforcement   gpu.Enforcement `json:"enforcement,omitempty"`
	Weaker        string          `json:"weaker,omitempty"`   // reason why the level is not stronger
	MPS           int             `json:"mps,omitempty"`      // protocol of the MPS daemon
	Coreless      bool            `json:"coreless,omitempty"` // the node does not offer gpu-core; false also if an older plugin wrote the value
	GPUs          []deviceJSON    `json:"gpus"`
	NVLinks       [][3]int        `json:"nvlinks,omitempty"` // two indexes and the number of NVLinks between them
	Allocated     []givenJSON     `json:"given,omitempty"`
}

// givenJSON is a gpu.PodAllocation. It is compact, because the inventory may list each pod of the node.
type givenJSON struct {
	UID  string     `json:"uid"`
	Pod  string     `json:"pod,omitempty"` // NAMESPACE/NAME, for pods with claims
	GPUs [][3]int64 `json:"gpus"`          // index, units, per cent of cores
}

type deviceJSON struct {
	UUID              gpu.UUID  `json:"uuid"`
	Index             int       `json:"index"`
	Model             string    `json:"model,omitempty"`
	MemoryMiB         int64     `json:"memoryMiB"`
	Units             gpu.Units `json:"units"`                  // offered by the extended resource
	ClaimUnits        gpu.Units `json:"claimUnits,omitempty"`   // offered by claims, instead of Units. Readers that do not support claims thus see no units
	ShareMiB          int64     `json:"shareMiB,omitempty"`     // size of a unit, if the GPU is offered in shares
	Foreign           gpu.Units `json:"foreign,omitempty"`      // part of Units that processes without a grant use
	ClaimForeign      gpu.Units `json:"claimForeign,omitempty"` // the same part of ClaimUnits
	NUMANode          *int      `json:"numaNode,omitempty"`
	PCI               string    `json:"pci,omitempty"`
	ComputeCapability string    `json:"computeCapability,omitempty"`
	Speed             int       `json:"speed,omitempty"`
	Healthy           bool      `json:"healthy"`             // healthy and not stopped
	Unhealthy         string    `json:"unhealthy,omitempty"` // reason, for people
	Stopped           bool      `json:"stopped,omitempty"`   // healthy, but its device plugin is stopped
}

// stoppedBefore is the value of Unhealthy for a stopped device plugin, as the previous version wrote it.
const stoppedBefore = "its device plugin is stopped or being replaced"

// setStatus encodes a status so that the previous version can read it too. For a GPU offered by claims, it
// moves the amounts to the Claim fields. It omits cordons, which have their own annotation.
func (j *deviceJSON) setStatus(s gpu.Status) {
	j.Healthy, j.Unhealthy, j.Stopped = s.Works(), s.Reason, s.Stopped && !s.Unhealthy
	if s.ByClaims {
		j.ClaimUnits, j.ClaimForeign, j.Units, j.Foreign = j.Units, j.Foreign, 0, 0
	}
	if j.Stopped {
		j.Unhealthy = stoppedBefore
	}
}

func (j deviceJSON) status() (s gpu.Status) {
	switch {
	case j.Healthy:
	case j.Stopped, j.Unhealthy == stoppedBefore:
		s.Stopped = true
	default:
		s = gpu.Unhealthy(j.Unhealthy)
	}
	s.ByClaims = j.ClaimUnits > 0
	return s
}

type assignmentJSON struct {
	Version     int             `json:"v"`
	UnitMiB     int64           `json:"unitMiB"`
	Enforcement gpu.Enforcement `json:"enforcement"`
	GPUs        []shareJSON     `json:"gpus"`
	ByNode      bool            `json:"byNode,omitempty"`
	Allocated   bool            `json:"held,omitempty"`
	Leaving     []gpu.UUID      `json:"leaving,omitempty"`
}

type shareJSON struct {
	UUID  gpu.UUID  `json:"uuid"`
	Index int       `json:"index"`
	Units gpu.Units `json:"units"`
	Cores int       `json:"cores,omitempty"`
}

// mpsProtocol is the value of inventoryJSON.MPS on nodes whose containers are clients of MPS. Version 0.2
// writes 3. If it reads 2, it assumes that MPS limits only pods with one GPU.
const mpsProtocol = 2

// EncodeInventory returns the value of a node's inventory annotation. It returns an error if
// DecodeInventory would reject the value.
func EncodeInventory(inv gpu.Inventory) (string, error) {
	if err := ValidateInventory(inv); err != nil {
		return "", err
	}
	out := inventoryJSON{
		Version: version, UnitMiB: inv.UnitMiB, DriverVersion: inv.DriverVersion,
		Enforcement: inv.Enforcement, Weaker: inv.Weaker, Coreless: inv.Coreless, GPUs: []deviceJSON{},
	}
	if inv.MPS {
		out.MPS = mpsProtocol
	}
	for _, d := range inv.Devices {
		j := deviceJSON{
			UUID: d.UUID, Index: d.Index, Model: d.Model, MemoryMiB: d.MemoryMiB, Units: d.Allocatable, ShareMiB: d.ShareMiB, Foreign: d.Foreign,
			PCI: d.PCI, ComputeCapability: d.ComputeCapability, Speed: d.Speed,
		}
		j.setStatus(d.Status)
		if d.NUMANode >= 0 {
			j.NUMANode = &d.NUMANode
		}
		out.GPUs = append(out.GPUs, j)
	}
	for _, l := range inv.Links {
		a, _ := inv.Device(l.A)
		b, _ := inv.Device(l.B)
		out.NVLinks = append(out.NVLinks, [3]int{a.Index, b.Index, l.Lanes})
	}
	for _, g := range inv.Allocated {
		j := givenJSON{UID: g.UID}
		if g.Name != "" {
			j.Pod = g.Namespace + "/" + g.Name
		}
		for _, s := range g.Shares {
			d, _ := inv.Device(s.Device)
			j.GPUs = append(j.GPUs, [3]int64{int64(d.Index), int64(s.Units), int64(s.Cores)})
		}
		out.Allocated = append(out.Allocated, j)
	}
	data, err := json.Marshal(out)
	return string(data), err
}

// DecodeInventory parses the value of a node's inventory annotation.
func DecodeInventory(s string) (gpu.Inventory, error) {
	var in inventoryJSON
	if err := decode(s, &in); err != nil {
		return gpu.Inventory{}, err
	}
	inv := gpu.Inventory{
		UnitMiB: in.UnitMiB, DriverVersion: shareText(s, in.DriverVersion), Enforcement: shareText(s, in.Enforcement), Weaker: shareText(s, in.Weaker),
		MPS: in.MPS > 0, Coreless: in.Coreless, Devices: slices.Grow([]gpu.Device(nil), len(in.GPUs)),
	}
	for _, j := range in.GPUs {
		d := gpu.Device{
			UUID: shareText(s, j.UUID), Index: j.Index, Model: shareText(s, j.Model), MemoryMiB: j.MemoryMiB, Allocatable: cmp.Or(j.ClaimUnits, j.Units), ShareMiB: j.ShareMiB, Foreign: cmp.Or(j.ClaimForeign, j.Foreign),
			NUMANode: -1, PCI: shareText(s, j.PCI), ComputeCapability: shareText(s, j.ComputeCapability), Speed: j.Speed, Status: j.status(),
		}
		if j.NUMANode != nil {
			d.NUMANode = *j.NUMANode
		}
		inv.Devices = append(inv.Devices, d)
	}
	uuid := func(index int) gpu.UUID {
		at := slices.IndexFunc(inv.Devices, func(d gpu.Device) bool { return d.Index == index })
		if at < 0 {
			return ""
		}
		return inv.Devices[at].UUID
	}
	for _, l := range in.NVLinks {
		inv.Links = append(inv.Links, gpu.Link{A: uuid(l[0]), B: uuid(l[1]), Lanes: l[2]})
	}
	for _, j := range in.Allocated {
		g := gpu.PodAllocation{UID: j.UID}
		g.Namespace, g.Name, _ = strings.Cut(j.Pod, "/")
		for _, s := range j.GPUs {
			g.Shares = append(g.Shares, gpu.Share{Device: uuid(int(s[0])), Units: gpu.Units(s[1]), Cores: int(s[2])})
		}
		inv.Allocated = append(inv.Allocated, g)
	}
	slices.SortFunc(inv.Devices, func(a, b gpu.Device) int { return cmp.Compare(a.Index, b.Index) })
	if err := ValidateInventory(inv); err != nil {
		return gpu.Inventory{}, err
	}
	return inv, nil
}

// Offers reports whether the node has allocatable units of a resource.
func Offers(node *v1.Node, resource v1.ResourceName) bool {
	amount := node.Status.Allocatable[resource]
	return !amount.IsZero()
}

// NotReady returns the Ready condition of a node that is not ready. It returns nil for a ready node, and
// for a node without the condition.
func NotReady(node *v1.Node) *v1.NodeCondition {
	for i := range node.Status.Conditions {
		if c := &node.Status.Conditions[i]; c.Type == v1.NodeReady && c.Status != v1.ConditionTrue {
			return c
		}
	}
	return nil
}

// NodeConditions returns the Ready condition of a node that is not ready, with only its type and status. It
// returns nil for other nodes.
func NodeConditions(node *v1.Node) []v1.NodeCondition {
	if why := NotReady(node); why != nil {
		return []v1.NodeCondition{{Type: why.Type, Status: why.Status}}
	}
	return nil
}

// InventoryOf parses a node's inventory and applies the cordons. It returns an empty inventory for a node
// without the annotation, where no device plugin has reported yet.
func (n Names) InventoryOf(node *v1.Node) (gpu.Inventory, error) {
	value, ok := node.Annotations[n.Inventory()]
	if !ok {
		return gpu.Inventory{}, nil
	}
	inv, err := DecodeInventory(value)
	if err != nil {
		return gpu.Inventory{}, fmt.Errorf("annotation %s: %w", n.Inventory(), err)
	}
	return Cordon(n.withUnit(inv), n.CordonedGPUs(node)), nil
}

// withUnit marks all GPUs unhealthy if the node's unit differs from the installation's, because a pod's
// units would be a different amount of memory there.
func (n Names) withUnit(inv gpu.Inventory) gpu.Inventory {
	if n.UnitMiB == 0 || inv.UnitMiB == 0 || inv.UnitMiB == n.UnitMiB {
		return inv
	}
	inv.Devices = slices.Clone(inv.Devices)
	for i := range inv.Devices {
		inv.Devices[i].Status = gpu.Unhealthy(fmt.Sprintf("not ready: the node has units of %d MiB, and the installation has unitMiB %d; drain the node, or restore unitMiB", inv.UnitMiB, n.UnitMiB))
	}
	return inv
}

// CordonedGPUs parses the list of cordoned GPUs of a node. It may contain GPUs that the node lacks at
// present.
func (n Names) CordonedGPUs(node *v1.Node) (ids []gpu.UUID) {
	for id := range strings.SplitSeq(node.Annotations[n.Cordoned()], ",") {
		if id = strings.TrimSpace(id); id != "" {
			ids = append(ids, gpu.UUID(id))
		}
	}
	return ids
}

// FormatCordonedGPUs returns the value of the annotation Cordoned.
func FormatCordonedGPUs(ids []gpu.UUID) string {
	out := make([]string, 0, len(ids))
	for _, id := range ids {
		out = append(out, string(id))
	}
	return strings.Join(out, ",")
}

// Cordon returns the inventory with the given GPUs cordoned, whatever their other status.
func Cordon(inv gpu.Inventory, ids []gpu.UUID) gpu.Inventory {
	inv.Devices = slices.Clone(inv.Devices)
	for i := range inv.Devices {
		if d := &inv.Devices[i]; slices.Contains(ids, d.UUID) {
			d.Status.Cordoned = true
		}
	}
	return inv
}

// AssignmentAnnotations returns the annotations that record an assignment on a node. It returns an error
// for an empty assignment and for a device that the node lacks.
func (n Names) AssignmentAnnotations(a placement.Assignment, node placement.Node) (map[string]string, error) {
	if a.None() {
		return nil, errors.New("no GPU is assigned")
	}
	out := assignmentJSON{Version: version, UnitMiB: node.UnitMiB, Enforcement: cmp.Or(a.Enforcement, node.LevelFor(len(a.Shares)), gpu.EnforcementAdvisory), ByNode: a.ByNode, Allocated: a.Allocated, Leaving: a.Leaving}
	var indexes []int
	for _, s := range a.Shares {
		index := -1
		for _, d := range node.Devices {
			if d.UUID == s.Device {
				index = d.Index
			}
		}
		if index < 0 {
			return nil, fmt.Errorf("node %s has no GPU %s", node.Name, s.Device)
		}
		out.GPUs = append(out.GPUs, shareJSON{UUID: s.Device, Index: index, Units: s.Units, Cores: s.Cores})
		indexes = append(indexes, index)
	}
	data, err := json.Marshal(out)
	if err != nil {
		return nil, err
	}
	return map[string]string{
		n.Assignment(): string(data),
		n.Index():      FormatIndexes(indexes),
	}, nil
}

// DecodeAssignment parses the value of a pod's assignment annotation.
func DecodeAssignment(s string) (placement.Assignment, error) {
	var in assignmentJSON
	if err := decode(s, &in); err != nil {
		return placement.Assignment{}, err
	}
	if err := in.validate(); err != nil {
		return placement.Assignment{}, err
	}
	a := placement.Assignment{UnitMiB: in.UnitMiB, Enforcement: in.Enforcement, ByNode: in.ByNode, Allocated: in.Allocated}
	seen := make(map[gpu.UUID]bool)
	for _, g := range in.GPUs {
		switch {
		case g.UUID == "" || seen[g.UUID]:
			return placement.Assignment{}, fmt.Errorf("GPU %q is empty or named twice", g.UUID)
		case g.Units < 1 || g.Units > maxAmount || g.Cores < 0 || g.Cores > gpu.CoresPerDevice:
			return placement.Assignment{}, fmt.Errorf("GPU %s: %d units and %d%% of cores are out of range", g.UUID, g.Units, g.Cores)
		}
		seen[g.UUID] = true
		a.Shares = append(a.Shares, placement.Share{Device: g.UUID, Units: g.Units, Cores: g.Cores})
	}
	for _, left := range in.Leaving {
		if left == "" || seen[left] {
			return placement.Assignment{}, fmt.Errorf("list leaving: GPU %q is empty or named twice", left)
		}
		seen[left] = true
		a.Leaving = append(a.Leaving, left)
	}
	return a, nil
}

// validate checks the fields that apply to all GPUs.
func (in assignmentJSON) validate() error {
	if len(in.GPUs) == 0 {
		return errors.New("it names no GPU")
	}
	if in.UnitMiB < 0 || in.UnitMiB > maxAmount {
		return fmt.Errorf("unit is %d MiB, want 1 to %d", in.UnitMiB, int64(maxAmount))
	}
	if in.Enforcement == "" {
		return nil
	}
	_, err := ParseEnforcement(string(in.Enforcement))
	return err
}

// AssignmentOf parses a pod's assignment. It returns an empty assignment for a pod without the annotation.
func (n Names) AssignmentOf(pod *v1.Pod) (placement.Assignment, error) {
	value, ok := pod.Annotations[n.Assignment()]
	if !ok {
		return placement.Assignment{}, nil
	}
	a, err := DecodeAssignment(value)
	if err != nil {
		return placement.Assignment{}, fmt.Errorf("annotation %s: %w", n.Assignment(), err)
	}
	return a, nil
}

// FormatIndexes returns the value of the annotation Index.
func FormatIndexes(indexes []int) string {
	out := make([]string, 0, len(indexes))
	for _, i := range indexes {
		out = append(out, strconv.Itoa(i))
	}
	return strings.Join(out, ",")
}

// shareText returns a part of s that equals text, or text itself if s has no such part. It saves the memory
// of a copy if the caller keeps s anyway.
func shareText[S ~string](s string, text S) S {
	if i := strings.Index(s, string(text)); i >= 0 {
		return S(s[i : i+len(text)])
	}
	return text
}

// decode checks the version before it parses the value, because other versions may have another format.
func decode(s string, into any) error {
	var head struct {
		Version int `json:"v"`
	}
	err := json.Unmarshal([]byte(s), &head)
	if err == nil && head.Version != version {
		return fmt.Errorf("unknown version %d, want %d", head.Version, version)
	}
	if err == nil {
		err = json.Unmarshal([]byte(s), into)
	}
	if err != nil {
		return fmt.Errorf("malformed value: %w", err)
	}
	return nil
}
