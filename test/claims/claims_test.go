package claims

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gpumem/gpumem/test/cluster"
	"github.com/gpumem/gpumem/test/fakenvml"
	"github.com/gpumem/gpumem/test/stack"
)

const (
	domain    = "gpumem.dev"
	node      = "node1"
	namespace = "default"
	// schedulerName is that of the scheduler that the chart installs.
	schedulerName = "gpumem-scheduler"
	// patience bounds every wait for something that takes a loaded machine seconds.
	patience = 2 * time.Minute
)

// long has TestClaims kill the driver as well.
var long = flag.Bool("long", false, "kill the driver and the kubelet too: a minute and a half")

// env is a cluster with one node of two GPUs of 14 GiB, which hands them out by claims.
type env struct {
	*testing.T
	ctx     context.Context
	cluster *cluster.Cluster
	stack   *stack.Stack
	client  kubernetes.Interface
}

func TestClaims(t *testing.T) {
	if testing.Short() {
		t.Skip("the tests on a real cluster are left out with -short")
	}
	if err := cluster.CheckHost(); err != nil {
		t.Skip("no real cluster on this machine:", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 45*time.Minute)
	defer cancel()
	log := stack.Progress(t.Output())
	machine, err := stack.Node(node, fakenvml.T4("node1-0"), fakenvml.T4("node1-1"))
	if err != nil {
		t.Fatal(err)
	}
	machine.Labels = map[string]string{domain + "/api": "claims"}
	nodes := []cluster.Node{machine}
	for _, name := range []string{"node2", "node3"} { // these have the extended resource
		other, err := stack.Node(name, fakenvml.T4(name+"-0"))
		if err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, other)
	}
	err = stack.With(ctx, cluster.Config{Name: "claims", Log: log, Nodes: nodes}, func(c *cluster.Cluster, built *stack.Stack) error {
		e := &env{T: t, ctx: ctx, cluster: c, stack: built, client: c.Client()}
		defer func() {
			if t.Failed() {
				built.SaveLogs(context.WithoutCancel(ctx), c)
			}
		}()
		if err := built.LoadImages(ctx, c); err != nil {
			return err
		}
		if _, err := built.Install(ctx, c, "claims.enabled=true", "cores=true", "devicePlugin.extraArgs={--probe-interval=1s}"); err != nil {
			return err
		}
		e.published()
		for _, size := range []int64{5, 10, 14} {
			e.template(size)
		}
		for _, step := range []struct {
			name string
			run  func(*env)
			long bool
		}{
			{"three claims of 5 GiB on two GPUs of 14, and one that waits", (*env).testThreeAndOneThatWaits, false},
			{"claims of every kind in the samples", (*env).testSamples, true},
			{"the driver and the kubelet are killed", (*env).testKilled, true},
			{"they are killed between a claim and its container", (*env).testKilledBeforeTheStart, true},
			{"a GPU that fails takes no new claims", (*env).testUnhealthy, false},
			{"a GPU that is cordoned takes no new claims", (*env).testCordoned, false},
			{"use is compared with claims, and what others use is not offered", (*env).testUse, false},
			{"one view has both kinds of nodes", (*env).testOneView, false},
			{"what is given back leaves nothing", (*env).testNothingIsLeft, false},
			{"the node follows its label", (*env).testLabel, false},
			{"claims to shares", (*env).testShares, false},
		} {
			if step.long && !*long {
				continue
			}
			if !t.Run(step.name, func(t *testing.T) {
				here := *e
				here.T = t
				step.run(&here)
				here.clear()
			}) {
				break // what it left on the node would fail the others
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (e *env) eventually(what string, condition func() (ok bool, now string)) {
	e.Helper()
	if err := stack.Eventually(e.ctx, patience, what, func(context.Context) (bool, string) { return condition() }); err != nil {
		e.Fatal(err)
	}
}

// published waits until both GPUs are in a slice, and finds nothing of the extended resource.
func (e *env) published() {
	e.Helper()
	e.eventually("both GPUs are published", func() (bool, string) {
		devices, err := e.devices()
		return len(devices) == 2, fmt.Sprint(devices, err)
	})
	devices, err := e.devices()
	if err != nil {
		e.Fatal(err)
	}
	for name, d := range devices {
		memory, cores := d.Capacity["memory"].Value, d.Capacity["cores"].Value
		if memory.String() != "14Gi" || cores.Value() != 100 || *d.Attributes["model"].StringValue != "Tesla T4" || len(d.Taints) > 0 {
			e.Errorf("device %s: memory %s, cores %s, %+v", name, memory.String(), cores.String(), d)
		}
	}
	object, err := e.client.CoreV1().Nodes().Get(e.ctx, node, metav1.GetOptions{})
	if err != nil {
		e.Fatal(err)
	}
	if units := object.Status.Capacity[domain+"/gpu-mem"]; !units.IsZero() {
		e.Errorf("the node has %s units of the extended resource too", units.String())
	}
}

// devices returns what the driver publishes, by name.
func (e *env) devices() (map[string]resourceapi.Device, error) {
	slices, err := e.client.ResourceV1().ResourceSlices().List(e.ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	out := make(map[string]resourceapi.Device)
	for _, s := range slices.Items {
		for _, d := range s.Spec.Devices {
			if s.Spec.Driver == domain {
				out[d.Name] = d
			}
		}
	}
	return out, nil
}

func (e *env) template(gib int64) {
	e.Helper()
	e.templateOf(fmt.Sprintf("gpumem-%dg", gib), "memory", *resource.NewQuantity(gib<<30, resource.BinarySI))
}

// templateOf makes a template for claims to so much of a capacity of one GPU.
func (e *env) templateOf(name string, capacity resourceapi.QualifiedName, amount resource.Quantity) {
	e.Helper()
	_, err := e.client.ResourceV1().ResourceClaimTemplates(namespace).Create(e.ctx, &resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourceapi.ResourceClaimTemplateSpec{Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: domain, Capacity: &resourceapi.CapacityRequirements{
				Requests: map[resourceapi.QualifiedName]resource.Quantity{capacity: amount},
			}},
		}}}}},
	}, metav1.CreateOptions{})
	if err != nil {
		e.Fatal(err)
	}
}

