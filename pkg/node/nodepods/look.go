package nodepods

import (
	"context"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

// Seen is what is on a node at one moment.
type Seen struct {
	UID     types.UID // of the node's object
	Labels  map[string]string
	Holders []string // pods that hold amounts of memory and have not ended, as namespace/name
	Sharers []string // the same of those that hold shares

	Offered gpu.Inventory // what its device plugin has written last
}

// InShares reports whether the GPUs of the node are offered in shares, where its label says so or does
// not, and why. What was offered is still offered until no pod holds any of it.
func (s Seen) InShares(labelled bool) (inShares bool, why string) {
	was, holders := labelled, s.Sharers
	switch {
	case len(s.Offered.Devices) > 0:
		was = s.Offered.InShares()
	case len(s.Holders) > 0: // of a plugin that wrote nothing
		was = false
	}
	if !was {
		holders = s.Holders
	}
	switch {
	case was != labelled && len(holders) > 0:
		return was, fmt.Sprintf("the other is to come once these pods have ended: %s", strings.Join(holders, ", "))
	case labelled:
		return true, "the node's label says so"
	default:
		return false, "no label of the node says otherwise"
	}
}

// Look asks the API server what is on a node. An answer is whole, or an error.
func Look(ctx context.Context, client kubernetes.Interface, names api.Names, node string) (s Seen, err error) {
	ctx, cancel := context.WithTimeout(ctx, toldTimeout)
	defer cancel()
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{FieldSelector: NewNode(client, names, node, nil).selector()})
	if err != nil {
		return s, fmt.Errorf("read node %s: %w", node, err)
	}
	if len(nodes.Items) != 1 {
		return s, fmt.Errorf("node %s is not there yet", node)
	}
	pods, err := client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: NewPods(client, names, node, nil).selector()})
	if err != nil {
		return s, fmt.Errorf("list the pods of node %s: %w", node, err)
	}
	s = Seen{UID: nodes.Items[0].UID, Labels: nodes.Items[0].Labels}
	s.Offered, _ = names.InventoryOf(&nodes.Items[0]) // one that cannot be read says nothing
	for i := range pods.Items {
		pod := &pods.Items[i]
		if names.HoldsHere(pod, false) {
			s.Holders = append(s.Holders, pod.Namespace+"/"+pod.Name)
		}
		if names.HoldsHere(pod, true) {
			s.Sharers = append(s.Sharers, pod.Namespace+"/"+pod.Name)
		}
	}
	return s, nil
}
