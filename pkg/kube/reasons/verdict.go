package reasons

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/nearmiss"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// messages has the texts for each reason of package placement.
var messages = [placement.Fragmented + 1]struct {
	detailed func(verdict) string
	brief    string // without the node's GPUs; empty: detailed
	onGPU    string // for one GPU; empty: the reason applies to no GPU
}{
	placement.Fits:              {detailed: func(v verdict) string { return v.need() + "; fits" }},
	placement.NoDevices:         {detailed: verdict.noDevices},
	placement.OtherUnits:        {detailed: verdict.otherUnits, onGPU: "has other units than the pod asks for"},
	placement.WeakerEnforcement: {detailed: verdict.weaker},
	placement.NoCores: {detailed: func(verdict) string {
		return "asks for cores of a GPU, and the node offers none: they are off (chart value cores)"
	}},
	placement.NoSuchDevice: {detailed: verdict.noSuchDevice, brief: "no GPU here matches", onGPU: "does not match the pod's request"},
	placement.TooLarge: {detailed: func(v verdict) string {
		return fmt.Sprintf("%s; the largest that qualifies here has %s: %s", v.need(), v.largest(), v.instead())
	}, brief: "no GPU here is as large", onGPU: "too small even when empty"},
	placement.TooFew: {detailed: func(v verdict) string {
		return fmt.Sprintf("%s; large enough here: %d: ask for fewer GPUs, or for less on each", v.need(), nearmiss.LargeEnough(v.Verdict))
	}, brief: "too few GPUs here are as large"},
	placement.Unhealthy:    {detailed: verdict.outOfUse, brief: "GPUs here are out of use", onGPU: "takes no new pods"},
	placement.Occupied:     {detailed: verdict.outOfUse, brief: "GPUs here are occupied", onGPU: "occupied"},
	placement.Insufficient: {detailed: verdict.insufficient, brief: "too little is free here", onGPU: "not enough free"},
	placement.Fragmented:   {detailed: verdict.fragmented, brief: "enough is free here in all, on no GPU alone"},
}

// Brief renders the need of the request and the reason of the refusal, without the node's numbers. Nodes
// that refuse a request for the same reason get the same text.
func Brief(v placement.Verdict) string {
	if missing := messages[v.Reason].brief; missing != "" {
		return verdict{v}.need() + "; " + missing
	}
	return Verdict(v)
}

// Verdict renders the need of the request and the GPUs of the node in one line.
func Verdict(of placement.Verdict) string { return messages[of.Reason].detailed(verdict{of}) }

// OnGPU returns the text of a reason for one GPU. Parameter name is the reason's name. The text is empty
// if the reason applies to no GPU.
func OnGPU(name string) string {
	for reason := range messages {
		if placement.Reason(reason).String() == name {
			return messages[reason].onGPU
		}
	}
	return ""
}

// verdict adds the rendering to placement.Verdict.
type verdict struct{ placement.Verdict }

func (v verdict) noDevices() string {
	if len(v.Node.Devices) > 0 {
		return "the node hands its GPUs out by claims, not by the extended resource"
	}
	return "the node offers no GPU memory: its device plugin has found no GPU, or has not reported yet"
}

func (v verdict) noSuchDevice() string {
	if v.instancesAlone() {
		return fmt.Sprintf("needs %d GPUs; the matching GPUs here are MIG instances, and a program can use only one: ask for one GPU", v.Request.GPUs())
	}
	has := models(v.Node)
	if v.Request.Models == "" {
		has = uuids(v.Node)
	}
	return fmt.Sprintf("wants a GPU that matches %s; this node has %s: change %s%s", globs(v.Request), has, v.globbed(), v.otherwise())
}

func (v verdict) outOfUse() string { return v.need() + "; free: " + v.devices() + v.anywhere() }

func (v verdict) fragmented() string {
	free := v.Node.FreeFor(v.Request)
	n := Number(free.Units, v.Node.UnitMiB)
	return fmt.Sprintf("%s; free: %s (%d%s in all, fragmented)%s", v.need(), v.devices(), n, v.cores(free.Cores), v.anywhere())
}

