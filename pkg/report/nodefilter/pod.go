package nodefilter

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/gpumem/gpumem/pkg/core/decide"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/report/inspect"
)

// Nodes stores the nodes with GPU memory, and computes which nodes a pod's spec excludes.
type Nodes struct {
	nodes    map[string]*v1.Node                   // by name
	excluded map[string]map[string]*decide.Refusal // results of ExcludedNodes, by the pod's constraints as JSON
}

// NewNodes returns Nodes without a node.
func NewNodes() *Nodes {
	return &Nodes{nodes: make(map[string]*v1.Node), excluded: make(map[string]map[string]*decide.Refusal)}
}

// Add stores the fields of a node that other methods read.
func (n *Nodes) Add(node *v1.Node) {
	n.nodes[node.Name] = &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, Labels: node.Labels},
		Spec:       v1.NodeSpec{Taints: node.Spec.Taints, Unschedulable: node.Spec.Unschedulable},
		Status:     v1.NodeStatus{Conditions: api.NodeConditions(node)},
	}
}

// Facts derives the facts of nodes with GPU memory and of waiting pods from their objects. Parameter
// stored returns the object of a node; nil if there is none.
func Facts(names api.Names, nodes []placement.Node, stored func(name string) *v1.Node, waiting []*v1.Pod) inspect.Facts {
	facts := inspect.Facts{Resource: string(names.GPUMem()), Nodes: make(map[string]inspect.NodeFacts)}
	index := NewNodes()
	for _, n := range nodes {
		if node := stored(n.Name); node != nil && len(n.Devices) > 0 {
			facts.Nodes[n.Name] = NodeFacts(names, node, Advertises(names, n))
			index.nodes[n.Name] = node
		}
	}
	facts.CoresOff = index.CoresOff(names, facts)
	for _, pod := range waiting {
		if w := index.WaitFacts(names, pod); w.Problem != "" || !w.Request.Empty() { // a pod may request 0 units
			facts.Waiting = append(facts.Waiting, w)
		}
	}
	return facts
}

// WaitFacts returns the facts of a pod without a node, with its request and the nodes that its spec excludes.
func (n *Nodes) WaitFacts(names api.Names, pod *v1.Pod) inspect.WaitFacts {
	w := inspect.WaitFacts{
		Pod: api.Ref(pod), Scheduler: cmp.Or(pod.Spec.SchedulerName, v1.DefaultSchedulerName),
		Gated: len(pod.Spec.SchedulingGates) > 0, ExcludedNodes: n.ExcludedNodes(pod),
		NotConsidered: !api.Considered(pod), Created: pod.CreationTimestamp.Time,
	}
	w.LastMessage, _ = api.Unscheduled(pod)
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		w.Owner = owner.Kind + "/" + owner.Name
	}
	var err error
	if w.Request, err = names.Request(pod); err != nil {
		w.Problem = strings.ReplaceAll(err.Error(), "\n", "; ") // on one line: joined errors have several lines
	}
	w.Nominated, w.NominatedGPUs, _ = api.Nomination(pod, w.Request, time.Now())
	return w
}

// ExcludedNodes returns the nodes that a pod's spec excludes, with the reasons. Pods with the same constraints get
// the same map.
func (n *Nodes) ExcludedNodes(pod *v1.Pod) map[string]*decide.Refusal {
	terms := struct {
		Selector    map[string]string
		Affinity    *v1.Affinity
		Tolerations []v1.Toleration
	}{Selector: pod.Spec.NodeSelector, Tolerations: pod.Spec.Tolerations}
	if a := pod.Spec.Affinity; a != nil {
		terms.Affinity = &v1.Affinity{NodeAffinity: a.NodeAffinity}
	}
	key, _ := json.Marshal(terms) // plain data always encodes
	if off, ok := n.excluded[string(key)]; ok {
		return off
	}
	off := make(map[string]*decide.Refusal)
	for name, node := range n.nodes {
		if refusal := ExclusionRefusal(pod, node); refusal != nil {
			off[name] = refusal
		}
	}
	n.excluded[string(key)] = off
	return off
}

// ExclusionRefusal returns why a pod's nodeSelector, node affinity or tolerations exclude a node; nil if
// they do not.
func ExclusionRefusal(pod *v1.Pod, node *v1.Node) *decide.Refusal {
	if matches, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); err != nil || !matches {
		return &decide.Refusal{Reason: KeptAway, Message: "the pod's nodeSelector or affinity excludes the node", Unresolvable: true}
	}
	if taint, barred := untoleratedTaint(node, pod.Spec.Tolerations); barred {
		return &decide.Refusal{Reason: Untolerated, Message: "the pod does not tolerate taint " + taint}
	}
	return nil
}

// CoresOff returns a message if no node offers cores. The message is empty if a node offers cores. It is also empty
// if this is unknown, because no kubelet offers GPU memory either, or the facts have only some nodes.
func (n *Nodes) CoresOff(names api.Names, facts inspect.Facts) string {
	open := 0
	for name := range n.nodes {
		switch f := facts.Nodes[name]; {
		case f.RefusesCores == nil:
			return ""
		case !f.Withheld:
			open++
		}
	}
	if open == 0 || facts.Selected {
		return ""
	}
	return fmt.Sprintf("no node offers %s: cores are off (chart value cores)", names.GPUCore())
}
