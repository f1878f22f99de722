package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	"github.com/gpumem/gpumem/test/cluster"
	"github.com/gpumem/gpumem/test/stack"
)

const (
	gpuMem     = "gpumem.dev/gpu-mem"
	assignment = "gpumem.dev/assignment"
	// patience bounds every wait for something that takes a loaded machine
	// seconds.
	patience = 90 * time.Second
)

// env is one test's hand at the shared cluster: a namespace of its own.
type env struct {
	*testing.T
	ctx       context.Context
	cluster   *cluster.Cluster
	client    kubernetes.Interface
	namespace string
	domain    string // of resources and annotations
}

// setup gives a test its namespace, and checks at its end that it leaks nothing.
func setup(t *testing.T) *env {
	t.Helper()
	if suite.cluster == nil {
		t.Skip(suite.why)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	e := &env{T: t, ctx: ctx, cluster: suite.cluster, client: suite.cluster.Client(), domain: "gpumem.dev"}
	var err error
	if e.namespace, err = e.cluster.MakeNamespace(ctx, "e2e-"); err != nil {
		t.Fatal(err)
	}
	e.atEnd(e.checkNothingIsHeld)
	return e
}

// bySum is why a pod waits where the sum of a node is too small: in the words of the plugin, which
// is asked first, or else in kube-scheduler's own.
func bySum(words string) string {
	if suite.stack.Plugin() {
		return words
	}
	return "Insufficient " + gpuMem
}

// atEnd runs f when the test has ended, whether it has failed or not.
func (e *env) atEnd(f func()) {
	e.Cleanup(func() {
		var cancel context.CancelFunc
		e.ctx, cancel = context.WithTimeout(context.Background(), 2*patience)
		defer cancel()
		f()
	})
}

// checkNothingIsHeld deletes the test's pods and waits until neither the books
// nor the kubelets know of anything held.
func (e *env) checkNothingIsHeld() {
	zero := int64(0)
	if err := e.client.CoreV1().Pods(e.namespace).DeleteCollection(e.ctx, metav1.DeleteOptions{GracePeriodSeconds: &zero}, metav1.ListOptions{}); err != nil {
		e.Errorf("delete the test's pods: %v", err)
	}
	e.eventually("nothing is held any more", func() (bool, string) {
		for node, gpus := range e.books() {
			for uuid, units := range gpus {
				if units != 0 {
					return false, fmt.Sprintf("%s on %s still has %d units in the books", uuid, node, units)
				}
			}
			if held := e.held(node); len(held) > 0 {
				return false, fmt.Sprintf("the kubelet of %s still has %v", node, held)
			}
		}
		return true, ""
	})
	if err := e.client.CoreV1().Namespaces().Delete(e.ctx, e.namespace, metav1.DeleteOptions{}); err != nil {
		e.Errorf("delete the test's namespace: %v", err)
	}
}

// eventually waits until a condition holds, and fails the test with what the
// condition last said.
func (e *env) eventually(what string, condition func() (ok bool, now string)) {
	e.Helper()
	if err := stack.Eventually(e.ctx, patience, what, func(context.Context) (bool, string) { return condition() }); err != nil {
		e.Fatal(err)
	}
}

// pod describes a pod of the sample image with one container that asks for
// units; more changes it.
func (e *env) pod(name string, units int64, more ...func(*v1.Pod)) *v1.Pod {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: name},
		Spec: v1.PodSpec{
			SchedulerName:                 "gpumem-scheduler",
			TerminationGracePeriodSeconds: new(int64(1)),
			Containers:                    []v1.Container{sample("main", units)},
		},
	}
	for _, change := range more {
		change(pod)
	}
	return pod
}

// sample is a container of the sample image.
func sample(name string, units int64, args ...string) v1.Container {
	return stack.SampleContainer(name, units, args...)
}

