package cluster

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// How gpumem's own pods are found, whatever the release is called.
const (
	pluginSelector   = "app.kubernetes.io/part-of=gpumem,app.kubernetes.io/component=device-plugin"
	extenderSelector = "app.kubernetes.io/part-of=gpumem,app.kubernetes.io/component in (scheduler,extender)"
)

// MaxAnswer bounds what a pod of gpumem may answer, in bytes. The largest are some hundred KiB.
const MaxAnswer = 4 << 20

// Plugins returns the pods of the device plugin: those in gpumem's namespace that its DaemonSet has
// made. Anybody may give labels to pods of their own.
func (r *Reader) Plugins(ctx context.Context) ([]v1.Pod, error) {
	sets, err := r.Client.AppsV1().DaemonSets(r.System).List(ctx, metav1.ListOptions{LabelSelector: pluginSelector})
	if err != nil {
		return nil, err
	}
	made := make(map[types.UID]bool)
	for _, set := range sets.Items {
		made[set.UID] = true
	}
	return r.madeBy(ctx, made, pluginSelector)
}

// deployed returns the pods in gpumem's namespace that its Deployments have made.
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
		made[sets.Items[i].UID] = controlledBy(&sets.Items[i], owners)
	}
	return r.madeBy(ctx, made, extenderSelector)
}

func (r *Reader) madeBy(ctx context.Context, owners map[types.UID]bool, selector string) ([]v1.Pod, error) {
	list, err := r.Client.CoreV1().Pods(r.System).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(pod v1.Pod) bool { return !controlledBy(&pod, owners) }), nil
}

func controlledBy(object metav1.Object, owners map[types.UID]bool) bool {
	owner := metav1.GetControllerOf(object)
	return owner != nil && owners[owner.UID]
}

// tooLong says that an answer goes beyond MaxAnswer.
func tooLong(read int) error {
	if read <= MaxAnswer {
		return nil
	}
	return fmt.Errorf("it answers more than %d MiB", MaxAnswer>>20)
}
