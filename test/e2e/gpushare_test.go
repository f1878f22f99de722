package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The release that replaces gpushare. It works beside the release that the
// other tests use: all that both name has the domain in it.
const (
	heir          = "heir"
	heirNamespace = "heir-system"
	heirScheduler = "heir-scheduler"
)

// TestMigratingFromGPUShare migrates a node with the commands of docs/migrating-from-gpushare.md, skips the
// drain at first, and goes back at the end.
func TestMigratingFromGPUShare(t *testing.T) {
	e := setupHeir(t)
	kubectl := func(args ...string) {
		t.Helper()
		if _, err := suite.stack.Kubectl(e.ctx, e.cluster, args...); err != nil {
			t.Fatal(err)
		}
	}
	drain := func() {
		t.Helper()
		// By a selector, since other tests' releases have pods on the node; by force, since no controller owns these.
		kubectl("drain", "node1", "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--pod-selector=app=heir")
		kubectl("uncordon", "node1")
	}
	refused := func(step string, set ...string) {
		t.Helper()
		err := e.installHeir(set...)
		for _, want := range []string{"old-a", "old-b", "docs/migrating-from-gpushare.md"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want it refused because of %s", step, err, want)
			}
		}
	}
	const migrated = "devicePlugin.nodeSelector.migrated=to-gpumem"
	stopGPUShare := e.startGPUShare("node1")
	for name, index := range map[string]int{"old-a": 0, "old-b": 1} {
		e.placeAsGPUShare(name, int64(4+index), index)
	}
	containers := map[string]map[string]string{"old-a": containerIDs(e.running("old-a")), "old-b": containerIDs(e.running("old-b"))}

	refused("an installation on all nodes")
	if err := e.installHeir(migrated); err != nil {
		t.Fatal(err)
	}
	stopGPUShare()
	kubectl("label", "node", "node1", "migrated=to-gpumem")
	t.Cleanup(func() { // e's context is done by then
		_, _ = suite.stack.Kubectl(context.Background(), suite.cluster, "label", "node", "node1", "migrated-")
	})
	e.eventually("the device plugin offers no GPU of the node", func() (bool, string) {
		now := e.health("node1")
		return len(now) == 2 && now[0] == now[1] && now[0] == "in use by pods that gpushare placed: "+e.namespace+"/old-a, "+e.namespace+"/old-b", fmt.Sprint(now)
	})
	e.create(e.ofHeir("early", 1, onNode("node1")))
	e.pending("early")
	refused("an upgrade", migrated)
	e.eventually("doctor lists the pods", func() (bool, string) {
		said, err := suite.stack.Inspect(e.ctx, e.cluster, "doctor", "--resource-domain=aliyun.com", "-o", "json")
		all := fmt.Sprint(said, err)
		return strings.Contains(all, "pod "+e.namespace+"/old-a") && strings.Contains(all, "pod "+e.namespace+"/old-b") && strings.Contains(all, "was placed by gpushare"), all
	})
	for name, before := range containers {
		if diff := cmp.Diff(before, containerIDs(e.get(name))); diff != "" {
			t.Errorf("containers of %s (-before +after):\n%s", name, diff)
		}
	}

	drain()
	e.gone("old-a")
	e.gone("old-b")
	e.running("early")
	if got := e.health("node1"); strings.Join(got, "") != "" {
		t.Errorf("after the drain: %v", got)
	}
	t.Run("a manifest for gpushare runs", func(*testing.T) {
		e.create(e.ofHeir("new", 3, onNode("node1")))
		e.running("new")
		e.agree("new", "main")
	})
	t.Run("a pod that gpumem 0.2 placed stays", func(t *testing.T) {
		e.placeAs02("of-02")
		if err := e.installHeir(migrated); err != nil {
			t.Errorf("an upgrade: %v", err)
		}
	})
	t.Run("the way back", func(*testing.T) {
		drain()
		kubectl("label", "node", "node1", "migrated-")
		kubectl("wait", "pods", "--namespace", heirNamespace, "--selector=app.kubernetes.io/component=device-plugin", "--for=delete", "--timeout=1m")
		e.startGPUShare("node1")
		e.placeAsGPUShare("back", 4, 1)
		e.running("back")
		e.delete("back", 0)
		e.gone("back")
		other := *e
		other.domain = "gpumem.dev"
		e.eventually("the other release offers the GPUs again", func() (bool, string) {
			now := other.health("node1")
			return strings.Join(now, "") == "", fmt.Sprint(now)
		})
	})
}