// create makes a pod with a claim of its own. Its container says that it has no limit, which is to
// count for nothing.
func (e *env) create(name string, gib int64, options ...func(*v1.Pod)) {
	e.Helper()
	c := stack.SampleContainer("main", 0)
	c.Env = []v1.EnvVar{{Name: "GPUMEM_LIMIT_MIB", Value: "999999"}, {Name: "NVIDIA_VISIBLE_DEVICES", Value: "all"}}
	c.Resources.Claims = []v1.ResourceClaim{{Name: "gpu"}}
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PodSpec{
			TerminationGracePeriodSeconds: new(int64(0)),
			ResourceClaims:                []v1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new(fmt.Sprintf("gpumem-%dg", gib))}},
			Containers:                    []v1.Container{c},
		},
	}
	for _, option := range options {
		option(pod)
	}
	if _, err := e.client.CoreV1().Pods(namespace).Create(e.ctx, pod, metav1.CreateOptions{}); err != nil {
		e.Fatal(err)
	}
}

func (e *env) get(name string) *v1.Pod {
	e.Helper()
	pod, err := e.client.CoreV1().Pods(namespace).Get(e.ctx, name, metav1.GetOptions{})
	if err != nil {
		e.Fatal(err)
	}
	return pod
}

func (e *env) delete(names ...string) {
	e.Helper()
	for _, name := range names {
		if err := e.client.CoreV1().Pods(namespace).Delete(e.ctx, name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
			e.Fatal(err)
		}
	}
}

// running waits until pods run, and returns the variables of their containers.
func (e *env) running(names ...string) (env []map[string]string) {
	e.Helper()
	for _, name := range names {
		var pod *v1.Pod
		e.eventually("pod "+name+" runs", func() (bool, string) {
			pod = e.get(name)
			return pod.Status.Phase == v1.PodRunning, fmt.Sprint(pod.Status.Phase, pod.Status.Conditions, e.events(name))
		})
		e.eventually("the process of pod "+name+" is there", func() (bool, string) {
			processes, err := e.cluster.ContainerProcesses("sample")
			for _, p := range processes {
				if p.Pod != pod.UID {
					continue
				}
				if of, err := p.Environment(); err == nil {
					env = append(env, of)
					return true, ""
				}
			}
			return false, fmt.Sprint(processes, err)
		})
	}
	return env
}

func (e *env) events(name string) (out []string) {
	list, err := e.client.CoreV1().Events(namespace).List(e.ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + name})
	if err != nil {
		return []string{err.Error()}
	}
	for _, event := range list.Items {
		out = append(out, event.Reason+": "+event.Message)
	}
	return out
}

