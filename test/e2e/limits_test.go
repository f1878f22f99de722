package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/test/cluster"
	"github.com/gpumem/gpumem/test/fakenvml"
	"github.com/gpumem/gpumem/test/stack"
)

// A machine is a node whose driver, MPS daemon and control groups a test changes.
type machine struct {
	*env
	node string
	root string // its files, as this machine sees them
	gpus fakenvml.Machine

	byClaims bool // see handOutByClaims
}

// newMachine gives a test the first node, and puts it back at its end.
func newMachine(e *env) *machine {
	e.Helper()
	root, err := e.cluster.NodeRoot("node1")
	if err != nil {
		e.Fatal(err)
	}
	m := &machine{env: e, node: "node1", root: root, gpus: fakenvml.NewMachine(fakenvml.T4("node1-0"), fakenvml.T4("node1-1"))}
	e.atEnd(func() {
		updated := m.gpus.DriverVersion != ""
		m.gpus = fakenvml.NewMachine(fakenvml.T4("node1-0"), fakenvml.T4("node1-1"))
		m.setGPUs()
		if updated {
			m.updateDriver("580.65.06")
		}
		for _, path := range []string{simulatedCgroups, "/run/cdi"} {
			m.empty(path)
		}
		m.level("advisory", "")
	})
	return m
}

func (m *machine) setGPUs() {
	m.Helper()
	description, err := json.Marshal(m.gpus)
	if err != nil {
		m.Fatal(err)
	}
	if err := m.cluster.SetGPUs(m.node, description); err != nil {
		m.Fatal(err)
	}
}

// updateDriver gives the node another driver: its GPUs are lost meanwhile, and NVML
// is initialised anew.
func (m *machine) updateDriver(version string) {
	m.Helper()
	m.gpus.DriverVersion = version
	for _, state := range []fakenvml.State{fakenvml.Lost, fakenvml.OK} {
		for i := range m.gpus.GPUs {
			m.gpus.GPUs[i].State = state
		}
		m.setGPUs()
		m.eventually("the GPUs are "+string(state)+" with driver "+version, func() (bool, string) {
			node, err := m.client.CoreV1().Nodes().Get(m.ctx, m.node, metav1.GetOptions{})
			if err != nil {
				return false, err.Error()
			}
			text := node.Annotations[m.domain+"/inventory"]
			unhealthy := strings.Contains(text, `"healthy":false`)
			return strings.Contains(text, `"driverVersion":"`+version+`"`) && unhealthy == (state == fakenvml.Lost), text
		})
	}
}

// write makes a file of the node and the folders above it.
func (m *machine) write(content string, path ...string) {
	m.Helper()
	file := filepath.Join(append([]string{m.root}, path...)...)
	err := os.MkdirAll(filepath.Dir(file), 0o755)
	if err == nil {
		err = os.WriteFile(file, []byte(content), 0o644)
	}
	if err != nil {
		m.Error(err)
	}
}

// empty removes what is in a folder of the node, which containers have mounted.
func (m *machine) empty(path string) {
	entries, err := os.ReadDir(filepath.Join(m.root, path))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.Error(err)
	}
	for _, entry := range entries {
		if err := os.RemoveAll(filepath.Join(m.root, path, entry.Name())); err != nil {
			m.Error(err)
		}
	}
}

// level waits until the node has a level, and says in its inventory why it has
// no stronger one.
func (m *machine) level(want, weaker string) {
	m.Helper()
	m.eventually(fmt.Sprintf("%s has level %s (%s)", m.node, want, weaker), func() (bool, string) {
		node, err := m.client.CoreV1().Nodes().Get(m.ctx, m.node, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		var inventory struct{ Enforcement, Weaker string }
		text := node.Annotations[m.domain+"/inventory"]
		if err := json.Unmarshal([]byte(text), &inventory); err != nil {
			return false, err.Error()
		}
		return inventory.Enforcement == want && strings.Contains(inventory.Weaker, weaker), text
	})
}

// startMPS installs the chart's DaemonSet for the MPS daemon on the node, with a
// stand-in for NVIDIA's program, and these values. The function that is returned takes it away.
func (m *machine) startMPS(values ...string) (stop func()) {
	m.Helper()
	standIn, err := suite.stack.BuildMPSStandIn(m.ctx)
	if err != nil {
		m.Fatal(err)
	}
	program, err := os.ReadFile(standIn)
	if err != nil {
		m.Fatal(err)
	}
	path := filepath.Join(m.cluster.NodeDir(m.node), "driver", "usr", "bin", stack.MPSStandIn)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, program, 0o755)); err != nil {
		m.Fatal(err)
	}
	objects, err := suite.stack.Render(m.ctx, m.cluster, "templates/mps-daemonset.yaml",
		append(values, "mps.enabled=true", "mps.drainSeconds=1", "devicePlugin.nodeSelector.kubernetes\\.io/hostname="+m.node)...)
	if err != nil {
		m.Fatal(err)
	}
	if err := suite.stack.Apply(m.ctx, m.cluster, objects); err != nil {
		m.Fatal(err)
	}
	var once sync.Once
	stop = func() {
		once.Do(func() {
			if err := suite.stack.Delete(m.ctx, m.cluster, objects); err != nil {
				m.Error(err)
			}
		})
	}
	m.atEnd(stop)
	return stop
}

