package drain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpumem/gpumem/pkg/cli/cluster"
	"github.com/gpumem/gpumem/pkg/cli/cmdutil"
	"github.com/gpumem/gpumem/pkg/cli/cordon"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/evict"
)

// interruptTimeout is the time limit for listing the remaining pods after an interrupt.
const interruptTimeout = 3 * time.Second

// Options are the options of the command drain.
type Options struct {
	*cmdutil.Factory
	force            bool
	reason           string // of the cordon; lists show it to other users
	ignoreDaemonSets bool
	seconds          int // grace period of the evicted pods; if negative, each pod's own
	timeout          time.Duration

	cluster *cluster.Reader
	dryRun  bool
	node    string
	which   []string // GPUs, each by its index, its UUID or a prefix of the UUID
	warned  []string
}

// NewCommand returns the command drain.
func NewCommand(f *cmdutil.Factory) *cobra.Command {
	o := &Options{Factory: f, seconds: -1, timeout: 5 * time.Minute}
	cmd := &cobra.Command{
		Use:   "drain " + cmdutil.GPUArgs,
		Short: "Cordon a GPU and evict only the pods on it",
		Long: `Cordon a GPU and evict only the pods on it.

PodDisruptionBudgets apply: if one refuses an eviction, the command tries again
until --timeout. A pod of a DaemonSet would return at once, and a pod without a
controller would be lost, so the command evicts nothing while such a pod is on
the GPU, unless --ignore-daemonsets or --force allows it.`,
		Example:           "  kubectl inspect gpumem drain gpu-a 3 --ignore-daemonsets\n  kubectl inspect gpumem drain gpu-a/2 gpu-a/3 --dry-run",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: f.CompleteNodeAndGPU,
		RunE:              func(cmd *cobra.Command, args []string) error { return cmdutil.Run(cmd, args, o) },
	}
	f.SetNamespaceHelp(cmd, cmdutil.NamespaceOfAll)
	flags := cmd.Flags()
	flags.BoolVar(&o.force, "force", false, "Evict pods without a controller too")
	flags.BoolVar(&o.ignoreDaemonSets, "ignore-daemonsets", false, "Do not evict pods of DaemonSets")
	cordon.AddReason(cmd, &o.reason)
	flags.BoolVar(&o.dryRun, "dry-run", false, "Print the planned changes, and make none")
	flags.IntVar(&o.seconds, "grace-period", o.seconds, "Seconds that a pod has to terminate; -1: the pod's own grace period")
	flags.DurationVar(&o.timeout, "timeout", o.timeout, "Time limit for the pods to terminate; 0: no limit")
	return cmd
}

// Complete parses the arguments and connects to the cluster.
func (o *Options) Complete(args []string) (err error) {
	if o.node, o.which, err = cmdutil.ParseGPUs(args); err != nil {
		return err
	}
	o.cluster, err = o.Connect()
	return err
}

// Validate returns an error if the node name is empty or the reason is too long.
func (o *Options) Validate() error {
	return errors.Join(cordon.CheckReason(o.reason), cmdutil.CheckNodeNames([]string{o.node}))
}

// Run drains the GPUs one after the other.
func (o *Options) Run(ctx context.Context) error {
	for _, which := range o.which {
		drain := o.drain
		if o.dryRun {
			drain = o.plan
		}
		if err := drain(ctx, o.node, which); err != nil {
			return err
		}
	}
	return nil
}

// plan prints the actions of drain for a GPU.
func (o *Options) plan(ctx context.Context, nodeName, which string) error {
	device, err := cordon.GetGPU(ctx, o.cluster, nodeName, which)
	if err != nil {
		return err
	}
	pods, err := o.evictable(ctx, nodeName, device.UUID)
	if err != nil {
		return err
	}
	cordon.PrintPlan(o.Out, nodeName, device, true)
	for _, pod := range pods {
		fmt.Fprintf(o.Out, "evicting pod %s/%s (dry run)\n", pod.Namespace, pod.Name)
	}
	return nil
}

// drain cordons a GPU and evicts the pods on it.
func (o *Options) drain(ctx context.Context, nodeName, which string) error {
	device, err := cordon.SetCordon(ctx, o.cluster, o.Out, nodeName, which, true, o.reason, "drain")
	if err != nil {
		return err
	}
	undo := fmt.Sprintf("The GPU is still cordoned; to undo the cordon: kubectl inspect gpumem uncordon %s %d", nodeName, device.Index)
	if err := o.emptyGPU(ctx, nodeName, device.UUID); err != nil {
		return fmt.Errorf("%w\n%s", err, undo)
	}
	fmt.Fprintf(o.Out, "gpu/%s/%d drained\n", nodeName, device.Index)
	fmt.Fprintln(o.ErrOut, undo)
	return nil
}