func (e *env) waits(name, why string) {
	e.Helper()
	e.eventually(fmt.Sprintf("pod %s waits: %s", name, why), func() (bool, string) {
		for _, c := range e.get(name).Status.Conditions {
			if c.Type == v1.PodScheduled && c.Status == v1.ConditionFalse {
				return strings.Contains(c.Message, why), c.Message
			}
		}
		return false, "it was not looked at yet"
	})
}

// clear deletes all pods and waits until the node has nothing of their claims.
func (e *env) clear() {
	e.Helper()
	if err := e.client.CoreV1().Pods(namespace).DeleteCollection(e.ctx, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}, metav1.ListOptions{}); err != nil {
		e.Fatal(err)
	}
	e.eventually("nothing is left of the claims", func() (bool, string) {
		list, err := e.client.ResourceV1().ResourceClaims(namespace).List(e.ctx, metav1.ListOptions{})
		if err != nil || len(list.Items) > 0 {
			return false, fmt.Sprint(err, len(list.Items), " claims")
		}
		prepared, files := e.prepared(), e.files()
		return len(prepared) == 0 && len(files) == 0, fmt.Sprintf("prepared %v, CDI files %v", prepared, files)
	})
}

// root is the node's file system.
func (e *env) root() string {
	e.Helper()
	root, err := e.cluster.NodeRoot(node)
	if err != nil {
		e.Fatal(err)
	}
	return root
}

// prepared returns the MiB of the claims in the driver's checkpoint, by claim.
func (e *env) prepared() map[string]int64 {
	e.Helper()
	text, err := os.ReadFile(filepath.Join(e.root(), "var/lib/kubelet/plugins", domain, "checkpoint.json"))
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		e.Fatal(err)
	}
	var checkpoint struct {
		Claims []struct {
			Name   string
			Shares []struct{ MiB int64 }
		}
	}
	if err := json.Unmarshal(text, &checkpoint); err != nil {
		e.Fatal(err)
	}
	out := make(map[string]int64)
	for _, c := range checkpoint.Claims {
		for _, s := range c.Shares {
			out[c.Name] += s.MiB
		}
	}
	return out
}

// files returns the CDI files of claims. They are looked for in /run: /var/run is a link, which leads to
// that of this machine.
func (e *env) files() []string {
	e.Helper()
	files, err := filepath.Glob(filepath.Join(e.root(), "run/cdi", domain+"-*"))
	if err != nil {
		e.Fatal(err)
	}
	return files
}

func (e *env) testThreeAndOneThatWaits() {
	sum := make(map[string]int)
	for _, name := range []string{"a", "b", "c"} {
		e.create(name, 5)
	}
	for _, env := range e.running("a", "b", "c") {
		uuid := env["NVIDIA_VISIBLE_DEVICES"]
		if !strings.HasPrefix(uuid, "GPU-") || env["GPUMEM_GPU_UUID"] != uuid || env["GPUMEM_LIMIT_MIB"] != "5120" || env["GPUMEM_ENFORCEMENT"] != "advisory" || env["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "" {
			e.Errorf("a container has %v", env)
		}
		sum[uuid] += 5
	}
	if diff := cmp.Diff([]int{5, 10}, slices.Sorted(maps.Values(sum))); diff != "" {
		e.Errorf("GiB by GPU: %s", diff)
	}
	e.create("waits", 10)
	e.waits("waits", "cannot allocate all claims")
	// The GPU with one claim of 5 has 9 left. Without that claim it has 14.
	for _, name := range []string{"a", "b", "c"} {
		if env := e.running(name)[0]; sum[env["GPUMEM_GPU_UUID"]] == 5 {
			e.delete(name)
		}
	}
	if env := e.running("waits")[0]; env["GPUMEM_LIMIT_MIB"] != "10240" {
		e.Errorf("the one that waited has %v", env)
	}
}

