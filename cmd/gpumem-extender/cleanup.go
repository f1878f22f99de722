package main

import (
	"context"
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

// runCleanup implements "gpumem-extender cleanup", which removes gpumem's annotations, conditions and Leases
// after gpumem was uninstalled.
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

// cleanup removes as much as possible, and then returns an error that names the objects that it could not
// change. Pods keep their assignments, because running pods still use the memory.
func cleanup(ctx context.Context, log *zap.Logger, client kubernetes.Interface, names api.Names, leases []string) error {
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
		if _, has := node.Annotations[names.Inventory()]; has {
			patch(node, "the inventory", types.MergePatchType, fmt.Sprintf(`{"metadata":{"annotations":{%q:null}}}`, names.Inventory()))
		}
		if slices.ContainsFunc(node.Status.Conditions, func(c v1.NodeCondition) bool { return c.Type == api.GPUsHealthy }) {
			patch(node, "the condition", types.StrategicMergePatchType, fmt.Sprintf(`{"status":{"conditions":[{"$patch":"delete","type":%q}]}}`, api.GPUsHealthy), "status")
		}
		return nil
	})
	if err != nil {
		errs = append(errs, fmt.Errorf("list nodes: %w", err))
	}
	for _, lease := range leases {
		namespace, name, _ := strings.Cut(lease, "/")
		record("Lease "+lease, client.CoordinationV1().Leases(namespace).Delete(ctx, name, metav1.DeleteOptions{}))
	}
	return errors.Join(errs...)
}
