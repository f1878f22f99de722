package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The release that stands in for gpushare. It works beside the one that the
// other tests use: all that both name has the domain in it.
const (
	heir          = "heir"
	heirNamespace = "heir-system"
	heirScheduler = "heir-scheduler"
)

// TestInPlaceOfGPUShare has pods of gpushare run, puts gpumem in gpushare's
// place while they do, and then goes on with it.
func TestInPlaceOfGPUShare(t *testing.T) {
	e := setupHeir(t)
	plugin := e.startGPUShare("node1")
	old := map[string]struct {
		units int64
		index int
	}{"old-a": {6, 0}, "old-b": {5, 0}, "old-c": {4, 1}}
	containers := make(map[string]map[string]string)
	for _, name := range []string{"old-a", "old-b", "old-c"} {
		e.create(e.ofGPUShare(name, old[name].units, old[name].index))
		containers[name] = containerIDs(e.running(name))
	}
	// As "kubectl inspect gpushare" has it: by the annotations.
	want := map[string]int64{e.uuid("node1", 0): 11, e.uuid("node1", 1): 4}

	plugin()
	e.installHeir()
	e.eventually("the books have what gpushare had", func() (bool, string) {
		diff := cmp.Diff(want, e.books()["node1"])
		return diff == "", diff
	})
	undisturbed := func(t *testing.T) {
		t.Helper()
		for name, p := range old {
			if _, ok := containers[name]; !ok {
				continue
			}
			pod := e.get(name)
			if diff := cmp.Diff(containers[name], containerIDs(pod)); diff != "" {
				t.Errorf("containers of %s (-before +after):\n%s", name, diff)
			}
			if diff := cmp.Diff([]string{e.uuid("node1", p.index)}, e.assigned(pod)); diff != "" {
				t.Errorf("what is written of %s (-want +got):\n%s", name, diff)
			}
			ids := e.held("node1")[e.namespace+"/"+name+"/main"]
			if int64(len(ids)) != p.units || !strings.Contains(ids[0], "-_-") {
				t.Errorf("the kubelet has %v for %s, want %d IDs of gpushare", ids, name, p.units)
			}
		}
	}
	t.Run("what runs is not touched", undisturbed)
	e.eventually("the pod's events tell of it", func() (bool, string) {
		events := strings.Join(e.events("old-a"), "\n")
		return strings.Contains(events, "GPUMemoryTakenOver: counts on GPU 0 ("+e.uuid("node1", 0)+"), which gpushare had chosen for it"), events
	})
	t.Run("its memory is not given away", func(t *testing.T) {
		e.create(e.ofHeir("four", 4, onNode("node1"))) // 3 are left on GPU 0
		e.running("four")
		if got := e.agree("four", "main")[0]; got != e.uuid("node1", 1) {
			t.Errorf("it is on %s, want GPU 1", got)
		}
		e.create(e.ofHeir("seven", 7, onNode("node1")))
		e.pending("seven", "needs 7 GiB on one GPU; free: GPU0 3, GPU1 6 (9 in all, fragmented)")
		e.create(e.ofHeir("bypass", 7, func(pod *v1.Pod) { pod.Spec.NodeName = "node1" }))
		e.eventually("the kubelet refuses the pod that came by no scheduler", func() (bool, string) {
			pod := e.get("bypass")
			return pod.Status.Phase == v1.PodFailed && strings.Contains(pod.Status.Message, "free: GPU0 3, GPU1 6"), pod.Status.Message
		})
		for _, name := range []string{"seven", "four"} {
			e.delete(name, 0)
			e.gone(name)
		}
	})
	t.Run("nor what restarts", func(t *testing.T) {
		e.killContainersOf("old-c")
		e.eventually("its container has started again", func() (bool, string) {
			pod := e.get("old-c")
			return ready(pod) && pod.Status.ContainerStatuses[0].RestartCount == 1, fmt.Sprint(pod.Status.ContainerStatuses)
		})
		if got := e.environment("old-c", "main")["ALIYUN_COM_GPU_MEM_IDX"]; got != "1" {
			t.Errorf("it is told of GPU %q, want 1", got)
		}
		containers["old-c"] = containerIDs(e.get("old-c"))
		if err := e.cluster.Restart(e.ctx, "kubelet@node1"); err != nil {
			t.Fatal(err)
		}
		if err := e.cluster.WaitReady(e.ctx); err != nil {
			t.Fatal(err)
		}
		e.create(e.ofHeir("after", 3, onNode("node1"))) // the kubelet admits again
		e.running("after")
		undisturbed(t)
		e.delete("after", 0)
		e.gone("after")
	})
	t.Run("what ends is free", func(t *testing.T) {
		e.delete("old-a", 1) // not by force: its object is there until the kubelet is done with it
		e.gone("old-a")
		delete(containers, "old-a")
		e.create(e.ofHeir("nine", 9, onNode("node1")))
		e.running("nine")
		if got := e.agree("nine", "main")[0]; got != e.uuid("node1", 0) {
			t.Errorf("it is on %s, want GPU 0", got)
		}
		undisturbed(t)
		e.delete("nine", 0)
		e.gone("nine")
	})
	t.Run("what is made for gpushare works", e.testGPUSharesSample)
	t.Run("gpumem's extender runs where gpushare's was", e.testExtenderForGPUShare)
	t.Run("but a reboot ends what gpushare has placed", func(t *testing.T) {
		if err := e.cluster.Kill(e.ctx, "kubelet@node1"); err != nil {
			t.Fatal(err)
		}
		e.killContainersOf("old-b")
		if err := e.cluster.StartProcess("kubelet@node1"); err != nil {
			t.Fatal(err)
		}
		if err := e.cluster.WaitReady(e.ctx); err != nil {
			t.Fatal(err)
		}
		e.eventually("the kubelet has refused it", func() (bool, string) {
			pod := e.get("old-b")
			return pod.Status.Phase == v1.PodFailed && pod.Status.Reason == "UnexpectedAdmissionError", pod.Status.Reason + ": " + pod.Status.Message
		})
		e.eventually("its memory is free", func() (bool, string) {
			got := e.books()["node1"][e.uuid("node1", 0)]
			return got == 0, fmt.Sprint(got)
		})
	})
}

