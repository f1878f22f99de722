package drain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubectl/pkg/drain"

	"github.com/gpumem/gpumem/pkg/api"
	"github.com/gpumem/gpumem/pkg/cli/cluster"
	"github.com/gpumem/gpumem/pkg/cli/cmdutil"
	"github.com/gpumem/gpumem/pkg/cli/cordon"
	"github.com/gpumem/gpumem/pkg/gpu"
)

// evictRetry is how long to wait before an eviction is asked for again that a disruption
// budget has forbidden: as kubectl drain does.
const evictRetry = 5 * time.Second

// lastLook is how long who interrupts a drain waits to be told which pods are left.
const lastLook = 3 * time.Second

// Options are those of drain.
type Options struct {
	*cmdutil.Factory
	helper *drain.Helper

	cluster *cluster.Reader
	nodes   []string
	which   string // GPU
}

// NewCommand returns the command drain.
func NewCommand(f *cmdutil.Factory) *cobra.Command {
	helper := &drain.Helper{GracePeriodSeconds: -1, Timeout: 5 * time.Minute, EvictErrorRetryDelay: evictRetry, DeleteEmptyDirData: true}
	o := &Options{Factory: f, helper: helper}
	cmd := &cobra.Command{
		Use:   "drain NODE GPU",
		Short: "Cordon a GPU and evict the pods on it, and no others",
		Long: `Cordon a GPU and evict the pods on it, and no others.

Pods are evicted, so PodDisruptionBudgets hold: one that may not go yet is tried
again until --timeout. Pods of DaemonSets, which would come back at once, and pods
that nothing would make again are refused unless the flags say otherwise.`,
		Example:           "  kubectl inspect gpumem drain gpu-a 3 --ignore-daemonsets",
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: f.CompleteNodeAndGPU,
		RunE:              func(cmd *cobra.Command, args []string) error { return cmdutil.Run(cmd, args, o) },
	}
	f.SayNamespace(cmd, cmdutil.NamespaceOfAll)
	flags := cmd.Flags()
	flags.BoolVar(&helper.Force, "force", false, "Evict pods too that nothing will make again")
	flags.BoolVar(&helper.IgnoreAllDaemonSets, "ignore-daemonsets", false, "Leave pods of DaemonSets where they are")
	flags.IntVar(&helper.GracePeriodSeconds, "grace-period", -1, "Seconds that a pod has to end; -1: what it says itself")
	flags.DurationVar(&helper.Timeout, "timeout", helper.Timeout, "How long to wait for the pods to be gone; 0: for ever")
	return cmd
}

// Complete reads the names of the node and of its GPU.
func (o *Options) Complete(args []string) (err error) {
	o.nodes, o.which = cmdutil.NodeNames(args[:1]), args[1]
	o.cluster, err = o.Connect()
	return err
}

// Validate says that the name of the node is empty.
func (o *Options) Validate() error { return cmdutil.CheckNodeNames(o.nodes) }

// Run cordons the GPU, and evicts the pods on it.
func (o *Options) Run(ctx context.Context) error {
	nodeName := o.nodes[0]
	device, err := cordon.Mark(ctx, o.cluster, o.Out, nodeName, o.which, true)
	if err != nil {
		return err
	}
	stays := fmt.Sprintf("The GPU stays cordoned; to undo that: kubectl inspect gpumem uncordon %s %d", nodeName, device.Index)
	if err := o.empty(ctx, nodeName, device.UUID); err != nil {
		return fmt.Errorf("%w\n%s", err, stays)
	}
	fmt.Fprintf(o.Out, "gpu/%s/%d drained\n", nodeName, device.Index)
	fmt.Fprintln(o.ErrOut, stays)
	return nil
}

// empty evicts the pods on a GPU, and waits until they are gone, or the context is done.
func (o *Options) empty(ctx context.Context, nodeName string, id gpu.UUID) error {
	helper := o.helper
	out := &lockedWriter{Writer: o.Out} // the pods go side by side
	helper.Ctx, helper.Client, helper.Out, helper.ErrOut = ctx, o.cluster.Client, out, &lockedWriter{Writer: o.ErrOut}
	helper.OnPodDeletionOrEvictionFinished = func(pod *v1.Pod, _ bool, err error) {
		if err == nil {
			fmt.Fprintf(out, "pod/%s evicted\n", pod.Name)
		}
	}
	pods, err := o.evictable(ctx, nodeName, id)
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
func (o *Options) interrupted(ctx context.Context, pods []v1.Pod) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastLook)
	defer cancel()
	var left []string
	for _, pod := range pods {
		now, err := o.cluster.Client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
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
func (o *Options) evictable(ctx context.Context, nodeName string, id gpu.UUID) ([]v1.Pod, error) {
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
		case owner != nil && owner.Kind == "DaemonSet" && o.helper.IgnoreAllDaemonSets:
			fmt.Fprintf(o.ErrOut, "warning: pod %s/%s is of a DaemonSet and stays\n", pod.Namespace, pod.Name)
		case owner != nil && owner.Kind == "DaemonSet":
			errs = append(errs, fmt.Errorf("pod %s/%s is of a DaemonSet, which would make it again: --ignore-daemonsets leaves it", pod.Namespace, pod.Name))
		case owner == nil && !o.helper.Force:
			errs = append(errs, fmt.Errorf("pod %s/%s has no controller that would make it again: --force evicts it", pod.Namespace, pod.Name))
		default:
			out = append(out, pod)
		}
	}
	return out, errors.Join(errs...)
}

// isOn reports whether a pod holds memory of a GPU, or is leaving it.
func (o *Options) isOn(pod *v1.Pod, id gpu.UUID) bool {
	if api.Terminal(pod) || !o.cluster.Names.Holds(pod) {
		return false
	}
	a, err := o.cluster.Names.AssignmentOf(pod)
	return err == nil && (slices.Contains(a.Devices(), id) || slices.Contains(a.Leaving, id))
}
