package cmdutil

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/pkg/cli/cluster"
)

// completionTime is the time limit of a shell completion.
const completionTime = 3 * time.Second

// CompleteNodes completes the names of nodes with GPU memory.
func (f *Factory) CompleteNodes(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return f.completeNames(cmd, args, prefix, func(ctx context.Context, r *cluster.Reader) (names []string, err error) {
		list, err := r.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return nil, err
		}
		for _, n := range list.Items {
			if _, offers := n.Annotations[r.Names.Inventory()]; offers {
				names = append(names, n.Name)
			}
		}
		return names, nil
	})
}

// CompletePods completes the names of pods with GPU memory.
func (f *Factory) CompletePods(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return f.completeNames(cmd, args, prefix, func(ctx context.Context, r *cluster.Reader) (names []string, err error) {
		list, err := r.Client.CoreV1().Pods(f.Namespace()).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return nil, err
		}
		for _, pod := range list.Items {
			if r.MayRequestMemory(&pod) {
				names = append(names, pod.Name)
			}
		}
		return names, nil
	})
}

// CompleteNamespaces completes the names of namespaces.
func (f *Factory) CompleteNamespaces(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return f.completeNames(cmd, nil, prefix, func(ctx context.Context, r *cluster.Reader) (names []string, err error) {
		list, err := r.Client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return nil, err
		}
		for _, n := range list.Items {
			names = append(names, n.Name)
		}
		return names, nil
	})
}

// CompleteNodeAndGPU completes the name of a node, and then the index of one of its GPUs.
func (f *Factory) CompleteNodeAndGPU(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	switch len(args) {
	case 0:
		return f.CompleteNodes(cmd, nil, prefix)
	case 1:
		return f.completeNames(cmd, nil, prefix, func(ctx context.Context, r *cluster.Reader) (indexes []string, err error) {
			node, err := r.Client.CoreV1().Nodes().Get(ctx, args[0], metav1.GetOptions{})
			if err != nil {
				return nil, err
			}
			inv, err := r.Names.InventoryOf(node)
			for _, d := range inv.Devices {
				indexes = append(indexes, strconv.Itoa(d.Index))
			}
			return indexes, err
		})
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

func (f *Factory) completeNames(cmd *cobra.Command, args []string, prefix string, list func(context.Context, *cluster.Reader) ([]string, error)) ([]string, cobra.ShellCompDirective) {
	// The context is nil unless cobra has executed the command.
	ctx := cmd.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completionTime)
	defer cancel()
	r, err := f.Connect()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	names, err := list(ctx, r)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	args = NodeNames(args)
	return slices.DeleteFunc(names, func(name string) bool {
		return slices.Contains(args, name) || !strings.HasPrefix(name, prefix)
	}), cobra.ShellCompDirectiveNoFileComp
}
