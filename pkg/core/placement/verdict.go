package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// Reason says why a request does not fit a node. The zero value means it fits.
type Reason uint8

// The reasons, from what can change least to what can change most. Where pods that leave help,
// from Occupied on, a request got equally far.
const (
	Fits              Reason = iota
	NoDevices                // the node offers no GPU
	WeakerEnforcement        // the node cannot hold a container to its grant as the pod demands
	OlderDriver              // the node's driver is older than the pod accepts
	NoCores                  // the pod asks for cores, and the node offers none
	NoSuchDevice             // no GPU of the node passes the pod's globs
	TooLarge                 // no GPU is large enough, were it empty
	TooFew                   // GPUs are large enough, but not as many as wanted
	Unhealthy                // too many of them are not healthy
	Occupied                 // the pod may not be beside the pods that are on them, or they are too many
	Insufficient             // not enough is free, on one GPU or in all
	Fragmented               // enough is free in all, on no GPU alone
)

// about is what is known of each reason; the words of a verdict are in Verdict.String.
var about = [...]struct {
	name  string
	never bool   // whatever pods leave the node
	brief string // see Verdict.Brief
}{
	Fits:              {name: "Fits"},
	NoDevices:         {name: "NoDevices", never: true},
	WeakerEnforcement: {name: "WeakerEnforcement", never: true},
	OlderDriver:       {name: "OlderDriver", never: true},
	NoCores:           {name: "NoCores", never: true},
	NoSuchDevice:      {name: "NoSuchDevice", never: true, brief: "no GPU here matches"},
	TooLarge:          {name: "TooLarge", never: true, brief: "no GPU here is as large"},
	TooFew:            {name: "TooFew", never: true, brief: "too few GPUs here are as large"},
	Unhealthy:         {name: "Unhealthy", brief: "GPUs here are out of use"},
	Occupied:          {name: "Occupied", brief: "GPUs here are occupied"},
	Insufficient:      {name: "Insufficient", brief: "too little is free here"},
	Fragmented:        {name: "Fragmented", brief: "enough is free here in all, on no GPU alone"},
}

// Reasons returns all reasons but Fits, in their order.
func Reasons() (out []Reason) {
	for r := range Reason(len(about)) {
		if r != Fits {
			out = append(out, r)
		}
	}
	return out
}

func (r Reason) String() string {
	if int(r) < len(about) {
		return about[r].name
	}
	return fmt.Sprintf("Reason(%d)", uint8(r))
}

// Verdict is the answer for one request on one node.
type Verdict struct {
	Reason  Reason
	Request Request
	Node    Node
}

// Fits reports whether the request fits the node.
func (v Verdict) Fits() bool { return v.Reason == Fits }

// Unresolvable reports whether the request can never fit the node as it is,
// whatever pods leave it. (Kubernetes: UnschedulableAndUnresolvable.)
func (v Verdict) Unresolvable() bool { return about[v.Reason].never }

// Gap is how far a node is from having room for a request, to tell which of several comes
// closest.
type Gap struct {
	reason Reason
	lack   int64 // MiB that would have to come free, on the GPUs where that is least
	fit    int   // how many GPUs would do; 1 where a GPU would with a wider glob
	free   int64 // MiB, the most on one GPU; of GPUs that are too small, what they have when empty
}

// Gap returns how far the node is from having room for the request.
func (v Verdict) Gap() Gap {
	g := Gap{reason: v.Reason, free: int64(v.Node.LargestFree()) * v.Node.UnitMiB}
	switch {
	case v.Reason == TooLarge:
		g.free = int64(v.mostUnits()) * v.Node.UnitMiB
	case v.Reason == NoSuchDevice && v.wholeName() != "":
		g.fit = 1
	}
	if g.stage() != Occupied {
		return g
	}
	lacks := v.lacks()
	for _, lack := range lacks[:min(len(lacks), v.Request.GPUs())] {
		g.lack += int64(lack) * v.Node.UnitMiB
		if lack == 0 {
			g.fit++
		}
	}
	return g
}

// stage returns how far the request got: the same wherever pods that leave help.
func (g Gap) stage() Reason {
	if g.reason == Fits {
		return Reason(len(about))
	}
	return min(g.reason, Occupied)
}