// told returns what the stand-in was told.
func (m *machine) told() string {
	text, err := os.ReadFile(filepath.Join(m.root, "run/gpumem/mps/log/standin.log"))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// processes returns those of a pod that run a program.
func (m *machine) processes(program string, pod *v1.Pod) []cluster.ContainerProcess {
	m.Helper()
	found, err := m.cluster.ContainerProcesses(program)
	if err != nil {
		m.Fatal(err)
	}
	return slices.DeleteFunc(found, func(p cluster.ContainerProcess) bool {
		return p.Node != m.node || pod != nil && p.Pod != pod.UID
	})
}

// gpu returns the GPU with that UUID, to be changed.
func (m *machine) gpu(uuid string) *fakenvml.GPU {
	m.Helper()
	i := slices.IndexFunc(m.gpus.GPUs, func(g fakenvml.GPU) bool { return g.UUID == uuid })
	if i < 0 {
		m.Fatalf("%s has no GPU %s", m.node, uuid)
	}
	return &m.gpus.GPUs[i]
}

// programs returns the processes of a pod of the sample image, as NVML lists
// those that hold memory of a GPU.
func (m *machine) programs(pod *v1.Pod, usedMiB int64) []fakenvml.Process {
	m.Helper()
	var out []fakenvml.Process
	for _, p := range m.processes("sample", pod) {
		pid, err := cluster.NodePID(p.PID)
		if err != nil {
			m.Fatal(err)
		}
		out = append(out, fakenvml.Process{PID: uint32(pid), UsedMiB: usedMiB})
	}
	return out
}

func (m *machine) kill(program string, pod *v1.Pod) {
	m.Helper()
	found := m.processes(program, pod)
	if len(found) == 0 {
		m.Fatalf("no process of %s on %s", program, m.node)
	}
	for _, p := range found {
		if err := p.Signal(syscall.SIGKILL); err != nil {
			m.Fatal(err)
		}
	}
}

// hasEvent waits for an event of a pod with some words in it.
func (e *env) hasEvent(name string, words ...string) {
	e.Helper()
	e.eventually(fmt.Sprintf("pod %s has an event with %q", name, words), func() (bool, string) {
		events := e.events(name)
		found := slices.ContainsFunc(events, func(s string) bool {
			return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(s, w) })
		})
		return found, strings.Join(events, "\n")
	})
}

// levelOf returns the level in the pod's assignment.
func (e *env) levelOf(name string) string {
	e.Helper()
	var given struct{ Enforcement string }
	if err := json.Unmarshal([]byte(e.get(name).Annotations[e.domain+"/assignment"]), &given); err != nil {
		e.Fatal(err)
	}
	return given.Enforcement
}

func (e *env) wantEnvironment(pod string, want map[string]string) {
	e.Helper()
	got := e.environment(pod, "main")
	for name, value := range want {
		if got[name] != value {
			e.Errorf("pod %s has %s=%q, want %q", pod, name, got[name], value)
		}
	}
}

