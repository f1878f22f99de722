package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"

	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/process/daemon"
)

// runCleanup is the command that takes away what gpumem has written while it
// ran, after it has been uninstalled.
func runCleanup(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	opts := defaultOptions()
	var leases []string
	f := pflag.NewFlagSet("gpumem-extender cleanup", pflag.ContinueOnError)
	f.StringVar(&opts.Domain, "resource-domain", opts.Domain, "`domain` of the extended resources and annotations")
	f.StringSliceVar(&leases, "lease", nil, "`namespace/name` of a Lease to delete")
	opts.kube.AddFlags(f)
	opts.log.AddFlags(f)
	switch err := daemon.Parse(f, `gpumem-extender cleanup takes the inventory annotation and the condition `+string(api.GPUsHealthy)+` from all nodes, and Leases away.

Usage: gpumem-extender cleanup [flags]`, args, stdout); {
	case errors.Is(err, pflag.ErrHelp):
		return nil
	case err != nil:
		return err
	}
	names, err := api.NewNames(opts.Domain)
	if err != nil {
		return fmt.Errorf("--resource-domain: %w", err)
	}
	if err := opts.kube.Validate(); err != nil {
		return err
	}
	log, err := opts.log.New(stderr)
	if err != nil {
		return err
	}
	client, err := opts.kube.Client("gpumem-extender", version)
	if err != nil {
		return err
	}
	return cleanup(ctx, log, client, names, leases)
}

// cleanup does all that it can, and then tells what it could not. Pods keep
// their assignment: those that run still hold what it says.
func cleanup(ctx context.Context, log *zap.Logger, client kubernetes.Interface, names api.Names, leases []string) error {
	var errs []error
	err := pager.New(pager.SimplePageFunc(func(options metav1.ListOptions) (runtime.Object, error) {
		return client.CoreV1().Nodes().List(ctx, options)
	})).EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		if node, ok := object.(*v1.Node); ok {
			if err := cleanNode(ctx, log, client, names, node); err != nil {
				errs = append(errs, fmt.Errorf("node %s: %w", node.Name, err))
			}
		}
		return nil
	})
	if err != nil {
		errs = append(errs, fmt.Errorf("list nodes: %w", err))
	}
	for _, lease := range leases {
		namespace, name, _ := strings.Cut(lease, "/")
		err := client.CoordinationV1().Leases(namespace).Delete(ctx, name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("delete Lease %s: %w", lease, err))
			continue
		}
		log.Info("Lease is gone", zap.String("lease", lease))
	}
	return errors.Join(errs...)
}

// cleanNode takes from a node what its device plugin has written there. Nothing
// would keep it true any more.
func cleanNode(ctx context.Context, log *zap.Logger, client kubernetes.Interface, names api.Names, node *v1.Node) error {
	patch := func(kind types.PatchType, value map[string]any, subresource ...string) error {
		data, err := json.Marshal(value)
		if err != nil {
			return fmt.Errorf("encode a patch: %w", err)
		}
		_, err = client.CoreV1().Nodes().Patch(ctx, node.Name, kind, data, metav1.PatchOptions{}, subresource...)
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		log.Info("taken from the node", zap.String("node", node.Name), zap.ByteString("patch", data))
		return nil
	}
	var inventory, condition error
	if _, has := node.Annotations[names.Inventory()]; has {
		inventory = patch(types.MergePatchType, map[string]any{
			"metadata": map[string]any{"annotations": map[string]any{names.Inventory(): nil}},
		})
	}
	if slices.ContainsFunc(node.Status.Conditions, func(c v1.NodeCondition) bool { return c.Type == api.GPUsHealthy }) {
		condition = patch(types.StrategicMergePatchType, map[string]any{
			"status": map[string]any{"conditions": []any{map[string]any{"$patch": "delete", "type": api.GPUsHealthy}}},
		}, "status")
	}
	return errors.Join(inventory, condition)
}
