package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/test/stack"
)

// TestAContainersStartIsInterruptedAfterEachStep kills -9 each process that takes part in a container's start, after each
// step of it. The kubelet, which drives the steps, is stopped meanwhile. At rest, environment, record, PodResources and
// annotation have the same GPUs, whether the runtime calls the plugin by NRI or not. The kubelet fails pods that it admits while
// the device plugin is down; a later successor starts.
func TestAContainersStartIsInterruptedAfterEachStep(t *testing.T) {
	for name, set := range map[string][]string{"with NRI": nil, "without NRI": {"devicePlugin.nri=false"}} {
		t.Run(name, func(t *testing.T) {
			e := setup(t)
			if set != nil {
				e.upgrade(set...)
			}
			e.testInterruptedStarts()
		})
	}
}

func (e *env) testInterruptedStarts() {
	t := e.T
	const node, kubelet, runtime = "node1", "kubelet@node1", "containerd@node1"
	has := func(file, text string) bool {
		data, err := os.ReadFile(filepath.Join(e.devicePlugins(node), file))
		return err == nil && bytes.Contains(data, []byte(text))
	}
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	restart := func(process string) {
		do(e.cluster.Kill(e.ctx, process))
		do(e.cluster.StartProcess(process))
	}
	failed := 0
	steps := []struct {
		name string
		done func(pod *v1.Pod) bool
	}{
		{"bound", func(pod *v1.Pod) bool { return e.get(pod.Name).Spec.NodeName != "" }},
		{"recorded", func(pod *v1.Pod) bool { return has("gpumem-grants.json", pod.Name) }},
		{"allocated", func(pod *v1.Pod) bool { return has("kubelet_internal_checkpoint", string(pod.UID)) }},
		{"started", func(pod *v1.Pod) bool { return len(e.processesOf("sample", pod)) > 0 }},
		{"ready", func(pod *v1.Pod) bool { return ready(e.get(pod.Name)) }},
	}
	stop := func() { do(e.cluster.Signal(kubelet, unix.SIGSTOP)) }
	for i, step := range steps {
		for victim, kill := range map[string]func(){
			"plugin": func() {
				processes, err := e.cluster.ContainerProcesses("gpumem-device-plugin")
				do(err)
				for _, p := range processes {
					if p.Node == node {
						do(p.Signal(unix.SIGKILL))
					}
				}
				do(e.cluster.Signal(kubelet, unix.SIGCONT))
			},
			"kubelet": func() { restart(kubelet) },
			"runtime": func() {
				restart(runtime)
				do(e.cluster.Signal(kubelet, unix.SIGCONT))
			},
		} {
			t.Run(step.name+", "+victim, func(t *testing.T) {
				e := &env{T: t, ctx: e.ctx, cluster: e.cluster, client: e.client, namespace: e.namespace, domain: e.domain}
				e.offers(node)
				name := step.name + "-" + victim
				if step.name == "bound" {
					stop() // the kubelet would admit the pod before this test sees the binding
				}
				pod := e.create(e.pod(name, 3, onNode(node)))
				for end := time.Now().Add(patience); !step.done(pod); time.Sleep(time.Millisecond) {
					if time.Now().After(end) {
						t.Fatalf("the pod is never %s: %v", step.name, e.events(name))
					}
				}
				stop()
				for _, later := range steps[i+1:] {
					if later.done(pod) {
						t.Logf("the pod is already %s", later.name)
					}
				}
				kill()
				for end := time.Now().Add(patience); !e.startsOrFails(name); failed++ {
					if time.Now().After(end) {
						t.Fatal("the kubelet fails each successor of the pod")
					}
					e.delete(name, 0)
					e.gone(name)
					e.create(e.pod(name, 3, onNode(node)))
				}
				gpus := e.agree(name, "main")
				e.recordAgrees(node, name, gpus)
				e.delete(name, 0)
				e.gone(name)
				if victim == "plugin" {
					e.replacePlugins() // else the kubelet waits longer each time before it starts the container again
				}
			})
		}
	}
	t.Logf("the kubelet failed %d pods", failed)
}

func (e *env) devicePlugins(node string) string {
	return filepath.Join(e.cluster.NodeDir(node), "lib", "kubelet", "device-plugins")
}

// processesOf returns the processes of a program in containers of a pod.
func (e *env) processesOf(program string, pod *v1.Pod) (pids []int) {
	e.Helper()
	processes, err := e.cluster.ContainerProcesses(program)
	if err != nil {
		e.Fatal(err)
	}
	for _, p := range processes {
		if p.Pod == pod.UID {
			pids = append(pids, p.PID)
		}
	}
	return pids
}

// offers waits until a node with two T4s is ready and offers their memory.
func (e *env) offers(node string) {
	e.Helper()
	e.eventually(node+" offers its GPUs", func() (bool, string) {
		n, err := e.client.CoreV1().Nodes().Get(e.ctx, node, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		isReady := slices.ContainsFunc(n.Status.Conditions, func(c v1.NodeCondition) bool { return c.Type == v1.NodeReady && c.Status == v1.ConditionTrue })
		offered := n.Status.Allocatable[gpuMem]
		return isReady && offered.Value() == 2*t4, fmt.Sprint(isReady, offered.String())
	})
}

// startsOrFails waits until a pod is ready, or has failed: then it returns false.
func (e *env) startsOrFails(name string) (starts bool) {
	e.Helper()
	e.eventually("pod "+name+" is ready or has failed", func() (bool, string) {
		pod := e.get(name)
		starts = ready(pod)
		return starts || pod.Status.Phase == v1.PodFailed, fmt.Sprint(pod.Status.Phase, e.events(name))
	})
	return starts
}

// recordAgrees waits until the node's record of grants has a container's slots as the kubelet lists them, and its GPUs.
func (e *env) recordAgrees(node, pod string, gpus []string) {
	e.Helper()
	e.eventually("record and kubelet agree on pod "+pod, func() (bool, string) {
		data, err := os.ReadFile(filepath.Join(e.devicePlugins(node), "gpumem-grants.json"))
		var record struct {
			Grants []struct {
				Namespace, Pod, Container string
				Slots                     []string
				GPUs                      []struct{ UUID string }
				Response                  struct{ Envs map[string]string }
			}
		}
		if err == nil {
			err = json.Unmarshal(data, &record)
		}
		if err != nil {
			return false, err.Error()
		}
		held := slices.Sorted(slices.Values(e.held(node)[e.namespace+"/"+pod+"/main"]))
		found := 0
		for _, g := range record.Grants {
			if g.Namespace != e.namespace || g.Pod != pod || g.Container != "main" || !slices.Equal(g.Slots, held) {
				continue
			}
			var uuids []string
			for _, part := range g.GPUs {
				uuids = append(uuids, part.UUID)
			}
			if slices.Equal(uuids, gpus) && g.Response.Envs["NVIDIA_VISIBLE_DEVICES"] == strings.Join(gpus, ",") {
				found++
			}
		}
		return found == 1, fmt.Sprintf("%v, GPUs %v: %s", held, gpus, data)
	})
}

// replacePlugins replaces the device plugin of each node by a new pod.
func (e *env) replacePlugins() {
	e.Helper()
	before := e.componentIDs("gpumem-device-plugin")
	if _, err := suite.stack.Kubectl(e.ctx, e.cluster, "delete", "pods", "--selector=app.kubernetes.io/component=device-plugin",
		"--wait=false", "--namespace", stack.Namespace); err != nil {
		e.Fatal(err)
	}
	e.eventually("every plugin is replaced", func() (bool, string) { return e.replaced(before) })
}