func TestLevelMPS(t *testing.T) {
	e := setup(t)
	m := newMachine(e)
	m.level("advisory", "mps: no MPS daemon runs on the node")
	e.create(e.pod("early", 1, onNode(m.node), annotated("enforcement", "mps")))
	e.pending("early", "wants enforcement mps; this node has advisory (mps: no MPS daemon runs on the node")

	stop := m.startMPS()
	m.level("mps", "kernel: the driver is")
	e.running("early")
	e.create(e.pod("limited", 3, onNode(m.node), cored(30)))
	pod := e.running("limited")
	e.wantEnvironment("limited", map[string]string{
		"GPUMEM_ENFORCEMENT": "mps", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=3072M", "CUDA_MPS_PIPE_DIRECTORY": "/run/gpumem/mps/pipe",
		"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30",
	})
	e.wantEnvironment("early", map[string]string{"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1024M"})
	if got := e.levelOf("limited"); got != "mps" {
		t.Errorf("the assignment says %q", got)
	}
	if out, err := suite.stack.Inspect(e.ctx, e.cluster, "-d", m.node); err != nil || !strings.Contains(out, "mps (kernel: the driver is") {
		t.Errorf("kubectl inspect gpumem -d: %v\n%s", err, out)
	}

	// The daemon is killed: another has the same settings.
	m.kill(stack.MPSStandIn, nil)
	e.eventually("the daemon is there again, with its settings", func() (bool, string) {
		told := m.told()
		return strings.Count(told, "set_default_device_pinned_mem_limit 1 14910M") == 2, told
	})
	m.level("mps", "")

	// No daemon: what was promised a limit does not start without it, and nothing new is promised one.
	stop()
	m.level("advisory", "MPS daemon")
	m.kill("sample", pod)
	e.hasEvent("limited", "GPUMemoryNotEnforced", "container main of pod "+e.namespace+"/limited waits")
	e.create(e.pod("late", 1, onNode(m.node), annotated("enforcement", "mps")))
	e.pending("late", "wants enforcement mps; this node has advisory")
	e.create(e.pod("anyhow", 1, onNode(m.node)))
	e.running("anyhow")
	e.wantEnvironment("anyhow", map[string]string{"GPUMEM_ENFORCEMENT": "advisory", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": ""})
}

// prepared gives a pod an init container that asks for memory of its own.
func prepared(units int64) func(*v1.Pod) {
	return func(pod *v1.Pod) {
		pod.Spec.InitContainers = []v1.Container{sample("prepare", units, "-exit-after=100ms")}
	}
}

// TestLevelKernel: no MPS daemon runs.
func TestLevelKernel(t *testing.T) {
	e := setup(t)
	m := newMachine(e)
	m.startRuntime()
	m.level("advisory", `kernel: the driver is "580`)
	m.updateDriver("615.10.01")
	m.level("advisory", "kernel: /sys/fs/cgroup is not cgroup v2")
	m.write("nvidia/0000:10:00.0/vidmem 16106127360\nnvidia/0000:11:00.0/vidmem 16106127360\n", simulatedCgroups, "dmem.capacity")
	m.write("cpu memory dmem\n", simulatedCgroups, "cgroup.controllers")
	m.write("cpu memory dmem\n", simulatedCgroups, "cgroup.subtree_control")
	m.level("advisory", "kernel: the kubelet's control group kubepods is not below /sys/fs/cgroup")
	m.write("cpu memory\n", simulatedCgroups, "kubepods/cgroup.subtree_control")
	m.level("advisory", "can have none where +dmem is missing from cgroup.subtree_control above it")
	m.write("cpu memory dmem\n", simulatedCgroups, "kubepods/cgroup.subtree_control")
	m.level("kernel", "")

	e.create(e.pod("held", 3, onNode(m.node), annotated("enforcement", "kernel")))
	held := e.running("held")
	e.wantEnvironment("held", map[string]string{
		"GPUMEM_ENFORCEMENT": "kernel", "NVIDIA_GPU_MEMORY_LIMIT": "3072", "NVIDIA_GPU_MEMORY_REQUEST": "3072", "GPUMEM_FRACTION": "0.9200",
		"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "", "CUDA_MPS_PIPE_DIRECTORY": "",
	})
	// The kubelet tells of no plain init container.
	e.create(e.pod("prepared", 1, onNode(m.node), annotated("enforcement", "kernel"), prepared(2)))
	e.running("prepared")

	// A container whose group is given no limits does not start, and the kubelet tries again.
	m.write("cpu memory\n", simulatedCgroups, "cgroup.subtree_control")
	e.create(e.pod("refused", 1, onNode(m.node)))
	e.hasEvent("refused", "GPUMemoryNotEnforced", "its limit of GPU memory does not hold")
	m.level("advisory", "kernel: a limit could not be set")
	m.write("cpu memory dmem\n", simulatedCgroups, "cgroup.subtree_control")
	e.running("refused")
	m.level("kernel", "")

	m.kill("sample", held)
	e.running("held")
}

// TestTheRuntimeAsks: a container whose pod sets what gpumem sets, past the admission
// policy, is not made.
func TestTheRuntimeAsks(t *testing.T) {
	e := setup(t)
	_, err := e.client.CoreV1().ConfigMaps(e.namespace).Create(e.ctx, &v1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "sly"},
		Data:       map[string]string{"NVIDIA_VISIBLE_DEVICES": "all", "GPUMEM_LIMIT_MIB": "99999", "CUDA_MPS_PIPE_DIRECTORY": "/nowhere", "NVIDIA_GPU_MEMORY_LIMIT": "99999"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	sly := []v1.EnvFromSource{{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "sly"}}}}
	e.create(e.pod("sly", 3, onNode("node1"), func(pod *v1.Pod) { pod.Spec.Containers[0].EnvFrom = sly }))
	const says = ": sets CUDA_MPS_PIPE_DIRECTORY, GPUMEM_LIMIT_MIB, NVIDIA_GPU_MEMORY_LIMIT, NVIDIA_VISIBLE_DEVICES, which gpumem sets"
	e.hasEvent("sly", "container "+e.namespace+"/sly/main"+says)
	e.create(e.pod("slier", 3, onNode("node1"), prepared(2), func(pod *v1.Pod) { pod.Spec.InitContainers[0].EnvFrom = sly }))
	e.hasEvent("slier", "container "+e.namespace+"/slier/prepare"+says)
	// The kubelet tells containers of the Services of their namespace, by names that begin
	// as those of gpumem.
	web := &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: "gpumem-web"}, Spec: v1.ServiceSpec{Ports: []v1.ServicePort{{Name: "http", Port: 80}}}}
	if _, err := e.client.CoreV1().Services(e.namespace).Create(e.ctx, web, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	e.create(e.pod("plain", 3, onNode("node1"))) // the runtime asks about it too
	e.running("plain")
	e.agree("plain", "main")

	// Only the runtime knows variables of a ConfigMap.
	_, err = e.client.CoreV1().ConfigMaps(e.namespace).Create(e.ctx, &v1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "second"},
		Data:       map[string]string{"XLA_CLIENT_MEM_FRACTION": "0.95", "PYTORCH_CUDA_ALLOC_CONF": "backend:native"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	e.create(e.pod("second", 3, onNode("node1"), func(pod *v1.Pod) {
		pod.Spec.Containers[0].EnvFrom = []v1.EnvFromSource{{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "second"}}}}
	}))
	e.running("second")
	env := e.environment("second", "main")
	if jax, torch := env["XLA_PYTHON_CLIENT_MEM_FRACTION"], env["PYTORCH_ALLOC_CONF"]; jax != "" || !strings.HasPrefix(torch, "backend:native,per_process_memory_fraction:") {
		t.Errorf("a container with second names has XLA_PYTHON_CLIENT_MEM_FRACTION=%q and PYTORCH_ALLOC_CONF=%q", jax, torch)
	}
}

