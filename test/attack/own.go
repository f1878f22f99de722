package attack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/test/stack"
)

// own are attacks for which gpumem is installed another way. Each is to leave it as it
// comes, for those after it.
func own() []attempt {
	return []attempt{
		{"pass devicePlugin.unassigned=refuse by nodeName and a forged assignment", refuse},
		{"end the MPS daemon of others, by removing its socket", atMPS(doing("-remove=/run/gpumem/mps/pipe/control"), "remove:", "read-only file system")},
		{"fill the node's memory by /dev/shm at the level mps", atMPS(doing("-fill=/dev/shm/big"), "fill:", "no space left on device")},
	}
}

func refuse(ctx context.Context, f *field) (string, error) {
	if _, err := f.Stack.Install(ctx, f.Cluster, append(f.Values, "devicePlugin.unassigned=refuse")...); err != nil {
		return "", err
	}
	said, err := f.bypass(ctx, "bypasses", f.own)
	if err == nil {
		err = f.podUntil(ctx, "the kubelet has refused the pod", f.mine, "bypasses", func(pod *v1.Pod) (bool, string) {
			if pod.Status.Phase == v1.PodFailed {
				said += "; without: " + pod.Status.Message
			}
			return pod.Status.Phase == v1.PodFailed, fmt.Sprint(pod.Status.Phase)
		})
	}
	if err == nil {
		err = f.end(ctx, "bypasses")
	}
	_, undo := f.Stack.Install(ctx, f.Cluster, f.Values...)
	return said, errors.Join(err, undo)
}

// atMPS runs a pod at the level mps, and sees what it printed of what it did.
func atMPS(does func(*v1.Pod), prints, want string) func(context.Context, *field) (string, error) {
	return func(ctx context.Context, f *field) (said string, err error) {
		stop, err := f.startMPS(ctx)
		defer func() { err = errors.Join(err, stop(context.WithoutCancel(ctx))) }()
		if err != nil {
			return "", err
		}
		if err := create(ctx, f.dev, f.pod("at-mps", 1, onNode(node), annotated("enforcement", "mps"), does)); err != nil {
			return "", err
		}
		text, err := f.log(ctx, "at-mps", "main", prints)
		if err != nil {
			return "", err
		}
		_, said, _ = strings.Cut(text, prints)
		if !strings.Contains(said, want) {
			return "", fmt.Errorf("%s%s, want: %s", prints, said, want)
		}
		return prints + said, errors.Join(f.end(ctx, "at-mps"), f.level(ctx, "mps"))
	}
}

// startMPS installs the chart's DaemonSet for the MPS daemon on the node, with a stand-in for
// NVIDIA's program.
func (f *field) startMPS(ctx context.Context) (stop func(context.Context) error, err error) {
	stop = func(context.Context) error { return nil }
	standIn, err := f.Stack.BuildMPSStandIn(ctx)
	if err != nil {
		return stop, err
	}
	program, err := os.ReadFile(standIn)
	if err != nil {
		return stop, err
	}
	path := filepath.Join(f.Cluster.NodeDir(node), "driver", "usr", "bin", stack.MPSStandIn)
	if _, err := os.Stat(path); err != nil {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, program, 0o755)); err != nil {
			return stop, err
		}
	}
	objects, err := f.Stack.Render(ctx, f.Cluster, "templates/mps-daemonset.yaml",
		"mps.enabled=true", "mps.drainSeconds=1", "devicePlugin.nodeSelector.kubernetes\\.io/hostname="+node)
	if err == nil {
		stop = func(ctx context.Context) error {
			return errors.Join(f.Stack.Delete(ctx, f.Cluster, objects), f.level(ctx, "advisory"))
		}
		err = f.Stack.Apply(ctx, f.Cluster, objects)
	}
	if err == nil {
		err = f.level(ctx, "mps")
	}
	return stop, err
}

// level waits until the node has a level.
func (f *field) level(ctx context.Context, want string) error {
	return f.until(ctx, node+" has level "+want, func(ctx context.Context) (bool, string) {
		n, err := f.admin.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		var inventory struct{ Enforcement string }
		text := n.Annotations[domain+"inventory"]
		err = json.Unmarshal([]byte(text), &inventory)
		return err == nil && inventory.Enforcement == want, text
	})
}