// testSamples has a pod for each template of config/samples/claims.yaml, one after the other.
func (e *env) testSamples() {
	if _, err := e.stack.Kubectl(e.ctx, e.cluster, "apply", "--namespace", namespace, "--filename", e.stack.Sample("claims.yaml")); err != nil {
		e.Fatal(err)
	}
	templates, err := e.client.ResourceV1().ResourceClaimTemplates(namespace).List(e.ctx, metav1.ListOptions{})
	if err != nil {
		e.Fatal(err)
	}
	want := map[string]string{ // GPUs, MiB, and per cent of the cores
		"gpumem-10g-30-cores": "1 10240 30", "gpumem-two-gpus": "2 5120 ", "gpumem-model": "1 5120 ", "gpumem-whole": "1 14336 ",
		"gpumem-5g": "1 5120 ", "gpumem-10g": "1 10240 ", "gpumem-14g": "1 14336 ",
	}
	got := make(map[string]string)
	for _, template := range templates.Items {
		e.create("sample", 5, func(pod *v1.Pod) { pod.Spec.ResourceClaims[0].ResourceClaimTemplateName = &template.Name })
		env := e.running("sample")[0]
		gpus := len(strings.Split(env["NVIDIA_VISIBLE_DEVICES"], ","))
		got[template.Name] = fmt.Sprint(gpus, " ", env["GPUMEM_LIMIT_MIB"], " ", env["GPUMEM_CORE_PERCENT"])
		e.clear()
	}
	if diff := cmp.Diff(want, got); diff != "" {
		e.Error(diff)
	}
}

// killDriver kills the driver, without a chance to write anything.
func (e *env) killDriver() {
	e.Helper()
	pods, err := e.client.CoreV1().Pods(stack.Namespace).List(e.ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		e.Fatal(err)
	}
	processes, err := e.cluster.ContainerProcesses("gpumem-device-plugin")
	if err != nil {
		e.Fatal(err)
	}
	for _, p := range processes {
		if !slices.ContainsFunc(pods.Items, func(pod v1.Pod) bool { return pod.UID == p.Pod }) {
			continue
		}
		if err := p.Signal(syscall.SIGKILL); err != nil {
			e.Fatal(err)
		}
		return
	}
	e.Fatalf("no process of the driver among %v", processes)
}

func (e *env) testKilled() {
	e.create("a", 5)
	before := e.running("a")[0]
	e.create("b", 5)
	e.killDriver() // while b is on its way
	if err := e.cluster.Kill(e.ctx, "kubelet@"+node); err != nil {
		e.Fatal(err)
	}
	e.create("c", 10)
	if err := e.cluster.StartProcess("kubelet@" + node); err != nil {
		e.Fatal(err)
	}
	e.running("b", "c")
	if after := e.running("a")[0]; after["GPUMEM_GPU_UUID"] != before["GPUMEM_GPU_UUID"] {
		e.Errorf("the pod that ran has %v, had %v", after, before)
	}
	var sizes []int64
	for _, size := range e.prepared() {
		sizes = append(sizes, size)
	}
	if slices.Sort(sizes); !slices.Equal(sizes, []int64{5120, 5120, 10240}) {
		e.Errorf("prepared are %v MiB", sizes)
	}
	e.delete("b")
	e.killDriver()
	e.delete("c")
}

// testKilledBeforeTheStart kills both once a claim is prepared, and before there is anything of its
// pod: the container runtime is stopped meanwhile.
func (e *env) testKilledBeforeTheStart() {
	if err := e.cluster.Signal("containerd@"+node, syscall.SIGSTOP); err != nil {
		e.Fatal(err)
	}
	goOn := sync.OnceValue(func() error { return e.cluster.Signal("containerd@"+node, syscall.SIGCONT) })
	defer func() { _ = goOn() }()
	e.create("a", 5)
	e.eventually("the claim is prepared", func() (bool, string) {
		return len(e.files()) == 1, fmt.Sprint(e.prepared(), e.events("a"))
	})
	before, files := e.prepared(), e.files()
	e.killDriver()
	if err := e.cluster.Kill(e.ctx, "kubelet@"+node); err != nil {
		e.Fatal(err)
	}
	if processes, err := e.cluster.ContainerProcesses("sample"); err != nil || len(processes) > 0 {
		e.Errorf("there are %v already, %v", processes, err)
	}
	if err := goOn(); err != nil {
		e.Fatal(err)
	}
	if err := e.cluster.StartProcess("kubelet@" + node); err != nil {
		e.Fatal(err)
	}
	if env := e.running("a")[0]; env["GPUMEM_LIMIT_MIB"] != "5120" {
		e.Errorf("the container has %v", env)
	}
	if diff := cmp.Diff(before, e.prepared()) + cmp.Diff(files, e.files()); diff != "" {
		e.Errorf("it is prepared otherwise than before both were killed: %s", diff)
	}
	e.create("b", 14) // of the GPU that has none, or there are two accounts of the other
	e.running("b")
}