// asking makes the pod's first container ask for units of a resource, and for
// nothing else.
func asking(name v1.ResourceName, units int64) func(*v1.Pod) {
	return func(pod *v1.Pod) {
		pod.Spec.Containers[0].Resources.Limits = v1.ResourceList{name: *resource.NewQuantity(units, resource.DecimalSI)}
	}
}

func onNode(node string) func(*v1.Pod) {
	return func(pod *v1.Pod) { pod.Spec.NodeSelector = map[string]string{v1.LabelHostname: node} }
}

func annotated(key, value string) func(*v1.Pod) {
	return func(pod *v1.Pod) {
		if pod.Annotations == nil {
			pod.Annotations = map[string]string{}
		}
		pod.Annotations["gpumem.dev/"+key] = value
	}
}

func (e *env) create(pod *v1.Pod) *v1.Pod {
	e.Helper()
	created, err := e.client.CoreV1().Pods(pod.Namespace).Create(e.ctx, pod, metav1.CreateOptions{})
	if err != nil {
		e.Fatalf("create pod %s: %v", pod.Name, err)
	}
	return created
}

func (e *env) get(name string) *v1.Pod {
	e.Helper()
	pod, err := e.client.CoreV1().Pods(e.namespace).Get(e.ctx, name, metav1.GetOptions{})
	if err != nil {
		e.Fatalf("get pod %s: %v", name, err)
	}
	return pod
}

// ungate takes a pod's scheduling gates away.
func (e *env) ungate(name string) *v1.Pod {
	e.Helper()
	return e.change(name, e.client.CoreV1().Pods(e.namespace).Update, func(pod *v1.Pod) { pod.Spec.SchedulingGates = nil })
}

func (e *env) changeStatus(name string, change func(*v1.Pod)) {
	e.Helper()
	e.change(name, e.client.CoreV1().Pods(e.namespace).UpdateStatus, change)
}

// change updates a pod, again where another changed it since it was read.
func (e *env) change(name string, update func(context.Context, *v1.Pod, metav1.UpdateOptions) (*v1.Pod, error), change func(*v1.Pod)) (pod *v1.Pod) {
	e.Helper()
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() (err error) {
		pod = e.get(name)
		change(pod)
		pod, err = update(e.ctx, pod, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		e.Fatalf("change pod %s: %v", name, err)
	}
	return pod
}

func (e *env) delete(name string, graceSeconds int64) {
	e.Helper()
	if err := e.client.CoreV1().Pods(e.namespace).Delete(e.ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &graceSeconds}); err != nil {
		e.Fatalf("delete pod %s: %v", name, err)
	}
}

// gone waits until the pod's object is gone.
func (e *env) gone(name string) {
	e.Helper()
	e.eventually("pod "+name+" is gone", func() (bool, string) {
		_, err := e.client.CoreV1().Pods(e.namespace).Get(e.ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), fmt.Sprint(err)
	})
}

// running waits until all containers of the pod run, and returns it.
func (e *env) running(name string) *v1.Pod {
	e.Helper()
	var pod *v1.Pod
	e.eventually("pod "+name+" runs", func() (bool, string) {
		pod = e.get(name)
		if pod.Status.Phase == v1.PodFailed {
			e.Fatalf("pod %s failed: %s: %s", name, pod.Status.Reason, pod.Status.Message)
		}
		return ready(pod), fmt.Sprintf("%s; %s; %v", pod.Status.Phase, waitsBecause(pod), e.events(name))
	})
	return pod
}

func ready(pod *v1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == v1.PodReady {
			return c.Status == v1.ConditionTrue
		}
	}
	return false
}

// waitsBecause returns why the scheduler has not placed a pod.
func waitsBecause(pod *v1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == v1.PodScheduled && c.Status == v1.ConditionFalse {
			return c.Message
		}
	}
	return ""
}

// pending waits until the scheduler has said that it cannot place the pod, for
// a reason with all of these words in it.
func (e *env) pending(name string, words ...string) {
	e.Helper()
	e.eventually(fmt.Sprintf("pod %s waits because of %q", name, words), func() (bool, string) {
		reason := waitsBecause(e.get(name))
		for _, w := range words {
			if !strings.Contains(reason, w) {
				return false, reason
			}
		}
		return reason != "", reason
	})
}