// placeAs02 makes a pod that runs on GPU 0 of node1, bound by the Binding that gpumem 0.2 wrote.
func (e *env) placeAs02(name string) {
	e.Helper()
	pod := e.create(e.ofHeir(name, 2, func(pod *v1.Pod) { pod.Spec.SchedulerName = "gpumem-0.2" }))
	annotations := gpushareAnnotations(2, 0)
	annotations["aliyun.com/assignment"] = fmt.Sprintf(`{"v":1,"unitMiB":1024,"gpus":[{"uuid":%q,"units":2}]}`, e.uuid("node1", 0))
	binding := &v1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: name, UID: pod.UID, Annotations: annotations},
		Target:     v1.ObjectReference{Kind: "Node", Name: "node1"},
	}
	if err := e.client.CoreV1().Pods(e.namespace).Bind(e.ctx, binding, metav1.CreateOptions{}); err != nil {
		e.Fatal(err)
	}
	e.running(name)
	e.agree(name, "main")
}

// health returns why the GPUs of a node take no pods, empty for each that does.
func (e *env) health(node string) (out []string) {
	e.Helper()
	for _, n := range e.inspect().Nodes {
		for _, g := range n.GPUs {
			if n.Name == node {
				out = append(out, g.Unhealthy)
			}
		}
	}
	return out
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

func (e *env) installHeir(set ...string) error {
	e.Helper()
	_, err := suite.stack.InstallAs(e.ctx, e.cluster, heir, heirNamespace,
		append([]string{"resourceDomain=aliyun.com", "scheduler.schedulerName=" + heirScheduler, "admission.setSchedulerName=false", "devicePlugin.extraArgs={--probe-interval=1s}"}, set...)...)
	return err
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

// uuid returns the UUID of a GPU, from the books of the other domain, which are
// there before gpumem has come to this one.
func (e *env) uuid(node string, index int) string {
	e.Helper()
	other := *e
	other.domain = "gpumem.dev"
	return other.gpu(node, index)
}

// ofHeir is pod for the release that replaces gpushare.
func (e *env) ofHeir(name string, units int64, more ...func(*v1.Pod)) *v1.Pod {
	heirs := func(pod *v1.Pod) {
		pod.Spec.SchedulerName = heirScheduler
		pod.Labels = map[string]string{"app": "heir"}
	}
	return e.pod(name, 0, append([]func(*v1.Pod){asking("aliyun.com/gpu-mem", units), heirs}, more...)...)
}

// placeAsGPUShare creates a pod and binds it to node1 as gpushare's extender does: it updates the
// pod's annotations first.
func (e *env) placeAsGPUShare(name string, units int64, index int) {
	e.Helper()
	pods := e.client.CoreV1().Pods(e.namespace)
	pod := e.create(e.ofHeir(name, units, func(pod *v1.Pod) { pod.Spec.SchedulerName = "gpushare" }))
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": gpushareAnnotations(units, index)}})
	if err != nil {
		e.Fatal(err)
	}
	if _, err := pods.Patch(e.ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		e.Fatal(err)
	}
	binding := &v1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: name, UID: pod.UID},
		Target:     v1.ObjectReference{Kind: "Node", Name: "node1"},
	}
	if err := pods.Bind(e.ctx, binding, metav1.CreateOptions{}); err != nil {
		e.Fatal(err)
	}
}

func gpushareAnnotations(units int64, index int) map[string]string {
	return map[string]string{
		"ALIYUN_COM_GPU_MEM_IDX":         strconv.Itoa(index),
		"ALIYUN_COM_GPU_MEM_POD":         strconv.FormatInt(units, 10),
		"ALIYUN_COM_GPU_MEM_DEV":         "15",
		"ALIYUN_COM_GPU_MEM_ASSIGNED":    "false",
		"ALIYUN_COM_GPU_MEM_ASSUME_TIME": strconv.FormatInt(time.Now().UnixNano(), 10),
	}
}