// taints returns how many taints the devices of the node have, all together.
func (e *env) taints() (n int, now string) {
	devices, err := e.devices()
	for _, d := range devices {
		n += len(d.Taints)
		now += fmt.Sprint(d.Name, d.Taints)
	}
	return n, fmt.Sprint(now, err)
}

func (e *env) inspect(args ...string) string {
	e.Helper()
	out, err := e.stack.Inspect(e.ctx, e.cluster, args...)
	if err != nil {
		e.Fatalf("kubectl inspect gpumem %v: %v\n%s", args, err, out)
	}
	return out
}

func (e *env) testCordoned() {
	e.create("a", 5)
	uuid := e.running("a")[0]["GPUMEM_GPU_UUID"]
	e.inspect("cordon", node, uuid)
	e.eventually("its device has a taint", func() (bool, string) { n, now := e.taints(); return n == 1, now })
	e.create("b", 10)
	if got := e.running("b")[0]["GPUMEM_GPU_UUID"]; got == uuid {
		e.Errorf("a new claim is on GPU %s, which is cordoned", got)
	}
	e.create("waits", 5)
	e.waits("waits", "cannot allocate all claims")
	e.inspect("uncordon", node, uuid)
	e.eventually("no device has a taint", func() (bool, string) { n, now := e.taints(); return n == 0, now })
	e.running("waits")
}

// testOneView has pods by claims and pods with the extended resource, more of these than fit on their
// nodes: none of them is placed on the GPUs that claims leave free.
func (e *env) testOneView() {
	e.create("claims-5", 5, func(p *v1.Pod) { p.Spec.SchedulerName = schedulerName })
	uuid := e.running("claims-5")[0]["GPUMEM_GPU_UUID"]
	for _, name := range []string{"mem-a", "mem-b", "mem-c"} { // of 10: one fits on each of two nodes
		_, err := e.client.CoreV1().Pods(namespace).Create(e.ctx, &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       v1.PodSpec{SchedulerName: schedulerName, TerminationGracePeriodSeconds: new(int64(0)), Containers: []v1.Container{stack.SampleContainer("main", 10)}},
		}, metav1.CreateOptions{})
		if err != nil {
			e.Fatal(err)
		}
	}
	want := map[string]string{"node1": "claims-5 5", "node2": "mem 10", "node3": "mem 10"}
	e.eventually("all three nodes are shown with their pods", func() (bool, string) {
		var report struct {
			Nodes []struct {
				Name string
				GPUs []struct {
					UUID    string
					Healthy bool
					Pods    []struct {
						Name   string
						Memory struct{ Units int }
					}
				}
			}
			Waiting []struct{ Name string }
		}
		out := e.inspect("-o", "json")
		if err := json.Unmarshal([]byte(out), &report); err != nil {
			e.Fatal(err)
		}
		got := make(map[string]string)
		for _, n := range report.Nodes {
			for _, g := range n.GPUs {
				for _, p := range g.Pods {
					name, _, _ := strings.Cut(strings.Replace(p.Name, "mem-", "mem ", 1), " ")
					got[n.Name] += fmt.Sprint(name, " ", p.Memory.Units)
					if n.Name == node && g.UUID != uuid || !g.Healthy {
						return false, out
					}
				}
			}
		}
		return cmp.Equal(want, got) && len(report.Waiting) == 1, fmt.Sprint(got, len(report.Waiting), " wait")
	})
	e.Logf("%s", e.inspect())
	e.Logf("%s", e.inspect("pods"))
	if out, err := e.stack.Inspect(e.ctx, e.cluster, "doctor"); strings.Contains(out, "node "+node) {
		e.Errorf("the doctor finds something wrong with %s, which hands out claims: %v\n%s", node, err, out)
	}
}

