package nodeapi

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

// Snapshot is the state of a node and its pods at one moment.
type Snapshot struct {
	UID     types.UID // of the node's object
	Labels  map[string]string
	Holders []string // pods that request amounts of memory and have not ended, as namespace/name
	Sharers []string // pods that request shares and have not ended, as namespace/name
	// Admitted reports whether the kubelet has admitted a holder or a sharer. On a node that serves claims, the
	// kubelet admits neither.
	Admitted bool
	Claimers []string // pods that have not ended and have claims to the node's memory, from the inventory annotation

	Offered gpu.Inventory // from the inventory annotation
}

// ReadSnapshot reads a node and its pods from the API server.
func ReadSnapshot(ctx context.Context, client kubernetes.Interface, names api.Names, node string) (s Snapshot, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	object, err := readNode(ctx, client, node)
	if err != nil {
		return s, err
	}
	if object == nil {
		return s, fmt.Errorf("node %s is not there yet", node)
	}
	pods, err := listPods(ctx, client, node)
	if err != nil {
		return s, err
	}
	s = Snapshot{UID: object.UID, Labels: object.Labels}
	s.Offered, _ = names.InventoryOf(object) // empty if unreadable
	for i := range pods.Items {
		pod := &pods.Items[i]
		name := pod.Namespace + "/" + pod.Name
		if names.HoldsHere(pod, false) {
			s.Holders = append(s.Holders, name)
		}
		if names.HoldsHere(pod, true) {
			s.Sharers = append(s.Sharers, name)
		}
		s.Admitted = s.Admitted || names.Holds(pod) && api.Admitted(pod)
		if slices.ContainsFunc(s.Offered.Allocated, func(a gpu.PodAllocation) bool { return a.Name != "" && a.UID == string(pod.UID) }) {
			s.Claimers = append(s.Claimers, name)
		}
	}
	return s, nil
}

// ClientsStopped reads from the API server whether NVIDIA's GPU Operator currently keeps driver clients off the
// node. The Operator does so from before it unloads a driver until it has loaded the next one.
func (n *Publisher) ClientsStopped(ctx context.Context) (bool, error) {
	object, err := readNode(ctx, n.client, n.name)
	return object != nil && api.GPUClientsStopped(object), err
}

// readNode reads a node from the API server. It returns nil if the node does not exist. It uses a list call,
// because the plugin has no right to get a node.
func readNode(ctx context.Context, client kubernetes.Interface, node string) (*v1.Node, error) {
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{FieldSelector: nodeSelector(node)})
	if err != nil {
		return nil, fmt.Errorf("read node %s: %w", node, err)
	}
	for i := range nodes.Items {
		if nodes.Items[i].Name == node {
			return &nodes.Items[i], nil
		}
	}
	return nil, nil
}

func nodeSelector(node string) string {
	return fields.OneTermEqualSelector("metadata.name", node).String()
}

// podSelector selects the pods of a node that have not ended.
func podSelector(node string) string {
	return fields.AndSelectors(
		fields.OneTermEqualSelector("spec.nodeName", node),
		fields.OneTermNotEqualSelector("status.phase", string(v1.PodSucceeded)),
		fields.OneTermNotEqualSelector("status.phase", string(v1.PodFailed)),
	).String()
}

func listPods(ctx context.Context, client kubernetes.Interface, node string) (*v1.PodList, error) {
	list, err := client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: podSelector(node)})
	if err != nil {
		return nil, fmt.Errorf("list the pods of node %s: %w", node, err)
	}
	return list, nil
}