// lacks returns how much would have to come free of each device where that helps, the least
// first. What is short of cores counts as as much of the device's memory.
func (v Verdict) lacks() []gpu.Units {
	units, cores := v.Request.Share()
	out := make([]gpu.Units, 0, 16)
	allows := v.Request.allows()
	for _, d := range v.Node.Devices {
		left := v.Node.room(d)
		lack := max(0, units-left.units, ceilDiv(d.Allocatable*gpu.Units(max(0, cores-left.cores)), gpu.CoresPerDevice))
		switch v.Node.check(v.Request, d, allows) {
		case Fits, Insufficient:
			out = append(out, lack)
		case Occupied:
			out = append(out, max(1, lack, v.Node.barring(v.Request, d)))
		default: // no pod that leaves helps
		}
	}
	slices.Sort(out)
	return out
}

// Compare puts first the node where the request got further: of nodes that lack room where
// the least would have to come free, of others that with the most free on one GPU, or with the
// largest where all are too small.
func (g Gap) Compare(other Gap) int {
	return cmp.Or(
		cmp.Compare(other.stage(), g.stage()),
		cmp.Compare(g.lack, other.lack),
		cmp.Compare(other.fit, g.fit),
		cmp.Compare(other.reason, g.reason),
		cmp.Compare(other.free, g.free),
	)
}

// String says in one line what the request needs and what there is.
func (v Verdict) String() string {
	need := v.need()
	switch v.Reason {
	case Fits:
		return need + "; fits"
	case NoDevices:
		return "the node offers no GPU memory: its device plugin has found no GPU, or has not reported yet"
	case WeakerEnforcement:
		return v.weaker()
	case OlderDriver:
		return fmt.Sprintf("wants driver %s or newer; this node has %s", v.Request.DriverMin, cmp.Or(v.Node.DriverVersion, "one that is not known"))
	case NoCores:
		return "asks for cores of a GPU, and the node offers none: they are off (chart value cores)"
	case NoSuchDevice:
		has := models(v.Node)
		if v.Request.Models.Empty() {
			has = uuids(v.Node)
		}
		return fmt.Sprintf("wants a GPU that matches %s; this node has %s: change %s%s", globs(v.Request), has, v.globbed(), v.wholeName())
	case TooLarge:
		return fmt.Sprintf("%s; the largest that qualifies here has %s: %s", need, v.largest(), v.instead())
	case TooFew:
		return fmt.Sprintf("%s; large enough here: %d: ask for fewer GPUs, or for less on each", need, v.largeEnough())
	case Unhealthy, Occupied:
		return need + "; " + v.devices() + v.anywhere()
	case Fragmented:
		free := v.Node.freeFor(v.Request)
		n, _ := gpu.Scale(free.units, v.Node.UnitMiB)
		return fmt.Sprintf("%s; free: %s (%d%s in all, fragmented)%s", need, v.devices(), n, v.cores(free.cores), v.anywhere())
	default:
		free := v.Node.freeFor(v.Request)
		return fmt.Sprintf("%s; free: %s (%s%s in all)%s", need, v.devices(), gpu.Format(free.units, v.Node.UnitMiB), v.cores(free.cores), v.anywhere())
	}
}

// weaker says which level the node has for the request, and why no stronger one.
func (v Verdict) weaker() string {
	level := v.Node.Enforcement.For(v.Request.GPUs(), v.Node.MPS)
	why := v.Node.Weaker
	if level != v.Node.Enforcement {
		why = strings.TrimSuffix("mps: the MPS of its driver limits a pod of one GPU only; "+why, "; ")
	}
	has := string(cmp.Or(level, gpu.EnforcementAdvisory))
	if why != "" {
		has += " (" + why + ")"
	}
	return fmt.Sprintf("wants enforcement %s; this node has %s: ask for that, or for none", v.Request.Enforcement, has)
}

