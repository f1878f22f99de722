package nodefilter

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpumem/gpumem/pkg/kube/kubetest"
)

func TestNodeFacts(t *testing.T) {
	names := kubetest.Names(t)
	type change func(*v1.Node)
	taint := func(key string, effect v1.TaintEffect) change {
		return func(n *v1.Node) { n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: key, Effect: effect}) }
	}
	ready := func(status v1.ConditionStatus) change {
		return func(n *v1.Node) { n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: status}} }
	}
	offer := func(name v1.ResourceName, amount string) change {
		return func(n *v1.Node) { n.Status.Allocatable[name] = resource.MustParse(amount) }
	}
	cordon := func(n *v1.Node) { n.Spec.Unschedulable = true }
	type facts struct{ Refuses, RefusesCores, Taint string }
	const noCores = "Coreless: the node offers no gpumem.dev/gpu-core"
	for name, tc := range map[string]struct {
		changes []change
		want    facts
	}{
		"as it is":            {nil, facts{"", noCores, ""}},
		"ready, with cores":   {[]change{ready(v1.ConditionTrue), offer(names.GPUCore(), "100")}, facts{}},
		"its kubelet is gone": {[]change{ready(v1.ConditionUnknown), taint(v1.TaintNodeUnreachable, v1.TaintEffectNoExecute)}, facts{"NotReady: the node is NotReady", noCores, ""}},
		"cordoned":            {[]change{cordon, taint(v1.TaintNodeUnschedulable, v1.TaintEffectNoSchedule)}, facts{"SchedulingDisabled: the node is cordoned", noCores, ""}},
		"its plugin is stopped": {[]change{offer(names.GPUMem(), "0")},
			facts{"Withheld: its kubelet offers no gpumem.dev/gpu-mem: see kubectl inspect gpumem doctor", noCores, ""}},
		"for a team":                  {[]change{taint("team", v1.TaintEffectNoSchedule)}, facts{"", noCores, "team"}},
		"for a team, later":           {[]change{taint("nvidia.com/gpu", v1.TaintEffectNoSchedule), taint("team", v1.TaintEffectNoExecute)}, facts{"", noCores, "team"}},
		"for a team, and cordoned":    {[]change{cordon, taint("team", v1.TaintEffectNoSchedule)}, facts{"SchedulingDisabled: the node is cordoned", noCores, "team"}},
		"its disk is full":            {[]change{ready(v1.ConditionTrue), taint(v1.TaintNodeDiskPressure, v1.TaintEffectNoSchedule)}, facts{"", noCores, v1.TaintNodeDiskPressure}},
		"just ready again":            {[]change{ready(v1.ConditionTrue), taint(v1.TaintNodeNotReady, v1.TaintEffectNoSchedule)}, facts{"", noCores, v1.TaintNodeNotReady}},
		"better used by others":       {[]change{taint("team", v1.TaintEffectPreferNoSchedule)}, facts{"", noCores, ""}},
		"for pods with GPUs":          {[]change{taint("nvidia.com/gpu", v1.TaintEffectNoSchedule)}, facts{"", noCores, ""}},
		"for pods with GPU memory":    {[]change{taint("gpumem.dev/gpu-mem", v1.TaintEffectNoSchedule)}, facts{"", noCores, ""}},
		"for pods with cores of GPUs": {[]change{taint("gpumem.dev/gpu-core", v1.TaintEffectNoSchedule)}, facts{"", noCores, ""}},
	} {
		t.Run(name, func(t *testing.T) {
			node := &v1.Node{Status: v1.NodeStatus{Allocatable: v1.ResourceList{names.GPUMem(): resource.MustParse("16")}}}
			for _, change := range tc.changes {
				change(node)
			}
			f := NodeFacts(names, node, names.GPUMem())
			got := facts{Taint: f.Taint}
			if f.Refuses != nil {
				got.Refuses = f.Refuses.Reason + ": " + f.Refuses.Message
			}
			if f.RefusesCores != nil {
				got.RefusesCores = f.RefusesCores.Reason + ": " + f.RefusesCores.Message
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