// emptyGPU evicts the pods on a GPU and waits until they are gone or the context is done.
func (o *Options) emptyGPU(ctx context.Context, nodeName string, id gpu.UUID) error {
	pods, err := o.evictable(ctx, nodeName, id)
	if err != nil {
		return fmt.Errorf("nothing was evicted: %w", err)
	}
	evicted := make(map[types.UID]bool)
	for {
		err := o.evict(ctx, pods)
		switch {
		case ctx.Err() != nil:
			return o.interrupted(ctx, pods)
		case err != nil:
			return err
		}
		for _, pod := range pods {
			evicted[pod.UID] = true
		}
		// A pod whose binding was in progress at the time of the cordon may have arrived.
		if pods, err = o.evictable(ctx, nodeName, id); err != nil {
			return err
		}
		if pods = slices.DeleteFunc(pods, func(pod v1.Pod) bool { return evicted[pod.UID] }); len(pods) == 0 {
			return nil
		}
	}
}

// interrupted returns an error that lists the remaining pods.
func (o *Options) interrupted(ctx context.Context, pods []v1.Pod) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), interruptTimeout)
	defer cancel()
	var remaining []string
	for i := range pods {
		ref := api.Ref(&pods[i])
		if gone, err := evict.IsDeleted(ctx, o.cluster.Client, ref); err != nil || !gone {
			remaining = append(remaining, ref.String())
		}
	}
	if len(remaining) == 0 {
		return errors.New("interrupted: all pods are gone")
	}
	return fmt.Errorf("interrupted: not gone yet: %s", strings.Join(remaining, ", "))
}

// evictable returns the pods on a GPU that drain evicts. The error lists the pods that drain must not evict.
func (o *Options) evictable(ctx context.Context, nodeName string, id gpu.UUID) ([]v1.Pod, error) {
	inv, pods, err := o.read(ctx, nodeName)
	if err != nil {
		return nil, err
	}
	var out []v1.Pod
	var errs []error
	for _, pod := range pods {
		owner, on := metav1.GetControllerOf(&pod), o.podGPUs(&pod, inv)
		switch {
		case pod.Spec.NodeName != nodeName || api.Terminal(&pod):
		case len(on) == 0 && o.cluster.Names.Holds(&pod):
			o.warn("warning: pod %s/%s is on no known GPU of the node, and is not evicted\n", pod.Namespace, pod.Name)
		case !slices.Contains(on, id):
		case pod.Annotations[v1.MirrorPodAnnotationKey] != "":
			o.warn("warning: pod %s/%s is static, so only its node can end it, and is not evicted\n", pod.Namespace, pod.Name)
		case owner != nil && owner.Kind == "DaemonSet" && o.ignoreDaemonSets:
			o.warn("warning: pod %s/%s belongs to a DaemonSet, and is not evicted\n", pod.Namespace, pod.Name)
		case owner != nil && owner.Kind == "DaemonSet":
			errs = append(errs, fmt.Errorf("pod %s/%s belongs to a DaemonSet, which would recreate it: --ignore-daemonsets skips it", pod.Namespace, pod.Name))
		case owner == nil && !o.force:
			errs = append(errs, fmt.Errorf("pod %s/%s has no controller that would recreate it: --force evicts it", pod.Namespace, pod.Name))
		default:
			out = append(out, pod)
		}
	}
	o.warnAboutMPS(nodeName, inv, out)
	return out, errors.Join(errs...)
}

// warnAboutMPS warns that a killed MPS client can make other clients of the node's MPS server fail (NVIDIA,
// "Multi-Process Service", Limitations).
func (o *Options) warnAboutMPS(nodeName string, inv gpu.Inventory, evicted []v1.Pod) {
	if inv.MPS && len(evicted) > 0 {
		o.warn("warning: containers on node %s use MPS: if one outlives its grace period and is killed, programs on the node's other GPUs may fail\n", nodeName)
	}
}

// warn prints each warning once.
func (o *Options) warn(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if slices.Contains(o.warned, text) {
		return
	}
	o.warned = append(o.warned, text)
	fmt.Fprint(o.ErrOut, text)
}

// read returns the inventory and the pods of a node.
func (o *Options) read(ctx context.Context, nodeName string) (inv gpu.Inventory, pods []v1.Pod, err error) {
	node, err := o.cluster.Client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
	if err == nil {
		inv, err = o.cluster.Names.InventoryOf(node)
	}
	if err == nil {
		pods, err = o.cluster.PodsOn(ctx, nodeName)
	}
	return inv, pods, err
}

// podGPUs returns the GPUs of a node that a pod has or is leaving. It combines the pod's annotation, which
// the pod's owner can change, with the kubelet's allocation, which includes GPUs by a claim.
func (o *Options) podGPUs(pod *v1.Pod, inv gpu.Inventory) []gpu.UUID {
	var h placement.Holding
	h.Assignment, _ = o.cluster.Names.AssignmentOf(pod) // an unreadable annotation names no GPU
	if i := slices.IndexFunc(inv.Allocated, func(g gpu.PodAllocation) bool { return g.UID == string(pod.UID) }); i >= 0 {
		h.Allocated = inv.Allocated[i].Shares
	}
	ids := append(h.Devices(), h.Assignment.Leaving...)
	if !o.cluster.Names.Holds(pod) {
		ids = placement.Assignment{Shares: h.Allocated}.Devices()
	}
	return slices.DeleteFunc(ids, func(id gpu.UUID) bool { _, ok := inv.Device(id); return !ok })
}