// testLabel takes the label of the node away while a claim is there, and puts it back later.
func (e *env) testLabel() {
	e.create("a", 5)
	e.running("a")
	label := func(value string) {
		if _, err := e.stack.Kubectl(e.ctx, e.cluster, "label", "node", node, "--overwrite", domain+"/api"+value); err != nil {
			e.Fatal(err)
		}
	}
	units := func() int64 {
		object, err := e.client.CoreV1().Nodes().Get(e.ctx, node, metav1.GetOptions{})
		if err != nil {
			e.Fatal(err)
		}
		amount := object.Status.Allocatable[domain+"/gpu-mem"]
		return amount.Value()
	}
	label("-")
	e.eventually("both GPUs take no new claims", func() (bool, string) { n, now := e.taints(); return n == 2, now })
	if n := units(); n != 0 || e.get("a").Status.Phase != v1.PodRunning {
		e.Errorf("while a claim is there, the node offers %d units of the extended resource, and its pod is %s", n, e.get("a").Status.Phase)
	}
	e.delete("a")
	e.eventually("the node offers the extended resource", func() (bool, string) { return units() == 28, fmt.Sprint(units()) })
	e.eventually("and no devices", func() (bool, string) {
		devices, err := e.devices()
		return err == nil && len(devices) == 0, fmt.Sprint(devices, err)
	})
	label("=claims")
	e.eventually("the node offers devices again", func() (bool, string) {
		devices, err := e.devices()
		n, now := e.taints()
		return len(devices) == 2 && n == 0, fmt.Sprint(now, err)
	})
	e.eventually("and none of the extended resource", func() (bool, string) { return units() == 0, fmt.Sprint(units()) })
	e.create("b", 5)
	e.running("b")
}

// testShares has the node offer shares: of its two GPUs, four, four and four are on both, and seven more on
// none.
func (e *env) testShares() {
	const shareMiB = 14910 / 10
	if _, err := e.stack.Install(e.ctx, e.cluster, "claims.enabled=true", "claims.inShares=true", "devicePlugin.extraArgs={--probe-interval=1s}"); err != nil {
		e.Fatal(err)
	}
	e.eventually("the devices have shares and no memory", func() (bool, string) {
		devices, err := e.devices()
		for _, d := range devices {
			_, memory := d.Capacity["memory"]
			shares, ok := d.Capacity["shares"]
			if memory || !ok || shares.Value.Value() != 10 {
				return false, fmt.Sprint(d.Capacity)
			}
		}
		return len(devices) == 2, fmt.Sprint(devices, err)
	})
	for _, n := range []int64{4, 7} {
		e.templateOf(fmt.Sprintf("shares-%d", n), "shares", *resource.NewQuantity(n, resource.DecimalSI))
	}
	ofShares := func(name string, n int64) {
		e.create(name, 0, func(pod *v1.Pod) {
			pod.Spec.ResourceClaims[0].ResourceClaimTemplateName = new(fmt.Sprintf("shares-%d", n))
		})
	}
	for _, name := range []string{"a", "b", "c"} {
		ofShares(name, 4)
	}
	on := make(map[string]int)
	for _, env := range e.running("a", "b", "c") {
		on[env["NVIDIA_VISIBLE_DEVICES"]]++
		if env["GPUMEM_LIMIT_MIB"] != fmt.Sprint(4*shareMiB) {
			e.Errorf("4 shares are %s MiB, want %d", env["GPUMEM_LIMIT_MIB"], 4*shareMiB)
		}
	}
	if len(on) != 2 {
		e.Errorf("pods by GPU: %v", on)
	}
	ofShares("d", 7)
	e.waits("d", "cannot allocate all claims")
	e.eventually("a row of nodes has the shares", func() (bool, string) {
		out := e.inspect("nodes")
		return strings.Contains(out, "8/10") && strings.Contains(out, "4/10"), out
	})
	e.delete("a", "b", "c")
	e.running("d")
}

func (e *env) testUnhealthy() {
	e.create("a", 5)
	uuid := e.running("a")[0]["GPUMEM_GPU_UUID"]
	set := func(state fakenvml.State) { e.setGPU(uuid, func(g *fakenvml.GPU) { g.State = state }) }
	set(fakenvml.Lost)
	e.eventually("its device has a taint", func() (bool, string) { n, now := e.taints(); return n == 1, now })
	e.create("b", 10)
	if got := e.running("b")[0]["GPUMEM_GPU_UUID"]; got == uuid {
		e.Errorf("a new claim is on GPU %s, which has failed", got)
	}
	e.create("waits", 5)
	e.waits("waits", "cannot allocate all claims")
	set(fakenvml.OK)
	e.eventually("no device has a taint", func() (bool, string) { n, now := e.taints(); return n == 0, now })
	e.running("waits")
}

