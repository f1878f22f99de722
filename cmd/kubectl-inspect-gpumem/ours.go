package main

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

// maxAnswer bounds what a pod of gpumem may answer, in bytes. The largest are some hundred KiB.
const maxAnswer = 4 << 20

// plugins returns the pods of the device plugin: those in gpumem's namespace that its DaemonSet has
// made. Anybody may give labels to pods of their own.
func (o *options) plugins(ctx context.Context) ([]v1.Pod, error) {
	sets, err := o.client.AppsV1().DaemonSets(o.system).List(ctx, metav1.ListOptions{LabelSelector: pluginSelector})
	if err != nil {
		return nil, err
	}
	made := make(map[types.UID]bool)
	for _, set := range sets.Items {
		made[set.UID] = true
	}
	return o.madeBy(ctx, made, pluginSelector)
}

// deployed returns the pods in gpumem's namespace that its Deployments have made.
func (o *options) deployed(ctx context.Context) ([]v1.Pod, error) {
	opts := metav1.ListOptions{LabelSelector: extenderSelector}
	deployments, err := o.client.AppsV1().Deployments(o.system).List(ctx, opts)
	if err != nil {
		return nil, err
	}
	sets, err := o.client.AppsV1().ReplicaSets(o.system).List(ctx, opts)
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
	return o.madeBy(ctx, made, extenderSelector)
}

func (o *options) madeBy(ctx context.Context, owners map[types.UID]bool, selector string) ([]v1.Pod, error) {
	list, err := o.client.CoreV1().Pods(o.system).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(pod v1.Pod) bool { return !controlledBy(&pod, owners) }), nil
}

func controlledBy(object metav1.Object, owners map[types.UID]bool) bool {
	owner := metav1.GetControllerOf(object)
	return owner != nil && owners[owner.UID]
}

// tooLong says that an answer goes beyond maxAnswer.
func tooLong(read int) error {
	if read <= maxAnswer {
		return nil
	}
	return fmt.Errorf("it answers more than %d MiB", maxAnswer>>20)
}
