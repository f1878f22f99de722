package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// mixedFleet returns nodes, changed one by one. Binpack likes T4 the best where a pod fits on one.
func mixedFleet(t testing.TB, size int, change func(i int, n *v1.Node)) (objects []runtime.Object) {
	t.Helper()
	for i := range size {
		n := fleetNode(t, i)
		if change != nil {
			change(i, n)
		}
		objects = append(objects, n)
	}
	return objects
}

// filters returns how many nodes the plugin was asked about for a pod.
func (c *cluster) filters(pod string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.filtered[pod]
}

// message returns why kube-scheduler has found no node for a pod.
func (c *cluster) message(t testing.TB, name string) string {
	t.Helper()
	for _, cond := range c.pod(t, name).Status.Conditions {
		if cond.Type == v1.PodScheduled && cond.Status == v1.ConditionFalse {
			return cond.Message
		}
	}
	return ""
}

func labelled(p *v1.Pod) { p.Labels = map[string]string{"app": "x"} }

var sameApp = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}

func byHost() v1.PodAffinityTerm {
	return v1.PodAffinityTerm{LabelSelector: sameApp, TopologyKey: v1.LabelHostname}
}

// spreads has a pod spread over hosts.
func spreads(how v1.UnsatisfiableConstraintAction) option {
	return func(p *v1.Pod) {
		labelled(p)
		p.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: v1.LabelHostname, WhenUnsatisfiable: how, LabelSelector: sameApp}}
	}
}

// localVolume returns a claim to a volume that is on one node.
func localVolume(node string) []runtime.Object {
	size := v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
	on := v1.NodeSelectorRequirement{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{node}}
	bound := map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
	return []runtime.Object{
		&v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "volume"}, Spec: v1.PersistentVolumeSpec{
			Capacity: size, PersistentVolumeSource: v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: "/data"}},
			ClaimRef:     &v1.ObjectReference{Namespace: namespace, Name: "claim", UID: "claim"},
			NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchExpressions: []v1.NodeSelectorRequirement{on}}}}},
		}, Status: v1.PersistentVolumeStatus{Phase: v1.VolumeBound}},
		&v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "claim", UID: "claim", Annotations: bound},
			Spec:   v1.PersistentVolumeClaimSpec{VolumeName: "volume", Resources: v1.VolumeResourceRequirements{Requests: size}},
			Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound, Capacity: size}},
	}
}