// setGPU changes one of the node's GPUs, as it is at first.
func (e *env) setGPU(uuid string, change func(*fakenvml.GPU)) {
	e.Helper()
	machine := fakenvml.NewMachine(fakenvml.T4("node1-0"), fakenvml.T4("node1-1"))
	for i := range machine.GPUs {
		if machine.GPUs[i].UUID == uuid {
			change(&machine.GPUs[i])
		}
	}
	description, err := json.Marshal(machine)
	if err == nil {
		err = e.cluster.SetGPUs(node, description)
	}
	if err != nil {
		e.Fatal(err)
	}
}

// testUse has a container use more than its claim, next to a program of the host.
func (e *env) testUse() {
	e.create("greedy", 5)
	uuid := e.running("greedy")[0]["GPUMEM_GPU_UUID"]
	e.setGPU(uuid, func(g *fakenvml.GPU) {
		g.Processes = append(e.programs("greedy", 6000), fakenvml.Process{PID: 1, UsedMiB: 2000}) // the first process is in no pod
	})
	want := "GPUMemoryOverUse: container main uses 6000 MiB of GPU " + uuid + " and was granted 5120 MiB"
	e.eventually("its over-use is told", func() (bool, string) {
		events := e.events("greedy")
		return slices.Contains(events, want), strings.Join(events, "; ")
	})
	e.eventually("what others use is not published", func() (bool, string) {
		devices, err := e.devices()
		if err != nil {
			return false, err.Error()
		}
		var sizes []string
		for _, d := range devices {
			memory := d.Capacity["memory"].Value
			sizes = append(sizes, memory.String())
		}
		slices.Sort(sizes)
		return slices.Equal(sizes, []string{"12Gi", "14Gi"}), fmt.Sprint(sizes)
	})
	const said = "2 GiB are used by programs that were granted none"
	e.eventually("kubectl inspect gpumem says so", func() (bool, string) { out := e.inspect("-d", node); return strings.Contains(out, said), out })
	if top := strings.Fields(e.inspect("top", namespace+"/greedy", "--no-headers")); !slices.Contains(top, "6000") {
		e.Errorf("top: %q, want 6000 MiB in use", top)
	}
	e.create("other", 10) // of the 12 it could have 7
	if got := e.running("other")[0]["GPUMEM_GPU_UUID"]; got == uuid {
		e.Errorf("10 GiB are on GPU %s, of which others use 2 and a claim has 5", got)
	}
	e.template(8)
	e.create("waits", 8)
	e.waits("waits", "cannot allocate all claims")
	e.setGPU(uuid, func(*fakenvml.GPU) {})
	e.running("waits")
}

// programs are the processes of a pod, each with so much in use.
func (e *env) programs(pod string, usedMiB int64) (out []fakenvml.Process) {
	e.Helper()
	uid := e.get(pod).UID
	processes, err := e.cluster.ContainerProcesses("sample")
	if err != nil {
		e.Fatal(err)
	}
	for _, p := range processes {
		if p.Pod != uid {
			continue
		}
		pid, err := cluster.NodePID(p.PID)
		if err != nil {
			e.Fatal(err)
		}
		out = append(out, fakenvml.Process{PID: uint32(pid), UsedMiB: usedMiB})
	}
	return out
}

// testNothingIsLeft has claims prepared and given back, four at a time, and one more wait in vain.
func (e *env) testNothingIsLeft() {
	const batch = 5 // of 5 GiB: four fit at once
	batches := 2
	if *long {
		batches = 40
	}
	before, err := e.devices()
	if err != nil {
		e.Fatal(err)
	}
	for b := range batches {
		of := fmt.Sprintf("p%d-", b)
		var names []string
		for i := range batch {
			names = append(names, fmt.Sprint(of, i))
			e.create(names[i], 5)
		}
		e.eventually("four claims of the batch are prepared", func() (bool, string) {
			prepared := e.prepared()
			n := 0
			for name := range prepared {
				if strings.HasPrefix(name, of) {
					n++
				}
			}
			return n == batch-1 && len(e.files()) >= n, fmt.Sprint(prepared, e.files())
		})
		e.delete(names...)
	}
	e.clear()
	after, err := e.devices()
	if diff := cmp.Diff(before, after); err != nil || diff != "" {
		e.Errorf("other devices are published than before: %s, %v", diff, err)
	}
	e.eventually("the node's account has no pods", func() (bool, string) {
		out := e.inspect("pods")
		return !strings.Contains(out, node), out
	})
	for _, name := range []string{"whole-a", "whole-b"} {
		e.create(name, 14)
	}
	e.running("whole-a", "whole-b")
}
