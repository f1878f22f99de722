package chaos

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gpumem/gpumem/test/cluster"
)

// callTimeout bounds every call: the other side may be dead.
const callTimeout = 5 * time.Second

// listHosts reads all nodes.
func listHosts(ctx context.Context, client kubernetes.Interface) (hosts, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var out hosts
	for i := range list.Items {
		h, err := hostOf(&list.Items[i])
		if err != nil {
			return nil, err
		}
		out = append(out, h)
	}
	return out, nil
}

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

// held returns what the kubelet of a node has given.
func held(ctx context.Context, c *cluster.Cluster, node string) ([]holding, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	list, err := c.PodResources(ctx, node)
	if err != nil {
		return nil, err
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
				slices.Sort(h.ids) // the kubelet has them in a map
				out = append(out, h)
			}
		}
	}
	return out, nil
}

// living returns the processes that see a grant.
func living(c *cluster.Cluster) ([]process, error) {
	all, err := c.ContainerProcesses("sample")
	if err != nil {
		return nil, err
	}
	var out []process
	for _, one := range all {
		env, err := one.Environment()
		if err != nil {
			continue // it has just ended
		}
		p := process{ContainerProcess: one, uuids: strings.Split(env["NVIDIA_VISIBLE_DEVICES"], ",")}
		if p.limitMiB, err = strconv.ParseInt(env["GPUMEM_LIMIT_MIB"], 10, 64); err == nil {
			out = append(out, p)
		}
	}
	return out, nil
}