// Whatever other filters refuse, a hint leads to a node that passes them all in one cycle, and few
// nodes are filtered for it.
func TestHintsPassAllFilters(t *testing.T) {
	const size = 60
	far := nodeName(20) // an A100, which binpack likes the least
	liked := func(i int) bool { return i%4 >= 2 }
	distinct := func(t *testing.T, nodes []string) {
		t.Helper()
		if used := len(slices.Compact(slices.Sorted(slices.Values(nodes)))); used != len(nodes) {
			t.Errorf("%d pods are on %d nodes, want each on one of its own: %v", len(nodes), used, nodes)
		}
	}
	all := func(want func(i int) bool) func(t *testing.T, nodes []string) {
		return func(t *testing.T, nodes []string) {
			t.Helper()
			for _, name := range nodes {
				if !want(indexOfNode(name)) {
					t.Errorf("a pod is on %s: %v", name, nodes)
				}
			}
		}
	}
	onFar := all(func(i int) bool { return i == 20 })
	for _, tc := range []struct {
		name    string
		change  func(i int, n *v1.Node)
		objects []runtime.Object
		pods    int
		options []option
		filters int // of nodes for each pod, on average, at most
		want    func(t *testing.T, nodes []string)
		setups  []setup
	}{
		{name: "plain pods", pods: 32, filters: 4, want: func(t *testing.T, nodes []string) {
			if used := slices.Compact(slices.Sorted(slices.Values(nodes))); len(used) != 2 {
				t.Errorf("32 pods of 7 of 14 units are on %v, want two nodes of eight GPUs", used)
			}
		}},
		{
			name: "two profiles", pods: 32, filters: 4, setups: []setup{withSecond}, want: func(*testing.T, []string) {},
			options: []option{func(p *v1.Pod) {
				if strings.HasSuffix(p.Name, "1") {
					p.Spec.SchedulerName = second
				}
			}},
		},
		{
			name: "the nodes that binpack likes are tainted", pods: 32, filters: 50, want: all(func(i int) bool { return !liked(i) }),
			change: func(i int, n *v1.Node) {
				if liked(i) {
					n.Spec.Taints = []v1.Taint{{Key: "a", Value: "b", Effect: v1.TaintEffectNoSchedule}}
				}
			},
		},
		{
			name: "a selector of a few nodes", pods: 12, filters: 50, want: all(func(i int) bool { return i%20 == 0 }),
			change:  func(i int, n *v1.Node) { n.Labels["pool"] = fmt.Sprint(i % 20) },
			options: []option{func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"pool": "0"} }},
		},
		{
			name: "a node by its name, which no hint is needed for", pods: 4, filters: 1, want: onFar,
			options: []option{func(p *v1.Pod) {
				p.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
					MatchFields: []v1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: v1.NodeSelectorOpIn, Values: []string{far}}},
				}}}}}
			}},
		},
		{
			name: "a volume on one node", pods: 1, filters: size + 35, want: onFar, objects: localVolume(far),
			options: []option{func(p *v1.Pod) {
				p.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}}}}
			}},
		},
		{
			name: "a host port", pods: size, filters: 50, want: distinct,
			options: []option{func(p *v1.Pod) {
				p.Spec.Containers[0].Ports = []v1.ContainerPort{{ContainerPort: 80, HostPort: 80, Protocol: v1.ProtocolTCP}}
			}},
		},
		{
			name: "required anti-affinity", pods: size / 2, filters: 50, want: distinct,
			options: []option{labelled, func(p *v1.Pod) {
				p.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{byHost()}}}
			}},
		},
		{
			name: "required affinity to a pod on a node that binpack likes the least", pods: 4, filters: size + 35, want: onFar,
			objects: []runtime.Object{pod(t, "there", 0, labelled, func(p *v1.Pod) { p.Spec.NodeName, p.Status.Phase = far, v1.PodRunning })},
			options: []option{labelled, func(p *v1.Pod) {
				p.Spec.Affinity = &v1.Affinity{PodAffinity: &v1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{byHost()}}}
			}},
		},
		{name: "hard spreading", pods: size / 2, filters: 50, options: []option{spreads(v1.DoNotSchedule)}, want: distinct},
		{
			name: "CPU on one node alone", pods: 4, filters: size + 35, want: onFar, options: []option{cpu("4")},
			change: func(i int, n *v1.Node) {
				if i != 20 {
					n.Status.Allocatable[v1.ResourceCPU] = resource.MustParse("1")
				}
			},
		},
		{
			name: "a nominated pod goes to its node", pods: 1, filters: 1, want: onFar,
			options: []option{func(p *v1.Pod) { p.Status.NominatedNodeName = far }},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := start(t, append(mixedFleet(t, size, tc.change), tc.objects...), append(tc.setups, inProcess)...)
			var nodes []string
			filters := 0
			for i := range tc.pods {
				name := fmt.Sprint("pod-", i)
				c.add(t, pod(t, name, 7, tc.options...))
				nodes = append(nodes, c.bound(t, name, 0).Node)
				if cycles := len(c.questions(name)); cycles != 1 {
					t.Errorf("%s was tried %d times, want once", name, cycles)
				}
				filters += c.filters(name)
			}
			tc.want(t, nodes)
			t.Logf("%.1f nodes were filtered for each pod", float64(filters)/float64(tc.pods))
			if filters > tc.filters*tc.pods {
				t.Errorf("%d nodes were filtered for %d pods, want %d for each at most", filters, tc.pods, tc.filters)
			}
		})
	}
}

// indexOfNode returns which of a fleet a node is.
func indexOfNode(name string) (i int) {
	_, _ = fmt.Sscanf(name, "node-%04d", &i)
	return i
}

// A pod that fits nowhere waits with the same message as without hints. The second time few nodes
// are tried for a hint.
func TestAHintChangesNoRefusal(t *testing.T) {
	for _, tc := range []struct {
		name    string
		units   gpu.Units
		options []option
		first   int // nodes that are filtered, the first time and
		second  int // the second
	}{
		{name: "CPU is free nowhere", units: 7, options: []option{cpu("65")}, first: 32 + 60, second: 60 + 16},
		{name: "no GPU is as large", units: 90, first: 60, second: 60},
		{name: "no node has the label", units: 7, first: 32 + 60, second: 60 + 16, options: []option{func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"pool": "none"} }}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			messages := make(map[bool]string)
			for _, hinted := range []bool{false, true} {
				c := start(t, mixedFleet(t, 60, nil), inProcess, func(c *cluster) { c.unhinted = !hinted })
				c.add(t, pod(t, "pod", tc.units, tc.options...))
				c.waits(t, "pod")
				messages[hinted] = c.message(t, "pod")
				if !hinted {
					continue
				}
				first := c.filters("pod")
				c.scheduler.SchedulingQueue.Activate(klog.Background(), map[string]*v1.Pod{"pod": c.pod(t, "pod")})
				c.eventually(t, *patience, "it is tried again", func() bool { return len(c.questions("pod")) == 2 })
				c.waits(t, "pod")
				if second := c.filters("pod") - first; first > tc.first || second > tc.second {
					t.Errorf("%d nodes were filtered, and then %d, want %d and %d at most", first, second, tc.first, tc.second)
				}
			}
			if messages[true] != messages[false] {
				t.Errorf("with hints:\n%s\nwithout:\n%s", messages[true], messages[false])
			}
		})
	}
}