func (e *env) events(name string) []string {
	list, err := e.client.CoreV1().Events(e.namespace).List(e.ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + name})
	if err != nil {
		return []string{err.Error()}
	}
	var out []string
	for _, event := range list.Items {
		out = append(out, event.Reason+": "+event.Message)
	}
	return out
}

// A report is what "kubectl inspect gpumem -o json" says, as far as it is read here.
type report struct {
	NodesWithoutInventory int

	Nodes []struct {
		Name         string
		Unattributed []json.RawMessage
		GPUs         []struct {
			UUID      string
			Index     int
			Model     string
			Healthy   bool
			Unhealthy string
			Capacity  struct{ Units int64 }
			Requested struct{ Units int64 }

			RequestedCores int
			Pods           []struct{ Namespace, Name string }
			Kept           []struct{ Name string }
		}
	}
}

func (e *env) inspect() report {
	e.Helper()
	text, err := suite.stack.Inspect(e.ctx, e.cluster, "-o", "json", "--resource-domain", e.domain)
	if err != nil {
		e.Fatal(err)
	}
	var r report
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		e.Fatalf("kubectl inspect gpumem -o json: %v\n%s", err, text)
	}
	return r
}

// books returns the units that each GPU of each node has given away, by UUID.
func (e *env) books() map[string]map[string]int64 {
	e.Helper()
	return booksOf(e.inspect())
}

func booksOf(r report) map[string]map[string]int64 {
	out := make(map[string]map[string]int64)
	for _, n := range r.Nodes {
		out[n.Name] = make(map[string]int64)
		for _, g := range n.GPUs {
			out[n.Name][g.UUID] = g.Requested.Units
		}
		if len(n.Unattributed) > 0 {
			out[n.Name]["unattributed"] = int64(len(n.Unattributed))
		}
	}
	return out
}

// held returns the device IDs that the kubelet of a node has given to each
// container of the shared resource: by "namespace/pod/container".
func (e *env) held(node string) map[string][]string {
	e.Helper()
	ctx, cancel := context.WithTimeout(e.ctx, 30*time.Second)
	defer cancel()
	list, err := e.cluster.PodResources(ctx, node)
	if err != nil {
		e.Fatal(err)
	}
	out := make(map[string][]string)
	for _, pod := range list.GetPodResources() {
		for _, c := range pod.GetContainers() {
			for _, d := range c.GetDevices() {
				if d.GetResourceName() == e.domain+"/gpu-mem" {
					key := pod.GetNamespace() + "/" + pod.GetName() + "/" + c.GetName()
					out[key] = append(out[key], d.GetDeviceIds()...)
				}
			}
		}
	}
	return out
}

// environment returns what a container has printed of its environment.
func (e *env) environment(pod, container string) map[string]string {
	e.Helper()
	var out map[string]string
	e.eventually("container "+container+" of pod "+pod+" has printed its environment", func() (bool, string) {
		text, err := e.client.CoreV1().Pods(e.namespace).GetLogs(pod, &v1.PodLogOptions{Container: container}).DoRaw(e.ctx)
		out = make(map[string]string)
		for line := range strings.Lines(string(text)) {
			if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
				out[key] = value
			}
		}
		return err == nil && out["NVIDIA_VISIBLE_DEVICES"] != "", fmt.Sprint(err, string(text))
	})
	return out
}

// assigned returns the UUIDs that a pod's annotation names.
func (e *env) assigned(pod *v1.Pod) []string {
	e.Helper()
	var value struct{ GPUs []struct{ UUID string } }
	text := pod.Annotations[e.domain+"/assignment"]
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		e.Fatalf("annotation of pod %s: %v: %q", pod.Name, err, text)
	}
	var out []string
	for _, g := range value.GPUs {
		out = append(out, g.UUID)
	}
	slices.Sort(out)
	return out
}