func (v verdict) insufficient() string {
	free := v.Node.FreeFor(v.Request)
	return fmt.Sprintf("%s; free: %s (%s%s in all)%s", v.need(), v.devices(), Amount(free.Units, v.Node.UnitMiB), v.cores(free.Cores), v.anywhere())
}

// otherUnits renders the units of the request and of the node.
func (v verdict) otherUnits() string {
	if v.Request.InShares {
		return "asks for shares of GPUs (gpu-share); this node offers amounts of GPU memory (gpu-mem)"
	}
	return "asks for amounts of GPU memory (gpu-mem); this node offers shares of GPUs (gpu-share)"
}

// weaker renders the node's level for the request, and the reasons why the level is not stronger.
func (v verdict) weaker() string {
	level := v.Node.LevelFor(v.Request.GPUs())
	var why []string
	if level != v.Node.Enforcement {
		why = append(why, "mps: MPS limits a pod of one GPU only")
	}
	if v.Node.Weaker != "" {
		why = append(why, v.Node.Weaker)
	}
	has := string(cmp.Or(level, gpu.EnforcementAdvisory))
	if len(why) > 0 {
		has += " (" + strings.Join(why, "; ") + ")"
	}
	return fmt.Sprintf("wants enforcement %s; this node has %s: ask for that, or for none", v.Request.Enforcement, has)
}

// need renders the request, with its constraints on GPUs.
func (v verdict) need() string {
	units, cores := v.Request.Share()
	which, matching := "one GPU", " that matches "
	if n := v.Request.GPUs(); n > 1 {
		which, matching = fmt.Sprintf("each of %d GPUs", n), " that match "
	}
	s := "needs " + Amount(units, v.Node.UnitMiB) + v.cores(cores) + " on " + which
	if g := globs(v.Request); g != "" {
		s += matching + g
	}
	if v.Request.Policy == placement.Exclusive {
		s += " alone"
	}
	if g := v.Request.ExclusiveGroup.Name; g != "" {
		s += fmt.Sprintf(" apart from exclusive-group %q", g)
	}
	return s
}

