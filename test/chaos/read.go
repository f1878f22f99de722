package chaos

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpumem/gpumem/test/cluster"
)

// callTimeout bounds every call: the other side may be dead.
const callTimeout = 5 * time.Second

// listPods returns the pods that ask for GPU memory. The list is one state of
// the API server: without a resource version it is not read from a stale cache.
func listPods(ctx context.Context, client kubernetes.Interface) ([]pod, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	list, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var out []pod
	for i := range list.Items {
		if p, ok := podOf(&list.Items[i]); ok {
			out = append(out, p)
		}
	}
	return out, nil
}

// kubelet asks one kubelet what it has given.
type kubelet struct {
	node string
	conn *grpc.ClientConn
}

func dialKubelet(c *cluster.Cluster, node string) (*kubelet, error) {
	socket := filepath.Join(c.NodeDir(node), "lib", "kubelet", "pod-resources", "kubelet.sock")
	// A killed kubelet is back in seconds.
	retry := grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1.5, MaxDelay: time.Second}, MinConnectTimeout: time.Second}
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(retry))
	if err != nil {
		return nil, err
	}
	return &kubelet{node: node, conn: conn}, nil
}

func (k *kubelet) close() error { return k.conn.Close() }

func (k *kubelet) held(ctx context.Context) ([]holding, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	list, err := podresourcesv1.NewPodResourcesListerClient(k.conn).List(ctx, &podresourcesv1.ListPodResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("PodResources of %s: %w", k.node, err)
	}
	var out []holding
	for _, pod := range list.GetPodResources() {
		for _, c := range pod.GetContainers() {
			h := holding{pod: pod.GetNamespace() + "/" + pod.GetName(), container: c.GetName()}
			for _, d := range c.GetDevices() {
				if d.GetResourceName() == gpuMem {
					h.ids = append(h.ids, d.GetDeviceIds()...)
				}
			}
			if len(h.ids) > 0 {
				out = append(out, h)
			}
		}
	}
	return out, nil
}

// found is a process of a container, by the program that it runs.
type found struct {
	pid, start      int
	node, container string
	pod             types.UID
}

// findProcesses returns the processes in containers of a cluster's pods that
// run a program.
func findProcesses(clusterName string, programs ...string) (map[string][]found, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	out := make(map[string][]found)
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		// A process that is ending has no program any more, and none that ended.
		exe, err := os.Readlink(filepath.Join("/proc", entry.Name(), "exe"))
		if err != nil || !slices.Contains(programs, filepath.Base(exe)) {
			continue
		}
		cgroup, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "cgroup"))
		if err != nil {
			continue
		}
		f, ok := placeOf(clusterName, string(cgroup))
		if !ok {
			continue
		}
		f.pid = pid
		if f.start, ok = startOf(pid); ok {
			out[filepath.Base(exe)] = append(out[filepath.Base(exe)], f)
		}
	}
	return out, nil
}

// placeOf reads node, pod and container from the control group of a process:
// …/gpumem-CLUSTER/NODE/kubepods/…/podUID/CONTAINER.
func placeOf(clusterName, cgroup string) (found, bool) {
	for line := range strings.Lines(cgroup) {
		_, below, ok := strings.Cut(strings.TrimSpace(line), "/gpumem-"+clusterName+"/")
		if !ok {
			continue
		}
		parts := strings.Split(below, "/")
		for i, part := range parts {
			uid, ok := strings.CutPrefix(part, "pod")
			if ok && strings.Contains(uid, "-") && i+1 < len(parts) {
				return found{node: parts[0], pod: types.UID(uid), container: parts[i+1]}, true
			}
		}
	}
	return found{}, false
}

// startOf returns when a process has started, in ticks.
func startOf(pid int) (int, bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	// The name, in parentheses, may hold anything.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	const starttime = 22 - 3
	if len(fields) <= starttime || bytes.Equal(fields[0], []byte("Z")) {
		return 0, false
	}
	start, err := strconv.Atoi(string(fields[starttime]))
	return start, err == nil
}

// living returns the processes that see a grant, from their environment.
func living(clusterName string) ([]process, error) {
	all, err := findProcesses(clusterName, "sample")
	if err != nil {
		return nil, err
	}
	var out []process
	for _, f := range all["sample"] {
		env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", f.pid))
		if err != nil || !alive(f.pid, f.start) {
			continue
		}
		p := process{pid: f.pid, start: f.start, node: f.node, pod: f.pod, container: f.container}
		for kv := range strings.SplitSeq(string(env), "\x00") {
			switch key, value, _ := strings.Cut(kv, "="); key {
			case "NVIDIA_VISIBLE_DEVICES":
				p.uuids = strings.Split(value, ",")
			case "GPUMEM_LIMIT_MIB":
				p.limitMiB, _ = strconv.ParseInt(value, 10, 64)
			}
		}
		if p.limitMiB > 0 {
			out = append(out, p)
		}
	}
	return out, nil
}

// alive says whether the process is still there, and the same, and still has
// its memory.
func alive(pid, start int) bool {
	now, ok := startOf(pid)
	if !ok || now != start {
		return false
	}
	_, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return err == nil
}
