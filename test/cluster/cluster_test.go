package cluster_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/gpumem/gpumem/test/cluster"
)

const testCluster = "cluster-test"

// TestCluster starts one cluster and looks at all that a cluster promises.
func TestCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds and starts a cluster, which -short leaves out")
	}
	if err := cluster.CheckHost(); err != nil {
		t.Skip(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	config := cluster.Config{
		Name: testCluster,
		Nodes: []cluster.Node{
			{Name: "node1", Labels: map[string]string{"disk": "fast"}},
			{Name: "node2", Kubelet: []byte("maxPods: 20\n")},
		},
		Log: t.Output(),
	}
	c, err := cluster.Start(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := c.Stop(ctx); err != nil {
			t.Error(err)
		}
		checkNothingIsLeft(t, c)
		if err := c.Stop(ctx); err != nil {
			t.Errorf("the second Stop: %v", err)
		}
	})
	archive, err := c.SampleImageFile()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.LoadImage(ctx, archive); err != nil {
		t.Fatal(err)
	}

	tests := []struct {
		name string
		run  func(context.Context, *testing.T, *cluster.Cluster)
	}{
		{"Nodes", testNodes},
		{"Pods", testPods},
		{"GPUs", testGPUs},
		{"NodeProcesses", testNodeProcesses},
		{"Attach", testAttach},
		{"RestartKubelet", testRestartKubelet},
		{"RestartControlPlane", testRestartControlPlane},
		{"SecondCluster", testSecondCluster},
		{"PrebuiltKubernetes", testPrebuiltKubernetes},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
			defer cancel()
			test.run(ctx, t, c)
		})
	}
}