// devices lists the devices that match the pod's globs, with the free amount or the reason why the pod cannot
// use the device.
func (v verdict) devices() string {
	var parts []string
	for _, d := range v.Node.Devices {
		if !v.Request.Allows(d) {
			continue
		}
		part := fmt.Sprintf("GPU%d ", d.Index)
		switch left := v.Node.FreeOn(d); {
		case !d.Status.TakesPods():
			part += Status(d.Status)
		case !v.Node.CanShare(v.Request, d):
			part += "occupied"
		case !v.Node.HasClients(v.Request, d):
			part += fmt.Sprintf("has no MPS client left of %d", v.Node.Clients(d))
		default:
			n := Number(left.Units, v.Node.UnitMiB)
			part += fmt.Sprint(n) + v.cores(left.Cores)
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ", ")
}

// anywhere lists further causes of missing memory, besides the pods on the GPUs: programs without a grant, pods
// on an unknown GPU, and pods nominated to the node.
func (v verdict) anywhere() (s string) {
	var foreign []string
	for _, d := range v.Node.Devices {
		if d.Foreign > 0 && v.Request.Allows(d) {
			foreign = append(foreign, fmt.Sprintf("GPU%d %s", d.Index, Amount(d.Foreign, v.Node.UnitMiB)))
		}
	}
	if len(foreign) > 0 {
		s = "; used by programs without a grant: " + strings.Join(foreign, ", ")
	}
	if n := len(v.Node.Unattributed); n > 0 {
		s += fmt.Sprintf("; pods whose GPU is not known yet, counted on each: %d", n)
	}
	nominated := 0
	for _, h := range v.Node.Holdings() {
		if h.Nominated {
			nominated++
		}
	}
	if n := nominated; n > 0 {
		s += fmt.Sprintf("; reserved for pods nominated to this node: %d", n)
	}
	return s
}

// instead suggests an amount if no GPU is large enough. A user who requests millions of units probably meant
// bytes ("3Gi"). A user who requests thousands of units, many times a GPU's size, possibly meant MiB.
func (v verdict) instead() string {
	const bytesPerMiB, thousands, exactUnits = 1 << 20, 1 << 10, 5
	requested, unit := v.Request.Units(), gpu.Units(max(1, v.Node.UnitMiB))
	perUnit := func(mib gpu.Units) gpu.Units { return (mib + unit - 1) / unit }
	switch {
	case v.Request.InShares && requested > gpu.SharesPerDevice && !v.fitsSplit():
		return fmt.Sprintf("a GPU has %d: ask for less", gpu.SharesPerDevice)
	case v.Request.InShares && v.fitsSplit():
		return "ask for less, or for more GPUs"
	case v.Request.InShares:
		return "ask for less"
	case requested >= bytesPerMiB:
		return fmt.Sprintf("gpu-mem counts units of %s, not bytes: ask for %d", Amount(1, v.Node.UnitMiB), perUnit(requested/bytesPerMiB))
	case requested >= thousands && requested >= exactUnits*nearmiss.Largest(v.Verdict) && unit > 1:
		return fmt.Sprintf("gpu-mem counts units of %s: ask for %d if you meant MiB", Amount(1, v.Node.UnitMiB), perUnit(requested))
	case v.fitsSplit():
		return "ask for less, or for more GPUs"
	default:
		return "ask for less"
	}
}

// fitsSplit reports whether enough GPUs of the node would be large enough if the request were split over
// more GPUs.
func (v verdict) fitsSplit() bool {
	for v.Request.Count = v.Request.GPUs() + 1; v.Request.Count <= len(v.Node.Devices); v.Request.Count++ {
		if nearmiss.LargeEnough(v.Verdict) >= v.Request.Count {
			return true
		}
	}
	return false
}

func (v verdict) largest() string {
	return Amount(nearmiss.Largest(v.Verdict), v.Node.UnitMiB) + v.cores(gpu.CoresPerDevice)
}

// cores returns a suffix for an amount of memory if the pod requests cores too. The suffix contains no
// percent sign, because kube-scheduler's events drop the sign.
func (v verdict) cores(percent int) string {
	if v.Request.Cores() == 0 {
		return ""
	}
	return fmt.Sprintf(" and %d per cent of cores", percent)
}

// globbed returns the annotations that contain the globs.
func (v verdict) globbed() string {
	switch {
	case v.Request.UUIDs == "":
		return "gpu-model"
	case v.Request.Models == "":
		return "gpu-uuid"
	default:
		return "gpu-model or gpu-uuid"
	}
}

// instancesAlone reports whether only MIG instances match, so that the pod would have to request one GPU.
func (v verdict) instancesAlone() bool {
	one := v.Request
	one.Count = 1
	return v.Request.GPUs() > 1 && slices.ContainsFunc(v.Node.Devices, one.Allows)
}

// otherwise suggests a glob that matches a GPU of the node.
func (v verdict) otherwise() string {
	miss, ok := nearmiss.FindNearMiss(v.Verdict)
	switch {
	case !ok:
		if meant := nearmiss.MeantModel(v.Verdict); meant != "" {
			return fmt.Sprintf(" (did you mean %s?)", meant)
		}
		return ""
	case miss.Index != nil:
		return fmt.Sprintf(" (gpu-uuid takes no index: GPU%d is %s)", miss.Index.Index, miss.Index.UUID)
	default:
		return " (globs match the whole name: " + miss.Wider + ")"
	}
}

func globs(r placement.Request) string {
	return strings.Join(slices.Concat(r.Models.Texts(), r.UUIDs.Texts()), ",")
}

func uuids(n placement.Node) string {
	var out []string
	for _, d := range n.Devices {
		out = append(out, string(d.UUID))
	}
	return strings.Join(out, ", ")
}

func models(n placement.Node) string {
	var out []string
	for _, d := range n.Devices {
		if model := cmp.Or(d.Model, "a GPU of unknown model"); !slices.Contains(out, model) {
			out = append(out, model)
		}
	}
	return strings.Join(out, ", ")
}
