package e2e

import (
	"testing"

	v1 "k8s.io/api/core/v1"
)

// upgrade gives the chart other values until the test's end.
func (e *env) upgrade(set ...string) {
	e.Helper()
	e.atEnd(func() {
		if _, err := suite.stack.Install(e.ctx, e.cluster, installed...); err != nil {
			e.Errorf("give the chart its values back: %v", err)
		}
	})
	e.reinstall(set...)
}

func (e *env) reinstall(set ...string) {
	e.Helper()
	if _, err := suite.stack.Install(e.ctx, e.cluster, append(set, installed...)...); err != nil {
		e.Fatal(err)
	}
}

// preferring makes a pod prefer a node as strongly as a pod can.
func preferring(node string) func(*v1.Pod) {
	return func(pod *v1.Pod) {
		pod.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []v1.PreferredSchedulingTerm{{
				Weight: 100,
				Preference: v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{{
					Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{node},
				}}},
			}},
		}}
	}
}

// The two nodes without a taint have four GPUs, an A100 and three T4.
func TestPodsThatSpreadHaveNoNeighbours(t *testing.T) {
	e := setup(t)
	on := make(map[string]string)
	for _, name := range []string{"a", "b", "c", "d"} {
		e.create(e.pod(name, 2, annotated("policy", "spread")))
		e.running(name)
		uuid := e.agree(name, "main")[0]
		if other, taken := on[uuid]; taken {
			t.Errorf("%s and %s are on one GPU", other, name)
		}
		on[uuid] = name
	}
}

func TestPoliciesOfTheClusterAndOfPods(t *testing.T) {
	e := setup(t)
	// lands makes a pod and says on which GPU of which node it must be.
	lands := func(name, node string, index int, more ...func(*v1.Pod)) {
		t.Helper()
		e.create(e.pod(name, 2, more...))
		e.wantIndexes(name, index)
		if got := e.get(name).Spec.NodeName; got != node {
			t.Errorf("%s is on %s, want %s", name, got, node)
		}
	}
	t.Log("as installed: binpack, of nodes and of GPUs, before what pods prefer")
	lands("anchor", "node1", 1, annotated("gpu-uuid", e.gpu("node1", 1)))
	lands("packed", "node1", 1)
	lands("packed-though-it-prefers", "node1", 1, preferring("node2"))
	lands("spread", "node2", 0, annotated("policy", "spread"))
	lands("alone", "node1", 0, onNode("node1"), annotated("policy", "exclusive"))

	t.Log("nodes spread, GPUs still packed")
	e.upgrade("nodePolicy=spread")
	lands("spread-by-node", "node2", 1) // the T4 has less free than the A100
	lands("packed-by-annotation", "node1", 1, annotated("policy", "binpack"))

	t.Log("a scheduler that hears what pods prefer")
	e.reinstall("scheduler.chooseNode=false", "scheduler.extenderWeight=1")
	lands("preferring", "node2", 1, preferring("node2"))
}
