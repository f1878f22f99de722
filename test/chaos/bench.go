package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/gpumem/gpumem/test/cluster"
	"github.com/gpumem/gpumem/test/fakenvml"
	"github.com/gpumem/gpumem/test/stack"
)

// replicas is how many pods of the scheduler there are.
const replicas = 2

// bench is a cluster with gpumem on it.
type bench struct {
	cluster *cluster.Cluster
	stack   *stack.Stack
	client  kubernetes.Interface
	devices devices
	log     io.Writer
}

// nodes returns n nodes with GPUs in three different ways, by turns.
func nodes(n int) ([]cluster.Node, error) {
	var out []cluster.Node
	for i := range n {
		name := fmt.Sprintf("node%d", i+1)
		gpu := func(j int) string { return fmt.Sprintf("%s-%d", name, j) }
		var gpus []fakenvml.GPU
		switch i % 3 {
		case 0:
			gpus = []fakenvml.GPU{fakenvml.T4(gpu(0)), fakenvml.T4(gpu(1))}
		case 1:
			gpus = []fakenvml.GPU{fakenvml.A100_80GB(gpu(0)), fakenvml.T4(gpu(1))}
		default:
			gpus = []fakenvml.GPU{fakenvml.T4(gpu(0)), fakenvml.T4(gpu(1)), fakenvml.T4(gpu(2)), fakenvml.T4(gpu(3))}
		}
		node, err := stack.Node(name, gpus...)
		if err != nil {
			return nil, err
		}
		out = append(out, node)
	}
	return out, nil
}

// startBench starts a cluster with these nodes and installs gpumem.
func startBench(ctx context.Context, name string, nodes []cluster.Node, log io.Writer) (_ *bench, err error) {
	cache, err := cluster.DefaultCacheDir()
	if err != nil {
		return nil, err
	}
	b := &bench{log: log}
	if b.stack, err = stack.Build(ctx, filepath.Join(cache, name), log); err != nil {
		return nil, err
	}
	for i := range nodes {
		// A container that is killed often would soon wait five minutes for each
		// new start, and most of the run would test that waiting.
		nodes[i].Kubelet = []byte("crashLoopBackOff: {maxContainerRestartPeriod: 2s}\n")
	}
	if b.cluster, err = cluster.Start(ctx, cluster.Config{Name: name, Nodes: nodes, Log: log}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.stop(ctx))
		}
	}()
	b.client = b.cluster.Client()
	if err := b.stack.LoadImages(ctx, b.cluster); err != nil {
		return nil, err
	}
	if _, err := b.stack.Install(ctx, b.cluster, fmt.Sprintf("scheduler.replicas=%d", replicas)); err != nil {
		return nil, err
	}
	_, err = b.client.CoreV1().Namespaces().Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	return b, b.findDevices(ctx)
}

// findDevices waits until each node has told of its GPUs and pods can be made.
func (b *bench) findDevices(ctx context.Context) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		var found devices
		list, err := b.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			last = err
			return false, nil
		}
		for i := range list.Items {
			node, err := devicesOf(&list.Items[i])
			if err != nil {
				last = err
				return false, nil
			}
			found = append(found, node...)
		}
		b.devices = found
		_, last = b.client.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("wait for the GPUs of all nodes: %w: %w", err, last)
	}
	return nil
}

// stop takes the cluster away, even when ctx has ended.
func (b *bench) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return b.cluster.Stop(ctx)
}

// healthy waits until the cluster and gpumem's own pods are ready.
func (b *bench) healthy(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 3*time.Minute, errors.New("the parts did not come up again"))
	defer cancel()
	if err := b.cluster.WaitReady(ctx); err != nil {
		return err
	}
	var now string
	err := wait.PollUntilContextCancel(ctx, 500*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		now = b.notReady(ctx)
		return now == "", nil
	})
	if err != nil {
		return fmt.Errorf("%w: %s", context.Cause(ctx), now)
	}
	return nil
}

// notReady says which of gpumem's pods is not, or nothing.
func (b *bench) notReady(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	list, err := b.client.CoreV1().Pods(stack.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	for _, pod := range list.Items {
		ready := slices.ContainsFunc(pod.Status.Conditions, func(c v1.PodCondition) bool {
			return c.Type == v1.PodReady && c.Status == v1.ConditionTrue
		})
		if !ready {
			return "pod " + pod.Name + " is not ready"
		}
	}
	return ""
}

// keepLogs copies the logs of all parts, which go with the cluster, and the
// pods as they are, and says where they are.
func (b *bench) keepLogs(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("", "gpumem-chaos-logs-")
	if err != nil {
		fmt.Fprintln(b.log, "keep the logs:", err)
		return
	}
	keep := func(name string, text []byte, err error) {
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o600)
		}
		if err != nil {
			fmt.Fprintln(b.log, "keep the logs:", err)
		}
	}
	for _, name := range b.cluster.Processes() {
		text, err := os.ReadFile(b.cluster.LogFile(name))
		keep(name+".log", text, err)
	}
	for _, node := range b.cluster.Nodes() {
		files, err := containerLogs(b.cluster, node)
		if err != nil {
			keep(node, nil, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			keep(logName(node, file), text, err)
		}
	}
	killed, err := filepath.Glob(filepath.Join(b.cluster.Dir(), killedLogs, "*"))
	if err != nil {
		keep(killedLogs, nil, err)
	}
	for _, file := range killed {
		text, err := os.ReadFile(file)
		keep(filepath.Base(file), text, err)
	}
	for _, what := range []string{"pods", "events"} {
		text, err := b.stack.Kubectl(ctx, b.cluster, "get", what, "--namespace", namespace, "-o", "yaml", "--show-managed-fields")
		keep(what+".yaml", []byte(text), err)
	}
	fmt.Fprintln(b.log, "the logs are in", dir)
}

// killedLogs is the folder, in the cluster's, with the logs of containers that
// were killed: the kubelet keeps those of the last one only.
const killedLogs = "killed"

// containerLogs returns the log files of gpumem's containers on a node.
func containerLogs(c *cluster.Cluster, node string) ([]string, error) {
	return filepath.Glob(filepath.Join(c.NodeDir(node), "log", "pods", stack.Namespace+"_*", "*", "*.log"))
}

// logName returns a name for a container's log file among all others:
// NODE_POD_CONTAINER_START.
func logName(node, file string) string {
	parts := strings.Split(file, string(filepath.Separator))
	n := len(parts)
	pod := strings.TrimPrefix(parts[n-3], stack.Namespace+"_")
	return strings.Join([]string{node, pod[:strings.LastIndex(pod, "_")], parts[n-2], parts[n-1]}, "_")
}

// saveLogs copies the logs of a container that is going to be killed.
func saveLogs(c *cluster.Cluster, node, container string) error {
	files, err := containerLogs(c, node)
	if err != nil {
		return err
	}
	dir := filepath.Join(c.Dir(), killedLogs)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, file := range files {
		if filepath.Base(filepath.Dir(file)) != container {
			continue
		}
		text, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the kubelet has just removed it
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, logName(node, file)), text, 0o600)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