// testExtenderForGPUShare has the extender run as the manifest for that says, on
// a node that is called one of the control plane.
func (e *env) testExtenderForGPUShare(t *testing.T) {
	kubectl := func(args ...string) string {
		t.Helper()
		out, err := suite.stack.Kubectl(e.ctx, e.cluster, args...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	const role, account = "node-role.kubernetes.io/control-plane", "system:serviceaccount:gpumem-system:gpumem-gpushare-extender"
	manifest := suite.stack.SchedulerFile("gpushare-extender.yaml")
	kubectl("label", "node", "node2", role+"=")
	defer kubectl("label", "node", "node2", role+"-")
	kubectl("apply", "--filename", manifest)
	defer kubectl("delete", "--filename", manifest)
	kubectl("rollout", "status", "daemonset/gpumem-gpushare-extender", "--namespace", "gpumem-system", "--timeout=1m")
	kubectl("auth", "can-i", "create", "pods", "--subresource=binding", "--all-namespaces", "--as", account)
	if log := kubectl("logs", "daemonset/gpumem-gpushare-extender", "--namespace", "gpumem-system"); strings.Contains(log, "forbidden") {
		t.Errorf("it lacks rights:\n%s", log)
	}
}

// testGPUSharesSample runs pods that know nothing of gpumem by the cluster's own
// kube-scheduler, which was set up for gpushare and is left as it is.
func (e *env) testGPUSharesSample(t *testing.T) {
	e.startExtenderForGPUShare()
	if _, err := suite.stack.Kubectl(e.ctx, e.cluster, "apply", "--namespace", e.namespace, "--filename", suite.stack.Sample("gpushare-statefulset.yaml")); err != nil {
		t.Fatal(err)
	}
	gpus := make(map[string]string) // by node: gpushare's setting scores no nodes
	for i := range 3 {
		name := fmt.Sprint("binpack-1-", i)
		e.eventually(name+" is there", func() (bool, string) {
			_, err := e.client.CoreV1().Pods(e.namespace).Get(e.ctx, name, metav1.GetOptions{})
			return err == nil, fmt.Sprint(err)
		})
		pod := e.running(name)
		if pod.Spec.SchedulerName != v1.DefaultSchedulerName {
			t.Errorf("%s is placed by %s", name, pod.Spec.SchedulerName)
		}
		uuids := e.agree(name, "binpack-1")
		if first := gpus[pod.Spec.NodeName]; first != "" && first != uuids[0] {
			t.Errorf("%s is on %s, beside another on %s: want them on one GPU of %s", name, uuids[0], first, pod.Spec.NodeName)
		}
		gpus[pod.Spec.NodeName] = uuids[0]
		e.eventually("gpushare's annotations say that it has been admitted", func() (bool, string) {
			pod = e.get(name)
			return pod.Annotations["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "true", fmt.Sprint(pod.Annotations)
		})
		index := pod.Annotations["ALIYUN_COM_GPU_MEM_IDX"]
		if i, err := strconv.Atoi(index); err != nil || e.uuid(pod.Spec.NodeName, i) != uuids[0] {
			t.Errorf("%s: gpushare's annotation names GPU %q, and it is on %v", name, index, uuids)
		}
		got := e.environment(name, "binpack-1")
		for key, want := range map[string]string{
			"ALIYUN_COM_GPU_MEM_IDX": index, "ALIYUN_COM_GPU_MEM_POD": "3", "ALIYUN_COM_GPU_MEM_CONTAINER": "3",
			"ALIYUN_COM_GPU_MEM_DEV": pod.Annotations["ALIYUN_COM_GPU_MEM_DEV"], "GPUMEM_LIMIT_MIB": "3072",
		} {
			if got[key] != want || want == "" {
				t.Errorf("%s: %s=%q, want %q", name, key, got[key], want)
			}
		}
	}
	e.eventually("nodes count their GPUs as gpushare's tools read it", func() (bool, string) {
		node, err := e.client.CoreV1().Nodes().Get(e.ctx, "node1", metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		count := node.Status.Allocatable["aliyun.com/gpu-count"]
		return count.Value() == 2, count.String()
	})
	if _, err := suite.stack.Kubectl(e.ctx, e.cluster, "delete", "--namespace", e.namespace, "--filename", suite.stack.Sample("gpushare-statefulset.yaml")); err != nil {
		t.Fatal(err)
	}
}

// setupHeir is setup for tests in gpushare's domain. At the end it takes away
// what installHeir has installed.
func setupHeir(t *testing.T) *env {
	t.Helper()
	t.Cleanup(func() { // after the check that setup registers
		if suite.cluster == nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
		defer cancel()
		(&env{T: t, ctx: ctx, cluster: suite.cluster, client: suite.cluster.Client()}).uninstall(ctx, heir, heirNamespace, "aliyun.com")
	})
	e := setup(t)
	e.domain = "aliyun.com"
	return e
}

func (e *env) installHeir() {
	e.Helper()
	if _, err := suite.stack.InstallAs(e.ctx, e.cluster, heir, heirNamespace,
		"resourceDomain=aliyun.com", "scheduler.schedulerName="+heirScheduler, "admission.setSchedulerName=false", "devicePlugin.extraArgs={--probe-interval=1s}"); err != nil {
		e.Fatal(err)
	}
}

// startGPUShare has gpushare's plugin serve a node, by its own arithmetic. What
// it returns ends the plugin.
func (e *env) startGPUShare(node string) (stop func()) {
	e.Helper()
	plugin := &gpusharePlugin{client: e.client, node: node, uuids: []string{e.uuid(node, 0), e.uuid(node, 1)}, units: 15}
	stop, err := e.cluster.ServeDevicePlugin(e.ctx, node, "aliyun.com/gpu-mem", plugin)
	if err != nil {
		e.Fatal(err)
	}
	e.Cleanup(stop)
	e.eventually(node+" offers what gpushare's plugin lists", func() (bool, string) {
		object, err := e.client.CoreV1().Nodes().Get(e.ctx, node, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		q := object.Status.Allocatable["aliyun.com/gpu-mem"]
		return q.Value() == int64(plugin.units*len(plugin.uuids)), q.String()
	})
	return stop
}

// startExtenderForGPUShare runs gpumem-extender where kube-scheduler was told to
// find gpushare's.
func (e *env) startExtenderForGPUShare() {
	e.Helper()
	e.runBesideControlPlane("gpumem-extender in gpushare's place", exec.Command(suite.stack.Binary("gpumem-extender"),
		"--listen=127.0.0.1:32766", "--probe-listen=127.0.0.1:32767", "--read-listen=127.0.0.1:32765",
		"--resource-domain=aliyun.com", "--log-level=debug", "--log-format=console", "--kubeconfig="+filepath.Join(e.cluster.Dir(), "scheduler.kubeconfig")))
}

// uuid returns the UUID of a GPU, from the books of the other domain, which are
// there before gpumem has come to this one.
func (e *env) uuid(node string, index int) string {
	e.Helper()
	other := *e
	other.domain = "gpumem.dev"
	return other.gpu(node, index)
}

// ofHeir is pod for the release in gpushare's place.
func (e *env) ofHeir(name string, units int64, more ...func(*v1.Pod)) *v1.Pod {
	heirs := func(pod *v1.Pod) { pod.Spec.SchedulerName = heirScheduler }
	return e.pod(name, 0, append([]func(*v1.Pod){asking("aliyun.com/gpu-mem", units), heirs}, more...)...)
}

// ofGPUShare is a pod as gpushare's scheduler leaves it to the kubelet.
func (e *env) ofGPUShare(name string, units int64, index int) *v1.Pod {
	return e.ofHeir(name, units, func(pod *v1.Pod) {
		pod.Spec.NodeName = "node1"
		pod.Annotations = map[string]string{
			"ALIYUN_COM_GPU_MEM_IDX":         strconv.Itoa(index),
			"ALIYUN_COM_GPU_MEM_POD":         strconv.FormatInt(units, 10),
			"ALIYUN_COM_GPU_MEM_DEV":         "15",
			"ALIYUN_COM_GPU_MEM_ASSIGNED":    "false",
			"ALIYUN_COM_GPU_MEM_ASSUME_TIME": strconv.FormatInt(time.Now().UnixNano(), 10),
		}
	})
}

// killContainersOf kills the containers of one pod.
func (e *env) killContainersOf(name string) {
	e.Helper()
	pod := e.get(name)
	processes, err := e.cluster.ContainerProcesses("sample")
	if err != nil {
		e.Fatal(err)
	}
	killed := 0
	for _, p := range processes {
		if p.Pod != pod.UID {
			continue
		}
		if err := p.Signal(syscall.SIGKILL); err != nil {
			e.Fatalf("kill a container of %s: %v", name, err)
		}
		killed++
	}
	if killed == 0 {
		e.Fatalf("no container of %s runs", name)
	}
}
