package cluster

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpumem/gpumem/pkg/report/boundedhttp"
)

// extenderSelector selects the workloads and pods of gpumem-scheduler and gpumem-extender, of every release.
const extenderSelector = "app.kubernetes.io/part-of=gpumem,app.kubernetes.io/component in (scheduler,extender)"

// Plugins returns the device plugin's pods: the pods that the plugin's DaemonSet in gpumem's namespace created.
// Labels prove nothing, because anybody may set them.
func (r *Reader) Plugins(ctx context.Context) ([]v1.Pod, error) {
	sets, err := r.Client.AppsV1().DaemonSets(r.System).List(ctx, metav1.ListOptions{LabelSelector: boundedhttp.Plugins})
	if err != nil {
		return nil, err
	}
	made := make(map[types.UID]bool)
	for _, set := range sets.Items {
		made[set.UID] = true
	}
	return r.listControlledPods(ctx, made, boundedhttp.Plugins)
}

// deployed returns the pods that the Deployments of gpumem-scheduler and gpumem-extender created.
func (r *Reader) deployed(ctx context.Context) ([]v1.Pod, error) {
	opts := metav1.ListOptions{LabelSelector: extenderSelector}
	deployments, err := r.Client.AppsV1().Deployments(r.System).List(ctx, opts)
	if err != nil {
		return nil, err
	}
	sets, err := r.Client.AppsV1().ReplicaSets(r.System).List(ctx, opts)
	if err != nil {
		return nil, err
	}
	owners, made := make(map[types.UID]bool), make(map[types.UID]bool)
	for _, d := range deployments.Items {
		owners[d.UID] = true
	}
	for i := range sets.Items {
		made[sets.Items[i].UID] = isControlledBy(&sets.Items[i], owners)
	}
	return r.listControlledPods(ctx, made, extenderSelector)
}

func (r *Reader) listControlledPods(ctx context.Context, owners map[types.UID]bool, selector string) ([]v1.Pod, error) {
	list, err := r.Client.CoreV1().Pods(r.System).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(pod v1.Pod) bool { return !isControlledBy(&pod, owners) }), nil
}

func isControlledBy(object metav1.Object, owners map[types.UID]bool) bool {
	owner := metav1.GetControllerOf(object)
	return owner != nil && owners[owner.UID]
}
