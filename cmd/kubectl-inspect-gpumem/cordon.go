package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"k8s.io/kubectl/pkg/drain"

	"github.com/gpumem/gpumem/pkg/api"
	"github.com/gpumem/gpumem/pkg/gpu"
)

func newCordonCommand(o *options) *cobra.Command {
	return newMarkCommand(o, "cordon", "Keep new pods off a GPU", `Keep new pods off a GPU. Those that are on it stay.

The GPU is named in an annotation of its node. Its capacity stays what it was, and
containers on it can restart.`, true)
}

func newUncordonCommand(o *options) *cobra.Command {
	return newMarkCommand(o, "uncordon", "Let pods onto a GPU again", "Let pods onto a GPU again.", false)
}

func newMarkCommand(o *options, use, short, long string, cordoned bool) *cobra.Command {
	cmd := &cobra.Command{
		Use:               use + " NODE GPU",
		Short:             short,
		Long:              long,
		Example:           "  kubectl inspect gpumem " + use + " gpu-a 3",
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: o.completeNodeAndGPU,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.prepare(args[:1], o.Validate); err != nil {
				return err
			}
			_, err := o.mark(cmd.Context(), o.nodes[0], args[1], cordoned)
			return err
		},
	}
	o.sayNamespace(cmd, namespaceOfAll)
	return cmd
}

// mark writes whether a GPU of a node is cordoned, and tells what has become of it.
func (o *options) mark(ctx context.Context, nodeName, which string, cordoned bool) (gpu.Device, error) {
	device, changed, err := o.write(ctx, nodeName, which, cordoned)
	if err != nil {
		return device, err
	}
	news := map[bool]string{true: "cordoned", false: "uncordoned"}[cordoned]
	if !changed {
		news = map[bool]string{true: "was cordoned already", false: "was not cordoned"}[cordoned]
	}
	fmt.Fprintf(o.Out, "gpu/%s/%d %s\n", nodeName, device.Index, news)
	return device, nil
}

// write writes whether a GPU of a node is cordoned. It reports whether that was
// otherwise.
func (o *options) write(ctx context.Context, nodeName, which string, cordoned bool) (device gpu.Device, changed bool, err error) {
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		node, err := o.client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if device, err = o.gpuOf(node, which); err != nil {
			return err
		}
		listed := o.names.CordonedGPUs(node)
		at := slices.Index(listed, device.UUID)
		if changed = cordoned != (at >= 0); !changed {
			return nil
		}
		if cordoned {
			listed = append(listed, device.UUID)
		} else {
			listed = slices.Delete(listed, at, at+1)
		}
		var value any = api.FormatCordonedGPUs(listed)
		if len(listed) == 0 {
			value = nil // takes the annotation away
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"resourceVersion": node.ResourceVersion,
			"annotations":     map[string]any{o.names.Cordoned(): value},
		}})
		if err != nil {
			return err
		}
		_, err = o.client.CoreV1().Nodes().Patch(ctx, nodeName, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "kubectl-inspect-gpumem"})
		return err
	})
	return device, changed, err
}

// gpuOf finds a GPU of a node by its index, its UUID, or the beginning of that.
func (o *options) gpuOf(node *v1.Node, which string) (gpu.Device, error) {
	inv, err := o.names.InventoryOf(node)
	if err != nil {
		return gpu.Device{}, fmt.Errorf("node %s: %w", node.Name, err)
	}
	var indexes []string
	var begin []gpu.Device
	for _, d := range inv.Devices {
		index := strconv.Itoa(d.Index)
		if which == index || which == string(d.UUID) {
			return d, nil
		}
		indexes = append(indexes, index)
		if which != "" && strings.HasPrefix(string(d.UUID), which) {
			begin = append(begin, d)
		}
	}
	if len(begin) == 1 {
		return begin[0], nil
	}
	if len(indexes) == 0 {
		return gpu.Device{}, fmt.Errorf("node %s offers no GPU memory", node.Name)
	}
	return gpu.Device{}, fmt.Errorf("node %s has no GPU %q: want an index, of %v, or a UUID, or as much of it as no other has", node.Name, which, indexes)
}

// evictRetry is how long to wait before an eviction is asked for again that a disruption
// budget has forbidden: as kubectl drain does.
const evictRetry = 5 * time.Second

// lastLook is how long who interrupts a drain waits to be told which pods are left.
const lastLook = 3 * time.Second

func newDrainCommand(o *options) *cobra.Command {
	helper := &drain.Helper{GracePeriodSeconds: -1, Timeout: 5 * time.Minute, EvictErrorRetryDelay: evictRetry, DeleteEmptyDirData: true}
	cmd := &cobra.Command{
		Use:   "drain NODE GPU",
		Short: "Cordon a GPU and evict the pods on it, and no others",
		Long: `Cordon a GPU and evict the pods on it, and no others.

Pods are evicted, so PodDisruptionBudgets hold: one that may not go yet is tried
again until --timeout. Pods of DaemonSets, which would come back at once, and pods
that nothing would make again are refused unless the flags say otherwise.`,
		Example:           "  kubectl inspect gpumem drain gpu-a 3 --ignore-daemonsets",
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: o.completeNodeAndGPU,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.prepare(args[:1], o.Validate); err != nil {
				return err
			}
			return o.drain(cmd.Context(), helper, o.nodes[0], args[1])
		},
	}
	o.sayNamespace(cmd, namespaceOfAll)
	f := cmd.Flags()
	f.BoolVar(&helper.Force, "force", false, "Evict pods too that nothing will make again")
	f.BoolVar(&helper.IgnoreAllDaemonSets, "ignore-daemonsets", false, "Leave pods of DaemonSets where they are")
	f.IntVar(&helper.GracePeriodSeconds, "grace-period", -1, "Seconds that a pod has to end; -1: what it says itself")
	f.DurationVar(&helper.Timeout, "timeout", helper.Timeout, "How long to wait for the pods to be gone; 0: for ever")
	return cmd
}