// need says what the pod wants, and of which GPUs.
func (v Verdict) need() string {
	units, cores := v.Request.Share()
	which, matching := "one GPU", " that matches "
	if n := v.Request.GPUs(); n > 1 {
		which, matching = fmt.Sprintf("each of %d GPUs", n), " that match "
	}
	s := "needs " + gpu.Format(units, v.Node.UnitMiB) + v.cores(cores) + " on " + which
	if g := globs(v.Request); g != "" {
		s += matching + g
	}
	if v.Request.Policy == Exclusive {
		s += " alone"
	}
	if g := v.Request.ExclusiveGroup.Name; g != "" {
		s += fmt.Sprintf(" apart from exclusive-group %q", g)
	}
	return s
}

// devices lists the devices that pass the pod's globs, each with what it has
// free or why that does not count.
func (v Verdict) devices() string {
	var parts []string
	allows := v.Request.allows()
	for _, d := range v.Node.Devices {
		if !allows(d) {
			continue
		}
		part := fmt.Sprintf("GPU%d ", d.Index)
		switch left := v.Node.room(d); {
		case !d.Status.TakesPods():
			part += d.Status.String()
		case !v.Node.apart(v.Request, d):
			part += "occupied"
		case !v.Node.serves(v.Request, d):
			part += fmt.Sprintf("has no MPS client left of %d", mpsClients)
		default:
			n, _ := gpu.Scale(left.units, v.Node.UnitMiB)
			part += fmt.Sprint(n) + v.cores(left.cores)
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ", ")
}

// anywhere tells of what counts and is no pod's that is seen on a device.
func (v Verdict) anywhere() (s string) {
	var foreign []string
	allows := v.Request.allows()
	for _, d := range v.Node.Devices {
		if d.Foreign > 0 && allows(d) {
			foreign = append(foreign, fmt.Sprintf("GPU%d %s", d.Index, gpu.Format(d.Foreign, v.Node.UnitMiB)))
		}
	}
	if len(foreign) > 0 {
		s = "; used by programs without a grant: " + strings.Join(foreign, ", ")
	}
	if n := len(v.Node.Unattributed); n > 0 {
		s += fmt.Sprintf("; pods whose GPU is not known yet, counted on each: %d", n)
	}
	if n := len(v.Node.holdings(func(h Holding) bool { return h.Nominated })); n > 0 {
		s += fmt.Sprintf("; kept for pods that are nominated to this node: %d", n)
	}
	return s
}

// instead says what to ask for where no GPU is as large. An amount beyond all GPUs
// was meant in bytes, "3Gi", and one of thousands that is many times a GPU perhaps in MiB.
func (v Verdict) instead() string {
	const bytesPerMiB, thousands, many = 1 << 20, 1 << 10, 5
	asked, unit := v.Request.Units(), gpu.Units(max(1, v.Node.UnitMiB))
	switch {
	case asked >= bytesPerMiB:
		return fmt.Sprintf("it counts units of %s, not bytes: ask for %d", gpu.Format(1, v.Node.UnitMiB), ceilDiv(asked/bytesPerMiB, unit))
	case asked >= thousands && asked >= many*v.mostUnits() && unit > 1:
		return fmt.Sprintf("it counts units of %s: if MiB were meant, ask for %d", gpu.Format(1, v.Node.UnitMiB), ceilDiv(asked, unit))
	case v.fitsSplit():
		return "ask for less, or for more GPUs"
	default:
		return "ask for less"
	}
}

// fitsSplit reports whether the node has GPUs enough that are large enough for the
// request, were it split over more of them.
func (v Verdict) fitsSplit() bool {
	for v.Request.Count = v.Request.GPUs() + 1; v.Request.Count <= len(v.Node.Devices); v.Request.Count++ {
		if v.largeEnough() >= v.Request.Count {
			return true
		}
	}
	return false
}

func (v Verdict) largest() string {
	return gpu.Format(v.mostUnits(), v.Node.UnitMiB) + v.cores(gpu.CoresPerDevice)
}

// mostUnits returns what the largest device has that passes the pod's globs.
func (v Verdict) mostUnits() (most gpu.Units) {
	allows := v.Request.allows()
	for _, d := range v.Node.Devices {
		if allows(d) {
			most = max(most, d.Allocatable)
		}
	}
	return most
}

// cores is what to add to an amount of memory if the pod asks for cores too. It
// has no percent sign: kube-scheduler's event would not show one.
func (v Verdict) cores(percent int) string {
	if v.Request.Cores() == 0 {
		return ""
	}
	return fmt.Sprintf(" and %d per cent of cores", percent)
}

func (v Verdict) largeEnough() (n int) {
	allows := v.Request.allows()
	for _, d := range v.Node.Devices {
		if allows(d) && v.Request.fitsEmpty(d) {
			n++
		}
	}
	return n
}

// globbed names the annotations that the globs are from.
func (v Verdict) globbed() string {
	switch {
	case v.Request.UUIDs.Empty():
		return "gpu-model"
	case v.Request.Models.Empty():
		return "gpu-uuid"
	default:
		return "gpu-model or gpu-uuid"
	}
}

// wholeName says of a glob that a GPU here would do with a star before it, after it, or on
// either side.
func (v Verdict) wholeName() string {
	models, ids := v.nearly()
	for _, glob := range v.Request.Models.Texts() {
		if hint := wider(models, glob, withStars(glob, true, false)); hint != "" {
			return hint
		}
	}
	for _, glob := range v.Request.UUIDs.Texts() {
		if len(glob) >= wholeUUID {
			continue // what most have, of one GPU of one node
		}
		if at := slices.IndexFunc(v.Node.Devices, func(d Device) bool { return glob == strconv.Itoa(d.Index) }); at >= 0 {
			return fmt.Sprintf(" (it is no index: GPU%s is %s)", glob, v.Node.Devices[at].UUID)
		}
		if len(strings.Trim(glob, "*")) < telling {
			continue
		}
		if hint := wider(ids, glob, withStars(glob, false, true)); hint != "" {
			return hint
		}
	}
	return ""
}

// nearly returns the names, folded, of models and of GPUs that one more glob of their list
// could let in: nothing else of the request keeps them out.
func (v Verdict) nearly() (models, ids [][]string) {
	for _, d := range v.Node.Devices {
		model, id := namesOfModel(d.Model), folded(string(d.UUID))
		if v.Request.UUIDs.match(id) && !v.Request.Models.exclude(model) {
			models = append(models, model)
		}
		if v.Request.Models.match(model) && !v.Request.UUIDs.exclude(id) {
			ids = append(ids, id)
		}
	}
	return slices.CompactFunc(models, slices.Equal), ids
}

// wider says whether one of some names would pass with a glob written in another way, or
// with a star on either side.
func wider(names [][]string, glob, first string) string {
	for _, text := range []string{first, withStars(glob, true, true)} {
		if text != glob && slices.ContainsFunc(names, newGlob(text).matches) {
			return " (globs match the whole name: " + text + ")"
		}
	}
	return ""
}

// telling is how much of a UUID says which one was meant.
const telling = 4

// wholeUUID is how long the UUID of a GPU is.
const wholeUUID = len("GPU-00000000-0000-0000-0000-000000000000")

// withStars returns a glob with stars on these sides beside those that it has; one that
// excludes stays as it is.
func withStars(glob string, before, after bool) string {
	if strings.HasPrefix(glob, "!") {
		return glob
	}
	if before && !strings.HasPrefix(glob, "*") {
		glob = "*" + glob
	}
	if after && !strings.HasSuffix(glob, "*") {
		glob += "*"
	}
	return glob
}

func globs(r Request) string {
	return strings.Join(slices.Concat(r.Models.Texts(), r.UUIDs.Texts()), ",")
}

func uuids(n Node) string {
	var out []string
	for _, d := range n.Devices {
		out = append(out, string(d.UUID))
	}
	return strings.Join(out, ", ")
}

func models(n Node) string {
	var out []string
	for _, d := range n.Devices {
		if model := cmp.Or(d.Model, "a GPU of unknown model"); !slices.Contains(out, model) {
			out = append(out, model)
		}
	}
	return strings.Join(out, ", ")
}

// Brief says what the request needs and what is missing, in the same words for each node
// where the same is.
func (v Verdict) Brief() string {
	missing := about[v.Reason].brief
	if missing == "" {
		return v.String()
	}
	return v.need() + "; " + missing
}
