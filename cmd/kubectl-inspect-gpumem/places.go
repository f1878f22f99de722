package main

import (
	"encoding/json"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"github.com/gpumem/gpumem/pkg/api"
	"github.com/gpumem/gpumem/pkg/cache"
	"github.com/gpumem/gpumem/pkg/gpu"
	"github.com/gpumem/gpumem/pkg/inspect"
)

// Why nodes refuse pods, whatever is free there, in a word.
const (
	cordoned    = "SchedulingDisabled"
	notReady    = "NotReady"
	withheld    = "Withheld"
	coreless    = "Coreless"
	keptAway    = "NodeAffinity"
	untolerated = "UntoleratedTaint"
)

// places are the nodes with GPU memory, as far as they and a pod say of each other
// whether it may go there, and what nodes offer at all.
type places struct {
	nodes   map[string]*v1.Node                  // by name; no more of each than it takes
	known   map[string]map[string]*cache.Refusal // by what pods say of nodes, and by node
	offered map[v1.ResourceName]bool             // by any node, with GPU memory or without
	partial bool                                 // the nodes are not all of the cluster
}

func newPlaces() *places {
	return &places{nodes: make(map[string]*v1.Node), known: make(map[string]map[string]*cache.Refusal), offered: make(map[v1.ResourceName]bool)}
}

func (p *places) add(node *v1.Node, inv gpu.Inventory) {
	for name := range node.Status.Allocatable {
		p.offered[name] = p.offered[name] || api.Offers(node, name)
	}
	if len(inv.Devices) == 0 {
		return
	}
	p.nodes[node.Name] = &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, Labels: node.Labels},
		Spec:       v1.NodeSpec{Taints: node.Spec.Taints, Unschedulable: node.Spec.Unschedulable},
	}
	if why := api.NotReady(node); why != nil {
		p.nodes[node.Name].Status.Conditions = []v1.NodeCondition{*why}
	}
}

// unoffered returns a resource for which a pod waits in vain; empty: none is known.
func (p *places) unoffered(names api.Names, pod *v1.Pod) v1.ResourceName {
	if p.partial {
		return ""
	}
	for _, resource := range names.Unoffered(pod, func(name v1.ResourceName) bool { return p.offered[name] }) {
		return resource
	}
	return ""
}

// keptOff returns why a pod may not go to nodes, by name. The pods of a template
// have the same.
func (p *places) keptOff(pod *v1.Pod) map[string]*cache.Refusal {
	terms := struct {
		Selector    map[string]string
		Affinity    *v1.Affinity
		Tolerations []v1.Toleration
	}{Selector: pod.Spec.NodeSelector, Tolerations: pod.Spec.Tolerations}
	if a := pod.Spec.Affinity; a != nil {
		terms.Affinity = &v1.Affinity{NodeAffinity: a.NodeAffinity}
	}
	key, _ := json.Marshal(terms) // plain data
	if off, ok := p.known[string(key)]; ok {
		return off
	}
	off := make(map[string]*cache.Refusal)
	for name, node := range p.nodes {
		if refusal := keepsOff(pod, node); refusal != nil {
			off[name] = refusal
		}
	}
	p.known[string(key)] = off
	return off
}

// keepsOff says why a pod may not go to a node, by its nodeSelector, its node
// affinity and the taints that it tolerates; nil: it may.
func keepsOff(pod *v1.Pod, node *v1.Node) *cache.Refusal {
	if matches, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); err != nil || !matches {
		return &cache.Refusal{Reason: keptAway, Message: "the pod's nodeSelector or affinity keeps it away", Unresolvable: true}
	}
	taint, barred := corev1.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints, pod.Spec.Tolerations, func(t *v1.Taint) bool {
		// What the node itself says.
		isCordon := node.Spec.Unschedulable && t.Key == v1.TaintNodeUnschedulable
		isDown := api.NotReady(node) != nil && (t.Key == v1.TaintNodeNotReady || t.Key == v1.TaintNodeUnreachable)
		return t.Effect != v1.TaintEffectPreferNoSchedule && !isCordon && !isDown
	}, false)
	if barred {
		return &cache.Refusal{Reason: untolerated, Message: "the pod does not tolerate taint " + taint.Key}
	}
	return nil
}

// refuses says why a node, of which the kubelet withholds what it has or does not,
// takes no new pods, whatever is free and whatever they ask for; nil: it does.
func refuses(names api.Names, node *v1.Node, withholds bool) *cache.Refusal {
	switch {
	case node.Spec.Unschedulable:
		return &cache.Refusal{Reason: cordoned, Message: inspect.NodeCordoned}
	case api.NotReady(node) != nil:
		return &cache.Refusal{Reason: notReady, Message: inspect.NodeNotReady}
	case withholds:
		return &cache.Refusal{Reason: withheld, Message: fmt.Sprintf("its kubelet offers no %s: see kubectl inspect gpumem doctor", names.GPUMem())}
	default:
		return nil
	}
}

// refusesCores says the same of pods that ask for cores.
func refusesCores(names api.Names, node *v1.Node) *cache.Refusal {
	if api.Offers(node, names.GPUCore()) {
		return nil
	}
	return &cache.Refusal{Reason: coreless, Message: fmt.Sprintf("the node offers no %s", names.GPUCore())}
}

// coresOff says that no node has cores for pods, as far as nodes offer anything;
// empty: some has, or may have.
func coresOff(names api.Names, facts inspect.Facts, where *places) string {
	open := 0
	for name := range where.nodes {
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
	return fmt.Sprintf("no node offers %s: it is off (chart value cores)", names.GPUCore())
}
