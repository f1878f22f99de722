package cmdutil

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/pkg/cli/cluster"
)

// Options are those of a command.
type Options interface {
	Complete(args []string) error // what follows from flags and arguments
	Validate() error              // all that is wrong with them
	Run(ctx context.Context) error
}

// Run runs a command.
func Run(cmd *cobra.Command, args []string, o Options) error {
	if err := o.Complete(args); err != nil {
		return err
	}
	if err := o.Validate(); err != nil {
		return err
	}
	if f, ok := o.(interface{ NoteLimits() }); ok {
		defer f.NoteLimits()
	}
	return o.Run(cmd.Context())
}

// NodeNames reads arguments, each once.
func NodeNames(args []string) (names []string) {
	for _, name := range args {
		// The form in which -o name prints them.
		name = strings.TrimPrefix(name, "node/")
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// GPUArgs are the arguments of commands about GPUs of one node.
const GPUArgs = "(NODE GPU... | NODE/GPU...)"

// GPUsOf reads them: NODE and its GPUs, or NODE/GPU for each, as -o name prints them.
func GPUsOf(args []string) (node string, gpus []string, err error) {
	if !strings.Contains(strings.TrimPrefix(args[0], "node/"), "/") {
		if len(args) < 2 {
			return "", nil, fmt.Errorf("no GPU of node %s is named: add its index or UUID", args[0])
		}
		return NodeNames(args[:1])[0], args[1:], nil
	}
	for _, arg := range args {
		of, gpu, ok := strings.Cut(strings.TrimPrefix(arg, "gpu/"), "/")
		switch {
		case !ok || gpu == "":
			return "", nil, fmt.Errorf("%q does not name a GPU: want NODE/GPU", arg)
		case node != "" && of != node:
			return "", nil, fmt.Errorf("GPUs of two nodes, %s and %s: name GPUs of one node at a time", node, of)
		}
		node, gpus = of, append(gpus, gpu)
	}
	return node, gpus, nil
}

// CheckNodeNames says that a name is empty.
func CheckNodeNames(names []string) error {
	if slices.Contains(names, "") {
		return errors.New("the name of a node is empty")
	}
	return nil
}

// OfKind reports whether arguments are KIND NAME, which says what KIND/NAME does.
func OfKind(args []string) bool {
	return len(args) == 2 && (slices.Contains(podKinds(), args[0]) || isWorkload(args[0]))
}

// isWorkload reports whether a kind, or the start of "kind.group", is one that people
// name instead of a pod.
func isWorkload(kind string) bool {
	kind, _, _ = strings.Cut(kind, ".")
	return slices.Contains(workloads(), kind)
}

func podKinds() []string { return []string{"pod", "pods", "po"} }

// workloads are what people name instead of a pod.
func workloads() []string {
	return []string{
		"deploy", "deployment", "deployments", "sts", "statefulset", "statefulsets", "ds", "daemonset", "daemonsets",
		"rs", "replicaset", "replicasets", "job", "jobs", "cj", "cronjob", "cronjobs",
	}
}

// podNamed reads POD or NAMESPACE/POD. The namespace is that of the flag, or else
// of the kubeconfig, as kubectl has it.
func (f *Factory) podNamed(arg string) (namespace, name string, err error) {
	for _, kind := range podKinds() {
		arg = strings.TrimPrefix(arg, kind+"/")
	}
	if namespace, name, ok := strings.Cut(arg, "/"); ok {
		return namespace, name, nil
	}
	namespace, _, err = f.config.ToRawKubeConfigLoader().Namespace()
	return cmp.Or(f.Namespace(), namespace, metav1.NamespaceDefault), arg, err
}

// GetPod reads the pod that an argument names.
func (f *Factory) GetPod(ctx context.Context, r *cluster.Reader, arg string) (*v1.Pod, error) {
	namespace, name, err := f.podNamed(arg)
	if err != nil {
		return nil, err
	}
	pod, err := r.Client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) && isWorkload(namespace) {
		return nil, fmt.Errorf("%s is not a pod: name one of its pods; kubectl get %s -o wide shows their labels, and kubectl get pods -l LABELS their names; if it has no pods, kubectl get events --field-selector reason=FailedCreate shows the reason", arg, arg)
	}
	if apierrors.IsNotFound(err) {
		err = fmt.Errorf("%w in namespace %s; if its controller could not create it, kubectl get events -n %s --field-selector reason=FailedCreate shows the reason", err, namespace, namespace)
	}
	return pod, err
}

// Times says how often, in words.
func Times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}
