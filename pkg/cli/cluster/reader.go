package cluster

import (
	"context"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"

	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/report/doctor"
	"github.com/gpumem/gpumem/pkg/report/inspect"
)

// Reader reads a cluster through its API server.
type Reader struct {
	Names  api.Names
	Client kubernetes.Interface
	REST   *rest.Config // for forwarding ports to the scheduler's pods; if nil, Decided returns no records
	System string       // namespace of gpumem
}

// Field selectors for pods.
const (
	notSucceededSelector = "status.phase!=" + string(v1.PodSucceeded)
	// notEndedSelector selects pods whose containers may still run.
	notEndedSelector = notSucceededSelector + ",status.phase!=" + string(v1.PodFailed)
)

// gpumemSelector selects the objects of the chart.
const gpumemSelector = "app.kubernetes.io/part-of=gpumem"

// eachNode calls parameter each for every node that matches the label selector. For restart, see list.
func (r *Reader) eachNode(ctx context.Context, labels string, restart func(), each func(*v1.Node)) error {
	return list(ctx, metav1.ListOptions{LabelSelector: labels}, func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
		return r.Client.CoreV1().Nodes().List(ctx, opts)
	}, restart, each)
}

// eachPod calls parameter each for every pod that matches a field selector, in a namespace or, if namespace is
// empty, in all namespaces. A server that does not support the selector returns all pods. For restart, see list.
func (r *Reader) eachPod(ctx context.Context, namespace, selector string, restart func(), each func(*v1.Pod)) error {
	return list(ctx, metav1.ListOptions{FieldSelector: selector}, func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
		return r.Client.CoreV1().Pods(namespace).List(ctx, opts)
	}, restart, each)
}

// list reads a list page by page and calls parameter each for every object. If the token of a page expires,
// it calls restart, which must discard all results, and reads the list again without pages.
func list[T runtime.Object](ctx context.Context, opts metav1.ListOptions, page pager.ListPageFunc, restart func(), each func(T)) error {
	visit := func(obj runtime.Object) error {
		if object, ok := obj.(T); ok {
			each(object)
		}
		return nil
	}
	err := pager.New(page).EachListItem(ctx, opts, visit)
	if !apierrors.IsResourceExpired(err) {
		return err
	}
	restart()
	whole := pager.New(page)
	whole.PageSize = 0
	return whole.EachListItem(ctx, opts, visit)
}

// PodsOn returns the pods on a node, without ended pods. A server that does not support the field selector
// returns more pods.
func (r *Reader) PodsOn(ctx context.Context, node string) ([]v1.Pod, error) {
	list, err := r.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node + "," + notEndedSelector})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// Schedulers returns the names of the schedulers that ask gpumem. The result known is false if the reader cannot
// read their configuration. This is not an error, because commands can answer without the names.
func (r *Reader) Schedulers(ctx context.Context) (names []string, known bool) {
	configs, err := r.Client.CoreV1().ConfigMaps(r.System).List(ctx, metav1.ListOptions{LabelSelector: gpumemSelector})
	if err != nil {
		return nil, false
	}
	return doctor.Schedulers(r.Names.GPUMem(), configs.Items), true
}

// MayRequestMemory reports whether a pod requests GPU memory, or is unbound and requests a resource of
// gpumem's domain that gpumem does not define. It does not read the nodes.
func (r *Reader) MayRequestMemory(pod *v1.Pod) bool {
	none := func(v1.ResourceName) bool { return false }
	return r.Names.Asks(pod) || len(r.Names.Unoffered(pod, none)) > 0
}

// DeploymentOf derives the name of a pod's Deployment from the name of its ReplicaSet, which consists of the
// Deployment's name and the pod's label pod-template-hash. For a pod without a Deployment, it returns "".
func DeploymentOf(pod *v1.Pod) string {
	owner, hash := metav1.GetControllerOf(pod), pod.Labels["pod-template-hash"]
	if owner == nil || owner.Kind != "ReplicaSet" || hash == "" {
		return ""
	}
	deployment, ok := strings.CutSuffix(owner.Name, "-"+hash)
	if !ok {
		return ""
	}
	return deployment
}

// OneLine returns the text of an error on one line. Joined errors have several lines.
func OneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// RequirePods returns an error if the pods could not be listed. The error names the task, which needs all
// pods, and the cause.
func RequirePods(task string, facts inspect.Facts) error {
	if !facts.PodsUnknown {
		return nil
	}
	return fmt.Errorf("cannot %s without a list of all pods: %s", task, facts.WhyUnknown)
}

// NodeWithoutPod returns a node without the allocation of one pod.
func NodeWithoutPod(n placement.Node, pod placement.PodRef) placement.Node {
	var leaves []placement.Holding
	for _, h := range n.Holdings() {
		if h.Pod == pod {
			leaves = append(leaves, h)
		}
	}
	return n.Without(leaves)
}