// A gated pod waits for its gate.
func TestAGatedPodGetsNoHint(t *testing.T) {
	c := start(t, mixedFleet(t, 4, nil), inProcess)
	c.add(t, pod(t, "gated", 7, func(p *v1.Pod) { p.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "later"}} }), pod(t, "pod", 7))
	c.bound(t, "pod", 0)
	if p := c.pod(t, "gated"); p.Spec.NodeName != "" || len(c.questions("gated")) > 0 {
		t.Errorf("it was tried %d times, and is on %q", len(c.questions("gated")), p.Spec.NodeName)
	}
	c.changePod(t, "gated", func(p *v1.Pod) { p.Spec.SchedulingGates = nil })
	c.bound(t, "gated", 0)
}

// A pod under a budget that allows no disruption stays, where another can be evicted.
func TestABudgetHoldsWithHints(t *testing.T) {
	a, b := node(t, "a"), node(t, "b")
	objects := []runtime.Object{a, b}
	for _, n := range []*v1.Node{a, b} {
		for i := range 2 {
			objects = append(objects, pod(t, fmt.Sprint(n.Name, i), 10, on(t, n, i), priority(1), gracefully, func(p *v1.Pod) { p.Labels = map[string]string{"on": n.Name} }))
		}
	}
	minimum := map[string]string{"on": "a"}
	objects = append(objects, &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "a"}, Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: minimum}}})
	c := start(t, objects, inProcess)
	c.add(t, pod(t, "high", 10, priority(1000)))
	if gone := c.evictedFor(t, "high", "a0", "a1", "b0", "b1"); len(gone) != 1 || !strings.HasPrefix(gone[0], "b") {
		t.Errorf("%v are evicted, want one of b's", gone)
	}
}

// Between nodes that are equal for gpumem, kube-scheduler's own scores decide: that with the image.
func TestScoresDecideBetweenEqualNodes(t *testing.T) {
	c := start(t, mixedFleet(t, 16, func(i int, n *v1.Node) {
		if i == 11 {
			n.Status.Images = []v1.ContainerImage{{Names: []string{"main:latest"}, SizeBytes: 2 << 30}}
		}
	}), inProcess)
	c.add(t, pod(t, "pod", 7))
	if got := c.bound(t, "pod", 0).Node; got != nodeName(11) {
		t.Errorf("it is on %s, want the node that has its image", got)
	}
	if filters := c.filters("pod"); filters > 5 {
		t.Errorf("%d nodes were filtered, want the four equal ones, and the chosen again", filters)
	}
}

// Preferences of the pod itself go before the policy for GPUs, which decides between the others.
func TestThePodsPreferencesGoFirst(t *testing.T) {
	antiAffinity := func(p *v1.Pod) {
		labelled(p)
		p.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []v1.WeightedPodAffinityTerm{{Weight: 100, PodAffinityTerm: byHost()}}}}
	}
	likes := func(node string) option {
		return func(p *v1.Pod) {
			p.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []v1.PreferredSchedulingTerm{{Weight: 1, Preference: v1.NodeSelectorTerm{
				MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{node}}},
			}}}}}
		}
	}
	// Binpack likes the two T4 best, then the L4, and then the A100.
	fleet := []int{0, 2, 3, 7}
	for _, mode := range modes {
		for _, tc := range []struct {
			name    string
			options []option
			want    map[string]int // pods by node
		}{
			{"none", nil, map[string]int{nodeName(3): 3}},
			{"preferred anti-affinity", []option{antiAffinity}, map[string]int{nodeName(2): 1, nodeName(3): 1, nodeName(7): 1}},
			{"soft spreading", []option{spreads(v1.ScheduleAnyway)}, map[string]int{nodeName(2): 1, nodeName(3): 1, nodeName(7): 1}},
			{"both", []option{antiAffinity, spreads(v1.ScheduleAnyway)}, map[string]int{nodeName(2): 1, nodeName(3): 1, nodeName(7): 1}},
			{"preferred node affinity", []option{likes(nodeName(0))}, map[string]int{nodeName(0): 3}},
		} {
			t.Run(mode.name+"/"+tc.name, func(t *testing.T) {
				t.Parallel()
				var objects []runtime.Object
				for _, i := range fleet {
					objects = append(objects, fleetNode(t, i))
				}
				c := start(t, objects, mode.setup)
				got := make(map[string]int)
				for i := range 3 {
					name := fmt.Sprint("pod-", i)
					c.add(t, pod(t, name, 3, tc.options...))
					got[c.bound(t, name, 0).Node]++
				}
				if !maps.Equal(got, tc.want) {
					t.Errorf("pods are on %v, want %v", got, tc.want)
				}
			})
		}
	}
}