func TestOverUse(t *testing.T) {
	e := setup(t)
	m := newMachine(e)
	e.create(e.pod("greedy", 3, onNode(m.node)))
	pod := e.running("greedy")
	uuid := e.agree("greedy", "main")[0]
	// The node's first process is in no pod.
	g := m.gpu(uuid)
	g.Processes = append(m.programs(pod, 5000), fakenvml.Process{PID: 1, UsedMiB: 2000})
	m.setGPUs()
	e.hasEvent("greedy", "GPUMemoryOverUse", "container main uses 5000 MiB of GPU "+uuid+" and was granted 3072 MiB")
	m.eventuallyForeign("2 GiB are used by programs that were granted none")
	e.create(e.pod("large", 10, onNode(m.node), annotated("gpu-uuid", uuid)))
	e.pending("large", "needs 10 GiB on one GPU")

	g.Processes = nil
	m.setGPUs()
	e.running("large")

	// Told to, the plugin evicts.
	e.upgrade("devicePlugin.onOveruse=evict")
	g.Processes = m.programs(pod, 5000)
	m.setGPUs()
	e.hasEvent("greedy", "GPUMemoryEvicted", "evicted: container main uses 5000 MiB of GPU "+uuid)
	e.gone("greedy")
}

func (m *machine) eventuallyForeign(words string) {
	m.Helper()
	m.eventually("kubectl inspect gpumem says of foreign programs", func() (bool, string) {
		out, err := suite.stack.Inspect(m.ctx, m.cluster, "-d", m.node)
		return err == nil && strings.Contains(out, words), fmt.Sprint(err, out)
	})
}
