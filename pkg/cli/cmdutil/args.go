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

// Options are the flags, arguments and actions of a command.
type Options interface {
	Complete(args []string) error // derives fields from flags and arguments
	Validate() error              // returns errors in flags and arguments
	Run(ctx context.Context) error
}

// Run calls the methods Complete, Validate and Run of a command's options. After the method Run, it prints
// the note about missing rights.
func Run(cmd *cobra.Command, args []string, o Options) error {
	if err := o.Complete(args); err != nil {
		return err
	}
	if err := o.Validate(); err != nil {
		return err
	}
	if f, ok := o.(interface{ PrintMissing() }); ok {
		defer f.PrintMissing()
	}
	return o.Run(cmd.Context())
}

// NodeNames parses node names and drops duplicates.
func NodeNames(args []string) (names []string) {
	for _, name := range args {
		// -o name prints this prefix.
		name = strings.TrimPrefix(name, "node/")
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// GPUArgs is the form of arguments that name GPUs of one node, for usage lines.
const GPUArgs = "(NODE GPU... | NODE/GPU...)"

// ParseGPUs parses the arguments NODE GPU... or NODE/GPU.... It accepts the prefixes node/ and gpu/, which
// -o name prints.
func ParseGPUs(args []string) (node string, gpus []string, err error) {
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

// CheckNodeNames returns an error if a name is empty.
func CheckNodeNames(names []string) error {
	if slices.Contains(names, "") {
		return errors.New("the name of a node is empty")
	}
	return nil
}

// HasKind reports whether the arguments have the form KIND NAME, which is equivalent to KIND/NAME.
func HasKind(args []string) bool {
	return len(args) == 2 && (slices.Contains(podKinds(), args[0]) || kindOf(args[0]) != "")
}

func podKinds() []string { return []string{"pod", "pods", "po"} }

// podNamed parses POD or NAMESPACE/POD. As in kubectl, the namespace defaults to --namespace, then to the
// kubeconfig's namespace.
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

// GetPod gets the pod that an argument names: POD, NAMESPACE/POD or, for a pod of a controller, TYPE/NAME.
func (f *Factory) GetPod(ctx context.Context, r *cluster.Reader, arg string) (*v1.Pod, error) {
	namespace, name, err := f.podNamed(arg)
	if err != nil {
		return nil, err
	}
	pod, err := r.Client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if kindOf(namespace) != "" && (apierrors.IsNotFound(err) || apierrors.IsForbidden(err)) {
		return f.podOf(ctx, r, namespace, name)
	}
	if apierrors.IsNotFound(err) {
		err = fmt.Errorf("%w in namespace %s; if its controller could not create it, kubectl get events -n %s --field-selector reason=FailedCreate shows the reason", err, namespace, namespace)
	}
	return pod, err
}

// Times returns "once" or "N times".
func Times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}
