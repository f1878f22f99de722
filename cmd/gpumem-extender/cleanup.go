package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"

	"github.com/gpumem/gpumem/pkg/kube/api"
)

// cleanup removes gpumem's annotations, conditions and Leases after gpumem was uninstalled. It removes as much as
// possible, and then returns an error that names the objects that it could not change. Pods keep their
// assignments, because running pods still use the memory.
func cleanup(ctx context.Context, log *zap.Logger, opts *options, client kubernetes.Interface) error {
	inventory := opts.Names.Inventory()
	var errs []error
	record := func(object string, err error) {
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("%s: %w", object, err))
			return
		}
		log.Info("removed", zap.String("object", object))
	}
	patch := func(node *v1.Node, what string, kind types.PatchType, patch string, subresource ...string) {
		_, err := client.CoreV1().Nodes().Patch(ctx, node.Name, kind, []byte(patch), metav1.PatchOptions{}, subresource...)
		record(what+" of node "+node.Name, err)
	}
	err := pager.New(pager.SimplePageFunc(func(options metav1.ListOptions) (runtime.Object, error) {
		return client.CoreV1().Nodes().List(ctx, options)
	})).EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		node, ok := object.(*v1.Node)
		if !ok {
			return nil
		}
		if _, has := node.Annotations[inventory]; has {
			patch(node, "the inventory", types.MergePatchType, fmt.Sprintf(`{"metadata":{"annotations":{%q:null}}}`, inventory))
		}
		if slices.ContainsFunc(node.Status.Conditions, func(c v1.NodeCondition) bool { return c.Type == api.GPUsHealthy }) {
			patch(node, "the condition", types.StrategicMergePatchType, fmt.Sprintf(`{"status":{"conditions":[{"$patch":"delete","type":%q}]}}`, api.GPUsHealthy), "status")
		}
		return nil
	})
	if err != nil {
		errs = append(errs, fmt.Errorf("list nodes: %w", err))
	}
	for _, lease := range opts.leases {
		namespace, name, _ := strings.Cut(lease, "/")
		record("Lease "+lease, client.CoordinationV1().Leases(namespace).Delete(ctx, name, metav1.DeleteOptions{}))
	}
	return errors.Join(errs...)
}
