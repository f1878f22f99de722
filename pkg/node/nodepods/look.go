package nodepods

import (
	"context"
	"fmt"

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

// Look asks the API server what is on a node. An answer is whole, or an error.
func Look(ctx context.Context, client kubernetes.Interface, names api.Names, node string) (s Seen, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{FieldSelector: NewNode(client, names, node, nil).selector()})
	if err != nil {
		return s, fmt.Errorf("read node %s: %w", node, err)
	}
	if len(nodes.Items) != 1 || nodes.Items[0].Name != node {
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