func testNodes(ctx context.Context, t *testing.T, c *cluster.Cluster) {
	nodes, err := c.Client().CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	type node struct{ Disk, Version, Pods string }
	got := make(map[string]node)
	for _, n := range nodes.Items {
		got[n.Name] = node{n.Labels["disk"], n.Status.NodeInfo.KubeletVersion, n.Status.Allocatable.Pods().String()}
	}
	want := map[string]node{
		"node1": {"fast", "v1.36.3", "250"},
		"node2": {"", "v1.36.3", "20"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
}

// testPods runs a pod on each node. The scheduler places one; each reaches the
// API server by its Service, and the second the first on the other node.
func testPods(ctx context.Context, t *testing.T, c *cluster.Cluster) {
	first := runPod(ctx, t, c, "first", "node1", "https://$(KUBERNETES_SERVICE_HOST):$(KUBERNETES_SERVICE_PORT)/version")
	waitLog(ctx, t, c, first.Name, "NVIDIA_VISIBLE_DEVICES=none\nget: https://10.96.0.1:443/version 200 OK\n")

	// A kubelet's answer shows that a pod gets to another node.
	second := runPod(ctx, t, c, "second", "node2", "https://"+first.Status.HostIP+":10250/")
	waitLog(ctx, t, c, second.Name, "NVIDIA_VISIBLE_DEVICES=none\nget: https://"+first.Status.HostIP+":10250/ 404 Not Found\n")

	if got := execInPod(ctx, t, c, first.Name, "/usr/local/bin/sample", "-exit-after=1ms"); !strings.Contains(got, "200 OK") {
		t.Errorf("exec in the first pod: %q", got)
	}
	if table := onNode(ctx, t, c, "node2", "nft", "list", "table", "ip", "kube-proxy"); !strings.Contains(table, "10.96.0.1") {
		t.Errorf("kube-proxy's table on node2 lacks the API server's Service:\n%s", table)
	}
	deletePod(ctx, t, c, second.Name)
}

// testGPUs gives one of two nodes a driver.
func testGPUs(ctx context.Context, t *testing.T, c *cluster.Cluster) {
	const description = `{"gpus": []}`
	if err := c.SetGPUs("node2", []byte(description)); err != nil {
		t.Fatal(err)
	}
	if got := onNode(ctx, t, c, "node2", "cat", cluster.DriverRoot+"/etc/fakenvml.json"); got != description {
		t.Errorf("the node reads %q, want %q", got, description)
	}
	if got, want := onNode(ctx, t, c, "node2", "find", cluster.DriverRoot, "-name", "*.so.1", "-type", "f"), cluster.DriverRoot+"/usr/lib64/libnvidia-ml.so.1\n"; got != want {
		t.Errorf("the driver is %q, want %q", got, want)
	}
	if got := onNode(ctx, t, c, "node1", "find", cluster.DriverRoot, "-type", "f"); got != "" {
		t.Errorf("node1 has %q without GPUs", got)
	}
	if err := c.SetGPUs("node3", []byte(description)); err == nil {
		t.Error("a node that is not there has GPUs")
	}
}

// testNodeProcesses looks at a process from the machine and from its node.
func testNodeProcesses(ctx context.Context, t *testing.T, c *cluster.Cluster) {
	pid, running := c.Running("kubelet@node1")
	if !running {
		t.Fatal("the kubelet does not run")
	}
	inner, err := cluster.NodePID(pid)
	if err != nil {
		t.Fatal(err)
	}
	if got := onNode(ctx, t, c, "node1", "cat", fmt.Sprintf("/proc/%d/cmdline", inner)); !strings.Contains(got, "/kubelet\x00") {
		t.Errorf("process %d is %q on the node, want the kubelet", inner, got)
	}
	if _, err := cluster.NodePID(os.Getpid()); err == nil {
		t.Error("this process is on a node")
	}
}

func onNode(ctx context.Context, t *testing.T, c *cluster.Cluster, node, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(ctx, name, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := c.RunOnNode(node, cmd); err != nil {
		t.Fatalf("%v on node %s: %v: %s", cmd.Args, node, err, errs.String())
	}
	return out.String()
}

// testAttach looks at the cluster as another process would.
func testAttach(ctx context.Context, t *testing.T, c *cluster.Cluster) {
	other, err := cluster.Attach(c.Dir())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(c.Processes(), other.Processes()); diff != "" {
		t.Errorf("processes (-started +attached):\n%s", diff)
	}
	if err := other.WaitReady(ctx); err != nil {
		t.Error(err)
	}
}

// testRestartKubelet kills a kubelet, under which a pod runs on.
func testRestartKubelet(ctx context.Context, t *testing.T, c *cluster.Cluster) {
	before := getPod(ctx, t, c, "first")
	if err := c.Kill(ctx, "kubelet@node1"); err != nil {
		t.Fatal(err)
	}
	if pid, running := c.Running("kubelet@node1"); running {
		t.Errorf("the kubelet runs as process %d after it was killed", pid)
	}
	if err := c.StartProcess("kubelet@node1"); err != nil {
		t.Fatal(err)
	}
	// A pod that starts shows that the kubelet works.
	runPod(ctx, t, c, "third", "node1", "")
	deletePod(ctx, t, c, "third")
	after := getPod(ctx, t, c, "first")
	if diff := cmp.Diff(before.Status.ContainerStatuses[0].ContainerID, after.Status.ContainerStatuses[0].ContainerID); diff != "" {
		t.Errorf("the container has changed (-before +after):\n%s", diff)
	}
}

func testRestartControlPlane(ctx context.Context, t *testing.T, c *cluster.Cluster) {
	for _, name := range []string{"apiserver", "etcd", "scheduler", "controller-manager"} {
		if err := c.Kill(ctx, name); err != nil {
			t.Fatal(err)
		}
	}
	// The client would try again for a long time.
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if _, err := c.Client().CoreV1().Nodes().Get(short, "node1", metav1.GetOptions{}); err == nil {
		t.Error("the API server answers after it was killed")
	}
	for _, name := range []string{"etcd", "apiserver"} {
		if err := c.StartProcess(name); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"scheduler", "controller-manager"} {
		if err := c.StartProcess(name); err != nil {
			t.Fatal(err)
		}
	}
	runPod(ctx, t, c, "fourth", "", "")
	deletePod(ctx, t, c, "fourth")
}

// testSecondCluster starts another cluster beside the first, and one whose kubelet refuses its configuration.
func testSecondCluster(ctx context.Context, t *testing.T, c *cluster.Cluster) {
	config := cluster.Config{Name: testCluster + "-2", NoScheduler: true, Nodes: []cluster.Node{{Name: "node1"}}, Log: t.Output()}
	other, err := cluster.Start(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.WaitReady(ctx); err != nil {
		t.Error(err)
	}
	if err := other.Stop(ctx); err != nil {
		t.Error(err)
	}
	checkNothingIsLeft(t, other)
	// The error contains the last lines of a process that has ended.
	config.Nodes = []cluster.Node{{Name: "bad", Kubelet: []byte("maxPods: -1\n")}}
	_, err = cluster.Start(ctx, config)
	if err == nil || !strings.Contains(err.Error(), "kubelet@bad has ended") || !strings.Contains(err.Error(), "maxPods") {
		t.Errorf("a node with a bad configuration: %v", err)
	}
	if err := cluster.Remove(ctx, other.Dir()); err != nil {
		t.Error(err)
	}
	checkNothingIsLeft(t, other)
	if err := c.WaitReady(ctx); err != nil {
		t.Error(err)
	}
}

// testPrebuiltKubernetes starts a cluster with the programs of a folder, as they come from a release of
// Kubernetes: here links to the one program that all of them are in.
func testPrebuiltKubernetes(ctx context.Context, t *testing.T, c *cluster.Cluster) {
	kubectl, err := c.Kubectl()
	if err != nil {
		t.Fatal(err)
	}
	program, err := filepath.EvalSymlinks(kubectl)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range []string{"kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubelet", "kubectl"} {
		if err := os.Symlink(program, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("GPUMEM_KUBERNETES", dir)
	other, err := cluster.Start(ctx, cluster.Config{Name: testCluster + "-3", Nodes: []cluster.Node{{Name: "node1"}}, Log: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := other.Stop(ctx); err != nil {
			t.Error(err)
		}
		checkNothingIsLeft(t, other)
	}()
	for _, name := range []string{"apiserver", "controller-manager", "scheduler", "kubelet@node1", "kube-proxy@node1"} {
		pid, _ := other.Running(name)
		command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil || !strings.HasPrefix(string(command), dir+"/kube") {
			t.Errorf("%s runs as %q, want a program in %s (%v)", name, command, dir, err)
		}
	}
}

// checkNothingIsLeft fails when the stopped cluster c has left something.
func checkNothingIsLeft(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	if _, err := os.Stat(c.Dir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder %s is left: %v", c.Dir(), err)
	}
	for _, pattern := range []string{"/sys/fs/cgroup/gpumem-", "/sys/fs/cgroup/*/gpumem-"} {
		groups, err := filepath.Glob(pattern + c.Name())
		if err != nil || len(groups) > 0 {
			t.Errorf("control groups are left: %v, %v", groups, err)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || bytes.Contains(mounts, []byte(c.Dir()+"/")) {
		t.Errorf("mounts are left: %v\n%s", err, mounts)
	}
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		// The line of a process that has ended is empty.
		line, err := os.ReadFile(file)
		if err == nil && (bytes.Contains(line, []byte(c.Dir()+"/")) || bytes.HasPrefix(line, []byte("gpumem-cluster-"+c.Name()+"-"))) {
			t.Errorf("a process is left: %s: %s", file, bytes.ReplaceAll(line, []byte{0}, []byte{' '}))
		}
	}
}

// runPod runs a sample pod, on a node or where the scheduler puts it, until it
// is ready.
func runPod(ctx context.Context, t *testing.T, c *cluster.Cluster, name, node, get string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName: node,
			Containers: []corev1.Container{{
				Name:            "sample",
				Image:           cluster.SampleImage,
				ImagePullPolicy: corev1.PullNever,
				Env: []corev1.EnvVar{
					{Name: "NVIDIA_VISIBLE_DEVICES", Value: "none"},
					{Name: "SAMPLE_GET", Value: get},
				},
			}},
		},
	}
	pods := c.Client().CoreV1().Pods(metav1.NamespaceDefault)
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	waitFor(ctx, t, "pod "+name+" is ready", func(ctx context.Context) error {
		var err error
		if pod, err = pods.Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("its status is %+v", pod.Status)
	})
	return pod
}

func getPod(ctx context.Context, t *testing.T, c *cluster.Cluster, name string) *corev1.Pod {
	t.Helper()
	pod, err := c.Client().CoreV1().Pods(metav1.NamespaceDefault).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// deletePod deletes a pod and waits until its node has let it go.
func deletePod(ctx context.Context, t *testing.T, c *cluster.Cluster, name string) {
	t.Helper()
	pods := c.Client().CoreV1().Pods(metav1.NamespaceDefault)
	if err := pods.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waitFor(ctx, t, "pod "+name+" is gone", func(ctx context.Context) error {
		_, err := pods.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		return errors.New("it is there")
	})
}

// waitLog waits until a pod has printed just what is wanted.
func waitLog(ctx context.Context, t *testing.T, c *cluster.Cluster, pod, want string) {
	t.Helper()
	waitFor(ctx, t, "the log of pod "+pod+" is complete", func(ctx context.Context) error {
		got, err := c.Client().CoreV1().Pods(metav1.NamespaceDefault).GetLogs(pod, &corev1.PodLogOptions{}).DoRaw(ctx)
		if err != nil {
			return err
		}
		if diff := cmp.Diff(want, string(got)); diff != "" {
			return fmt.Errorf("log (-want +got):\n%s", diff)
		}
		return nil
	})
}

func execInPod(ctx context.Context, t *testing.T, c *cluster.Cluster, pod string, command ...string) string {
	t.Helper()
	config, err := c.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	url := c.Client().CoreV1().RESTClient().Post().Resource("pods").Namespace(metav1.NamespaceDefault).Name(pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Command: command, Stdout: true, Stderr: true}, scheme.ParameterCodec).URL()
	executor, err := remotecommand.NewWebSocketExecutor(config, "GET", url.String())
	if err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	if err := executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &out, Stderr: &errs}); err != nil {
		t.Fatalf("exec %v in pod %s: %v: %s", command, pod, err, errs.String())
	}
	return out.String()
}

func waitFor(ctx context.Context, t *testing.T, what string, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var last error
	err := wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		last = f(ctx)
		return last == nil, nil
	})
	if err != nil {
		t.Fatalf("wait until %s: %v: %v", what, err, last)
	}
}