// agree checks that annotation, kubelet and environment name the same GPUs for
// each container of a running pod, waiting for a correction to arrive, and
// returns them.
func (e *env) agree(name string, containers ...string) []string {
	e.Helper()
	var uuids []string
	e.eventually("annotation and kubelet agree on pod "+name, func() (bool, string) {
		pod := e.get(name)
		if pod.Annotations[e.domain+"/assignment"] == "" {
			return false, "it has no annotation"
		}
		uuids = e.assigned(pod)
		held := e.held(pod.Spec.NodeName)
		for _, c := range containers {
			var prefixes []string
			for _, id := range held[e.namespace+"/"+name+"/"+c] {
				prefix, _, _ := strings.Cut(id, "-")
				if !slices.Contains(prefixes, prefix) {
					prefixes = append(prefixes, prefix)
				}
			}
			slices.Sort(prefixes)
			var want []string
			for _, uuid := range uuids {
				want = append(want, strings.TrimPrefix(uuid, "GPU-")[:8])
			}
			if !slices.Equal(prefixes, want) {
				return false, fmt.Sprintf("container %s holds %v, and the annotation says %v", c, prefixes, want)
			}
		}
		return true, ""
	})
	for _, c := range containers {
		visible := strings.Split(e.environment(name, c)["NVIDIA_VISIBLE_DEVICES"], ",")
		slices.Sort(visible)
		if diff := cmp.Diff(uuids, visible); diff != "" {
			e.Errorf("container %s of pod %s sees other GPUs than assigned (-annotation +env):\n%s", c, name, diff)
		}
	}
	return uuids
}

// gpu returns the UUID of a node's GPU by its index.
func (e *env) gpu(node string, index int) string {
	e.Helper()
	for _, n := range e.inspect().Nodes {
		if n.Name != node {
			continue
		}
		for _, g := range n.GPUs {
			if g.Index == index {
				return g.UUID
			}
		}
	}
	e.Fatalf("node %s has no GPU %d", node, index)
	return ""
}

// killContainers kills one of gpumem's own programs in its containers on all
// nodes, with no chance to end in order, and waits until it is ready again.
func (e *env) killContainers(program string) {
	e.Helper()
	before := e.componentIDs(program)
	processes, err := e.cluster.ContainerProcesses(program)
	if err != nil {
		e.Fatal(err)
	}
	if len(processes) != len(before) || len(processes) == 0 {
		e.Fatalf("there are %d processes of %s, want %d", len(processes), program, len(before))
	}
	for _, p := range processes {
		if err := p.Signal(syscall.SIGKILL); err != nil {
			e.Fatalf("kill %s: %v", program, err)
		}
	}
	e.eventually(program+" is ready again", func() (bool, string) {
		after := e.componentIDs(program)
		for pod, id := range after {
			if id == before[pod] || id == "" {
				return false, fmt.Sprintf("pod %s has container %q", pod, id)
			}
		}
		return len(after) == len(before), fmt.Sprint(after)
	})
}

// componentIDs returns, for each of gpumem's own pods with a container of that
// program, the container's ID; it is empty while the pod is not ready.
func (e *env) componentIDs(program string) map[string]string {
	e.Helper()
	pods, err := e.client.CoreV1().Pods(stack.Namespace).List(e.ctx, metav1.ListOptions{})
	if err != nil {
		e.Fatal(err)
	}
	out := make(map[string]string)
	for _, pod := range pods.Items {
		for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
			if strings.Contains(c.Image, program) {
				out[pod.Name] = ""
				if ready(&pod) {
					out[pod.Name] = c.ContainerID
				}
			}
		}
	}
	return out
}

// containerIDs returns the running containers of a pod, which change when one
// is started again.
func containerIDs(pod *v1.Pod) map[string]string {
	out := make(map[string]string)
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		out[c.Name] = c.ContainerID + " " + strconv.Itoa(int(c.RestartCount))
	}
	return out
}