func (o *options) drain(ctx context.Context, helper *drain.Helper, nodeName, which string) error {
	device, err := o.mark(ctx, nodeName, which, true)
	if err != nil {
		return err
	}
	stays := fmt.Sprintf("The GPU stays cordoned; to undo that: kubectl inspect gpumem uncordon %s %d", nodeName, device.Index)
	if err := o.empty(ctx, helper, nodeName, device.UUID); err != nil {
		return fmt.Errorf("%w\n%s", err, stays)
	}
	fmt.Fprintf(o.Out, "gpu/%s/%d drained\n", nodeName, device.Index)
	fmt.Fprintln(o.ErrOut, stays)
	return nil
}

// empty evicts the pods on a GPU, and waits until they are gone, or the context is done.
func (o *options) empty(ctx context.Context, helper *drain.Helper, nodeName string, id gpu.UUID) error {
	out := &lockedWriter{Writer: o.Out} // the pods go side by side
	helper.Ctx, helper.Client, helper.Out, helper.ErrOut = ctx, o.client, out, &lockedWriter{Writer: o.ErrOut}
	helper.OnPodDeletionOrEvictionFinished = func(pod *v1.Pod, _ bool, err error) {
		if err == nil {
			fmt.Fprintf(out, "pod/%s evicted\n", pod.Name)
		}
	}
	pods, err := o.evictable(ctx, helper, nodeName, id)
	if err != nil {
		return fmt.Errorf("nothing was evicted: %w", err)
	}
	done := make(chan error, 1)
	go func() { done <- helper.DeleteOrEvictPods(pods) }()
	select {
	case err = <-done:
	case <-ctx.Done(): // which the helper takes its time to see, and takes for its timeout
	}
	if ctx.Err() == nil {
		return err
	}
	return o.interrupted(ctx, pods)
}

// interrupted says which of the pods are still there.
func (o *options) interrupted(ctx context.Context, pods []v1.Pod) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastLook)
	defer cancel()
	var left []string
	for _, pod := range pods {
		now, err := o.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) && (err != nil || now.UID == pod.UID) {
			left = append(left, pod.Namespace+"/"+pod.Name)
		}
	}
	if len(left) == 0 {
		return errors.New("interrupted: all pods are gone")
	}
	return fmt.Errorf("interrupted: not gone yet: %s", strings.Join(left, ", "))
}

// lockedWriter lets several goroutines write, one at a time.
type lockedWriter struct {
	mu sync.Mutex
	io.Writer
}

func (w *lockedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.Writer.Write(p)
}

// evictable returns the pods on a GPU that are to go. The error names those that
// may not.
func (o *options) evictable(ctx context.Context, helper *drain.Helper, nodeName string, id gpu.UUID) ([]v1.Pod, error) {
	pods, err := o.cluster.PodsOn(ctx, nodeName)
	if err != nil {
		return nil, err
	}
	var out []v1.Pod
	var errs []error
	for _, pod := range pods {
		owner := metav1.GetControllerOf(&pod)
		switch {
		case pod.Spec.NodeName != nodeName || !o.isOn(&pod, id):
		case owner != nil && owner.Kind == "DaemonSet" && helper.IgnoreAllDaemonSets:
			fmt.Fprintf(o.ErrOut, "warning: pod %s/%s is of a DaemonSet and stays\n", pod.Namespace, pod.Name)
		case owner != nil && owner.Kind == "DaemonSet":
			errs = append(errs, fmt.Errorf("pod %s/%s is of a DaemonSet, which would make it again: --ignore-daemonsets leaves it", pod.Namespace, pod.Name))
		case owner == nil && !helper.Force:
			errs = append(errs, fmt.Errorf("pod %s/%s has no controller that would make it again: --force evicts it", pod.Namespace, pod.Name))
		default:
			out = append(out, pod)
		}
	}
	return out, errors.Join(errs...)
}

// isOn reports whether a pod holds memory of a GPU, or is leaving it.
func (o *options) isOn(pod *v1.Pod, id gpu.UUID) bool {
	if api.Terminal(pod) || !o.names.Holds(pod) {
		return false
	}
	a, err := o.names.AssignmentOf(pod)
	return err == nil && (slices.Contains(a.Devices(), id) || slices.Contains(a.Leaving, id))
}

// completeNodeAndGPU completes the name of a node, and then a GPU of it.
func (o *options) completeNodeAndGPU(cmd *cobra.Command, given []string, prefix string) ([]string, cobra.ShellCompDirective) {
	switch len(given) {
	case 0:
		return o.completeNodes(cmd, nil, prefix)
	case 1:
		return o.completeNames(cmd, nil, prefix, func(ctx context.Context) (indexes []string, err error) {
			node, err := o.client.CoreV1().Nodes().Get(ctx, given[0], metav1.GetOptions{})
			if err != nil {
				return nil, err
			}
			inv, err := o.names.InventoryOf(node)
			for _, d := range inv.Devices {
				indexes = append(indexes, strconv.Itoa(d.Index))
			}
			return indexes, err
		})
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}
